"""Specs that contradict a rule and specs that look odd but are fine: one table for the API server and for files."""

from typing import Any

_CPU = {"accelerator": {"resource": "cpu"}}
_LIMITS = {"pod": {"resources": {"limits": {"memory": "4Gi", "cpu": 2}}}}
AFFINITY: dict[str, Any] = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {
                    "matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}],
                    "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["bad"]}],
                }
            ]
        },
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "preference": {"matchExpressions": [{"key": "spot", "operator": "DoesNotExist"}]}}
        ],
    },
    "podAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "rack", "labelSelector": {}, "namespaceSelector": {"matchLabels": {"team": "a"}}}
        ]
    },
    "podAntiAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": 100,
                "podAffinityTerm": {
                    "topologyKey": "kubernetes.io/hostname",
                    "labelSelector": {"matchExpressions": [{"key": "tidegate.dev/pool", "operator": "Exists"}]},
                    "namespaces": ["team-a"],
                },
            }
        ]
    },
}
_ENTRY = {"name": "proxy", "key": "url"}

BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "another scheme": ({"model": {"uri": "s3://bucket/x"}}, "model.uri must be pvc://CLAIM/PATH"),
    "a path that climbs": ({"model": {"uri": "pvc://models/../etc"}}, "model.uri must be pvc://CLAIM/PATH"),
    "a claim without a path": ({"model": {"uri": "pvc://models"}}, "model.uri must be pvc://CLAIM/PATH"),
    "a hub's model without its owner": ({"model": {"uri": "hf://qwen3"}}, "hf://ORG/NAME or hf://ORG/NAME/FILE.gguf"),
    "a hub's file of another kind": ({"model": {"uri": "hf://a/b/c.bin"}}, "hf://ORG/NAME or hf://ORG/NAME/FILE.gguf"),
    "an image that climbs": ({"model": {"uri": "oci://r.io/m:1#../etc"}}, "or oci://IMAGE or oci://IMAGE#PATH"),
    "a revision of a claim": (
        {"model": {"uri": "pvc://models/qwen3", "revision": "v1"}},
        "model.revision, model.tokenSecretRef and cache are for models of a hub",
    ),
    "a cache of an image": (
        {"model": {"uri": "oci://r.io/m:1"}, "cache": {}},
        "model.revision, model.tokenSecretRef and cache are for models of a hub",
    ),
    "a pull policy of a claim": (
        {"model": {"uri": "pvc://models/qwen3", "pullPolicy": "Always"}},
        "model.pullPolicy is for models in an image",
    ),
    "a cache that cannot be filled": (
        {
            "model": {"uri": "hf://a/b"},
            "cache": {"persistentVolumeClaim": {"accessModes": ["ReadOnlyMany"]}},
        },
        "accessModes needs ReadWriteOnce or ReadWriteMany",
    ),
    "an endless cache": (
        {"model": {"uri": "hf://a/b"}, "cache": {"persistentVolumeClaim": {"storage": "9e99"}}},
        "cache.persistentVolumeClaim.storage is at most 8Pi",
    ),
    "a context upside down": ({"context": {"max": 100, "min": 200}}, "context.min is larger than context.max"),
    "bounds upside down": ({"minReplicas": 3, "maxReplicas": 2}, "minReplicas is larger than maxReplicas; lower"),
    "a start above the maximum": ({"replicas": 5, "maxReplicas": 2}, "replicas is larger than maxReplicas"),
    "no replicas": ({"replicas": 0}, "replicas must be at least 1; to stop every replica set suspend"),
    "no minimum": ({"minReplicas": 0}, "minReplicas must be at least 1; to stop every replica set suspend"),
    "cpu without memory": (_CPU, "a cpu pool needs pod.resources.limits.memory"),
    "cpu with device memory": (
        {"accelerator": {"resource": "cpu", "memory": "4Gi"}, **_LIMITS},
        "accelerator.memory does not apply to a cpu pool",
    ),
    "cpu with a number of devices": (
        {"accelerator": {"resource": "cpu", "count": 2}, **_LIMITS},
        "accelerator.count does not apply to a cpu pool",
    ),
    "cpu with a GPU's KV cache": (
        _CPU | _LIMITS | {"model": {"uri": "pvc://models/qwen3", "kvCacheDtype": "Fp8"}},
        "model.kvCacheDtype Fp8 needs a GPU of compute capability 8.9 or newer; a cpu pool takes Int8",
    ),
    "a GPU with int8 weights": (
        {"model": {"uri": "pvc://models/qwen3", "quantization": "Int8"}},
        "model.quantization is offered for cpu pools only",
    ),
    "three devices": ({"accelerator": {"count": 3}}, "accelerator.count is one of 1, 2, 4, 8"),
    "an endless device": ({"accelerator": {"memory": "9e99"}}, "accelerator.memory is at most 8Pi"),
    "an endless limit": ({"pod": {"resources": {"limits": {"memory": "9e99"}}}}, "resources.limits are at most 8Pi"),
    "an endless request": ({"pod": {"resources": {"requests": {"cpu": 10**17}}}}, "resources.requests are at most 8Pi"),
    "a mark of ours": (
        {"pod": {"annotations": {"tidegate.dev/draining-since": "now"}}},
        "pod.annotations under tidegate.dev/ belong to the operator",
    ),
    "a label of ours": ({"pod": {"labels": {"tidegate.dev/pool": "x"}}}, "pod.labels under tidegate.dev/ belong"),
    "a variable without a value": ({"pod": {"env": [{"name": "A"}]}}, "each of pod.env has either a value or a"),
    "a variable with two values": (
        {"pod": {"env": [{"name": "A", "value": "b", "valueFrom": {"configMapKeyRef": _ENTRY}}]}},
        "each of pod.env has either a value or a valueFrom",
    ),
    "a variable from two places": (
        {"pod": {"env": [{"name": "A", "valueFrom": {"configMapKeyRef": _ENTRY, "secretKeyRef": _ENTRY}}]}},
        "each of pod.env has either a value or a valueFrom",
    ),
    "a variable of ours": (
        {"pod": {"env": [{"name": "HF_HUB_OFFLINE", "value": "0"}]}},
        "which the operator sets itself; leave them out",
    ),
    "a token for all to read": (
        {"pod": {"env": [{"name": "HF_TOKEN", "value": "hf_x"}]}},
        "put the token into a Secret and name it in model.tokenSecretRef",
    ),
    "a device without domain": ({"accelerator": {"resource": "gpu"}}, "accelerator.resource must be an extended"),
}  # fmt: skip

FINE: dict[str, dict[str, Any]] = {
    "cpu with its memory": _CPU | _LIMITS,
    "cpu with an int8 KV cache": _CPU | _LIMITS | {"model": {"uri": "pvc://models/qwen3", "kvCacheDtype": "Int8"}},
    "a GPU with an fp8 KV cache": {"model": {"uri": "pvc://models/qwen3", "kvCacheDtype": "Fp8"}},
    "cpu with int8 weights": _CPU | _LIMITS | {"model": {"uri": "pvc://models/qwen3", "quantization": "Int8"}},
    "only a minimum": {"minReplicas": 2},
    "only a maximum": {"maxReplicas": 2},
    "only the largest context": {"context": {"max": 4096}},
    "only the smallest context": {"context": {"min": 4096}},
    "manual beyond the maximum": {"scaling": {"mode": "Manual"}, "replicas": 9, "maxReplicas": 2},
    "another vendor": {"accelerator": {"resource": "amd.com/gpu", "memory": 1}},
    "the root of a claim": {"model": {"uri": "pvc://models/"}},
    "a hub's model": {"model": {"uri": "hf://Qwen/Qwen3-8B"}},
    "a hub's model with all there is": {
        "model": {
            "uri": "hf://unsloth/Qwen3-8B-GGUF/Qwen3-8B-Q8_0.gguf",
            "revision": "refs/pr/1",
            "tokenSecretRef": {"name": "hf", "key": "token"},
        },
        "cache": {
            "persistentVolumeClaim": {"storageClassName": "fast", "accessModes": ["ReadWriteMany"], "storage": "50Gi"},
            "retain": True,
        },
    },
    "a hub's model with the smallest cache": {"model": {"uri": "hf://Qwen/Qwen3-8B"}, "cache": {}},
    "an image": {"model": {"uri": "oci://registry.example:5000/models/Qwen3:8B#models/qwen3", "pullPolicy": "Always"}},
    "an image by its digest": {"model": {"uri": "oci://r.io/m@sha256:" + "0" * 64}},
    "own labels": {"pod": {"labels": {"team": "a", "x.tidegate.dev/y": "z"}, "annotations": {"a.b/c": "d"}}},
    "API keys and a trusted gateway": {
        "access": {"apiKeysSecretRef": {"name": "chat-keys", "key": "api.keys"}, "trustFairnessHeader": True}
    },
    "an endpoint picker": {"endpointPickerRef": {"name": "chat-epp", "port": 9002, "failureMode": "FailClose"}},
    "flags of the engine": {"engine": {"extraArgs": ["--tool-parser=hermes", "--prefix-cache", "off"]}},
    "a queue bounded in tokens": {"queue": {"maxTokens": 100_000}},
    "placement": {"pod": {"tolerations": [{"operator": "Exists"}], "nodeSelector": {"a.b/c": "d"}}},
    "variables": {
        "pod": {
            "env": [
                {"name": "NCCL_DEBUG", "value": "INFO"},
                {"name": "EMPTY", "value": ""},
                {"name": "HTTPS_PROXY", "valueFrom": {"secretKeyRef": _ENTRY}},
                {"name": "NO_PROXY", "valueFrom": {"configMapKeyRef": _ENTRY}},
            ]
        }
    },
    "how pods are started": {"pod": {"runtimeClassName": "nvidia", "imagePullSecrets": [{"name": "registry"}]}},
    "every kind of affinity": {"pod": {"affinity": AFFINITY}},
}

BAD_NAMES = {
    "too long": "a" * 41,
    "a digit first": "1st",
    "a dot": "a.b",
    "an end on a hyphen": "a-",
    "an end on a new line": "a\n",
}
BAD_NAME_SENTENCE = "metadata.name must have at most 40 characters, start with a letter"
