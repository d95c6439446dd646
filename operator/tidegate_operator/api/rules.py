"""What a spec must not contradict, each rule twice side by side: as CEL for the API server, as Python for files.

`tidegate plan -f` needs no cluster, yet refuses what the API server would refuse, with the same sentence. A test holds
both forms against the same table of manifests. A sentence tells the user what to do. crd.py puts the CEL into the
schema, manifest.py asks the Python.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from tidegate_core.fit import DEVICE_COUNTS
from tidegate_core.quantity import parse_quantity
from tidegate_operator.api.base import GROUP
from tidegate_operator.api.model import AccessMode, KvCacheDtype
from tidegate_operator.api.pod import OUR_VARIABLES, TOKEN_VARIABLES, Variable
from tidegate_operator.api.structural import Schema
from tidegate_operator.api.v1alpha1 import InferencePool

MAX_NAME_LENGTH = 40  # children append up to 23 characters and must stay within 63
MOST = "8Pi"  # bytes or anything else; what is larger has no exact number in JSON, and no machine
_NAME = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
_SEGMENT = "[A-Za-z0-9_][A-Za-z0-9_.@+=-]*"
_PATH = f"{_SEGMENT}(/{_SEGMENT})*"
_HUB_NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_CLAIM_URI = f"^pvc://[a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/({_PATH})?$"
_HUB_URI = f"^hf://{_HUB_NAME}/{_HUB_NAME}(/({_HUB_NAME}/)*{_HUB_NAME}[.]gguf)?$"
_IMAGE_URI = f"^oci://[A-Za-z0-9][A-Za-z0-9._:/-]{{0,511}}(@sha256:[0-9a-f]{{64}})?(#{_PATH})?$"
_URIS = (_CLAIM_URI, _HUB_URI, _IMAGE_URI)
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_RESOURCE = f"^(cpu|({_LABEL}[.])+{_LABEL}/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)$"


@dataclass(frozen=True)
class Rule:
    """`cel` is about `self`, the node at `path`; `holds` about the whole pool."""

    path: str  # fields with dots; empty for the whole object
    cel: str
    sentence: str
    holds: Callable[[InferencePool], bool]


def _cel_list(names: tuple[str, ...]) -> str:
    return "[" + ", ".join(f"'{name}'" for name in names) + "]"


NAME = Rule(
    "",
    f"size(self.metadata.name) <= {MAX_NAME_LENGTH} && self.metadata.name.matches('{_NAME}')",
    f"metadata.name must have at most {MAX_NAME_LENGTH} characters, start with a letter and hold only a-z, 0-9, -",
    lambda pool: len(pool.metadata.name) <= MAX_NAME_LENGTH and bool(re.fullmatch(_NAME, pool.metadata.name)),
)
MODEL_URI = Rule(
    "spec.model.uri",
    " || ".join(f"self.matches('{uri}')" for uri in _URIS),
    "model.uri must be pvc://CLAIM/PATH (a PersistentVolumeClaim of this namespace and a path inside it), "
    "hf://ORG/NAME or hf://ORG/NAME/FILE.gguf, or oci://IMAGE or oci://IMAGE#PATH",
    lambda pool: any(re.fullmatch(uri, pool.spec.model.uri) for uri in _URIS),
)
HUB_FIELDS = Rule(
    "spec",
    "self.model.uri.startsWith('hf://') || !has(self.model.revision) && !has(self.model.tokenSecretRef) && "
    "!has(self.cache)",
    "model.revision, model.tokenSecretRef and cache are for models of a hub; leave them out, or take an hf:// model",
    lambda pool: (
        pool.spec.model.is_of_hub
        or (pool.spec.model.revision, pool.spec.model.token_secret_ref, pool.spec.cache) == (None, None, None)
    ),
)
IMAGE_FIELDS = Rule(
    "spec.model",
    "self.uri.startsWith('oci://') || !has(self.pullPolicy)",
    "model.pullPolicy is for models in an image; leave it out, or take an oci:// model",
    lambda pool: pool.spec.model.is_image or pool.spec.model.pull_policy is None,
)
CACHE_CAN_BE_FILLED = Rule(
    "spec.cache.persistentVolumeClaim",
    "!has(self.accessModes) || self.accessModes.size() == 0 || self.accessModes.exists(mode, mode != 'ReadOnlyMany')",
    "cache.persistentVolumeClaim.accessModes needs ReadWriteOnce or ReadWriteMany: the model is written once",
    lambda pool: (
        pool.spec.cache is None or set(pool.spec.cache.persistent_volume_claim.modes) != {AccessMode.READ_ONLY_MANY}
    ),
)
CACHE_SIZE = Rule(
    "spec.cache.persistentVolumeClaim",
    f"!has(self.storage) || quantity(string(self.storage)).compareTo(quantity('{MOST}')) <= 0",
    f"cache.persistentVolumeClaim.storage is at most {MOST}",
    lambda pool: (
        pool.spec.cache is None
        or pool.spec.cache.persistent_volume_claim.storage is None
        or _is_possible(pool.spec.cache.persistent_volume_claim.storage)
    ),
)
ACCELERATOR_RESOURCE = Rule(
    "spec.accelerator.resource",
    f"self.matches('{_RESOURCE}')",
    "accelerator.resource must be an extended resource such as nvidia.com/gpu, or cpu for a pool without accelerators",
    lambda pool: bool(re.fullmatch(_RESOURCE, pool.spec.accelerator.resource)),
)
CONTEXT_ORDER = Rule(
    "spec.context",
    "!has(self.min) || !has(self.max) || self.min <= self.max",
    "context.min is larger than context.max; lower min or raise max",
    lambda pool: (pool.spec.context.min or 0) <= (pool.spec.context.max or pool.spec.context.min or 0),
)
SOME_REPLICAS = Rule(
    "spec.replicas",
    "self >= 1",
    "replicas must be at least 1; to stop every replica set suspend to true",
    lambda pool: pool.spec.replicas >= 1,
)
SOME_MINIMUM = Rule(
    "spec.minReplicas",
    "self >= 1",
    "minReplicas must be at least 1; to stop every replica set suspend to true",
    lambda pool: pool.spec.min_replicas >= 1,
)
BOUNDS_ORDER = Rule(
    "spec",
    "!has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
    "minReplicas is larger than maxReplicas; lower minReplicas or raise maxReplicas",
    lambda pool: pool.spec.min_replicas <= (pool.spec.max_replicas or pool.spec.min_replicas),
)
START_WITHIN_MAXIMUM = Rule(
    "spec",
    "self.scaling.mode != 'Auto' || !has(self.maxReplicas) || self.replicas <= self.maxReplicas",
    "replicas is larger than maxReplicas; lower replicas, raise maxReplicas, or set scaling.mode to Manual",
    lambda pool: (
        pool.spec.scaling.mode != "Auto" or pool.spec.replicas <= (pool.spec.max_replicas or pool.spec.replicas)
    ),
)
CPU_HAS_MEMORY = Rule(
    "spec",
    "self.accelerator.resource != 'cpu' || has(self.pod.resources.limits) && 'memory' in self.pod.resources.limits",
    "a cpu pool needs pod.resources.limits.memory: it is the memory of the device, such as 4Gi",
    lambda pool: not pool.spec.accelerator.is_cpu or "memory" in pool.spec.pod.resources.limits,
)
CPU_HAS_NO_DEVICE_MEMORY = Rule(
    "spec",
    "self.accelerator.resource != 'cpu' || !has(self.accelerator.memory)",
    "accelerator.memory does not apply to a cpu pool; set pod.resources.limits.memory instead",
    lambda pool: not pool.spec.accelerator.is_cpu or pool.spec.accelerator.memory is None,
)
CPU_HAS_NO_COUNT = Rule(
    "spec",
    "self.accelerator.resource != 'cpu' || !has(self.accelerator.count)",
    "accelerator.count does not apply to a cpu pool; set pod.resources.limits.cpu to the number of cores instead",
    lambda pool: not pool.spec.accelerator.is_cpu or pool.spec.accelerator.count is None,
)
FP8_NEEDS_A_GPU = Rule(
    "spec",
    "self.accelerator.resource != 'cpu' || !has(self.model.kvCacheDtype) || self.model.kvCacheDtype != 'Fp8'",
    "model.kvCacheDtype Fp8 needs a GPU of compute capability 8.9 or newer; a cpu pool takes Int8, which is as small",
    lambda pool: not pool.spec.accelerator.is_cpu or pool.spec.model.kv_cache_dtype is not KvCacheDtype.FP8,
)
INT8_WEIGHTS_NEED_A_CPU = Rule(
    "spec",
    "self.accelerator.resource == 'cpu' || !has(self.model.quantization)",
    "model.quantization is offered for cpu pools only; leave it out, or set accelerator.resource to cpu",
    lambda pool: pool.spec.accelerator.is_cpu or pool.spec.model.quantization is None,
)
DEVICE_COUNT = Rule(
    "spec.accelerator.count",
    f"self in {list(DEVICE_COUNTS)}",
    f"accelerator.count is one of {', '.join(map(str, DEVICE_COUNTS))}: models are divided evenly, on one node",
    lambda pool: pool.spec.accelerator.count in (None, *DEVICE_COUNTS),
)
DEVICE_MEMORY_SIZE = Rule(
    "spec.accelerator.memory",
    f"quantity(string(self)).compareTo(quantity('{MOST}')) <= 0",
    f"accelerator.memory is at most {MOST}; write the memory of one device, such as 24Gi",
    lambda pool: pool.spec.accelerator.memory is None or _is_possible(pool.spec.accelerator.memory),
)
REQUESTS_SIZE = Rule(
    "spec.pod.resources.requests",
    f"self.all(name, quantity(string(self[name])).compareTo(quantity('{MOST}')) <= 0)",
    f"quantities in pod.resources.requests are at most {MOST}",
    lambda pool: all(map(_is_possible, pool.spec.pod.resources.requests.values())),
)
LIMITS_SIZE = Rule(
    "spec.pod.resources.limits",
    f"self.all(name, quantity(string(self[name])).compareTo(quantity('{MOST}')) <= 0)",
    f"quantities in pod.resources.limits are at most {MOST}",
    lambda pool: all(map(_is_possible, pool.spec.pod.resources.limits.values())),
)
OUR_LABELS = Rule(
    "spec.pod.labels",
    f"self.all(key, !key.startsWith('{GROUP}/'))",
    f"pod.labels under {GROUP}/ belong to the operator; use a prefix of your own",
    lambda pool: not any(map(_is_ours, pool.spec.pod.labels)),
)
OUR_ANNOTATIONS = Rule(
    "spec.pod.annotations",
    f"self.all(key, !key.startsWith('{GROUP}/'))",
    f"pod.annotations under {GROUP}/ belong to the operator; use a prefix of your own",
    lambda pool: not any(map(_is_ours, pool.spec.pod.annotations)),
)
ONE_VALUE = Rule(
    "spec.pod.env",
    "self.all(each, has(each.value) != has(each.valueFrom) && (!has(each.valueFrom) || "
    "has(each.valueFrom.configMapKeyRef) != has(each.valueFrom.secretKeyRef)))",
    "each of pod.env has either a value or a valueFrom with one of configMapKeyRef and secretKeyRef",
    lambda pool: all(map(_has_one_value, pool.spec.pod.env)),
)
OUR_ENVIRONMENT = Rule(
    "spec.pod.env",
    f"!self.exists(each, each.name in {_cel_list(OUR_VARIABLES)})",
    f"pod.env must not set {', '.join(OUR_VARIABLES)}, which the operator sets itself; leave them out",
    lambda pool: not any(each.name in OUR_VARIABLES for each in pool.spec.pod.env),
)
NO_TOKEN_IN_ENVIRONMENT = Rule(
    "spec.pod.env",
    f"!self.exists(each, each.name in {_cel_list(TOKEN_VARIABLES)})",
    f"pod.env must not set {' or '.join(TOKEN_VARIABLES)}; put the token into a Secret and name it in "
    "model.tokenSecretRef",
    lambda pool: not any(each.name in TOKEN_VARIABLES for each in pool.spec.pod.env),
)

RULES = (
    NAME, MODEL_URI, HUB_FIELDS, IMAGE_FIELDS, CACHE_CAN_BE_FILLED, CACHE_SIZE,
    ACCELERATOR_RESOURCE, CONTEXT_ORDER, SOME_REPLICAS, SOME_MINIMUM, BOUNDS_ORDER,
    START_WITHIN_MAXIMUM, CPU_HAS_MEMORY, CPU_HAS_NO_DEVICE_MEMORY, CPU_HAS_NO_COUNT, FP8_NEEDS_A_GPU,
    INT8_WEIGHTS_NEED_A_CPU,
    DEVICE_COUNT, DEVICE_MEMORY_SIZE, REQUESTS_SIZE, LIMITS_SIZE, OUR_LABELS, OUR_ANNOTATIONS, ONE_VALUE,
    OUR_ENVIRONMENT, NO_TOKEN_IN_ENVIRONMENT,
)  # fmt: skip


def _has_one_value(variable: Variable) -> bool:
    source = variable.value_from
    if source is None:
        return variable.value is not None
    return variable.value is None and (source.config_map_key_ref is None) != (source.secret_key_ref is None)


def _is_ours(key: str) -> bool:
    return key.startswith(f"{GROUP}/")


def _is_possible(quantity: str) -> bool:
    return parse_quantity(quantity) <= parse_quantity(MOST)


def broken(pool: InferencePool) -> list[str]:
    """Sentences of the rules that a pool breaks; empty where the API server would take it."""
    return [rule.sentence for rule in RULES if not rule.holds(pool)]


def with_rules(schema: Schema, rules: tuple[Rule, ...] = RULES) -> Schema:
    """The schema of the whole object, each rule at its node; nothing of the argument is changed."""
    here = [{"rule": rule.cel, "message": rule.sentence} for rule in rules if not rule.path]
    below: dict[str, tuple[Rule, ...]] = {}
    for rule in rules:
        first, _, rest = rule.path.partition(".")
        if first:
            below[first] = (*below.get(first, ()), replace(rule, path=rest))
    children = {name: with_rules(schema["properties"][name], inner) for name, inner in below.items()}
    properties = {"properties": {**schema["properties"], **children}} if children else {}
    return {**schema, **properties, **({"x-kubernetes-validations": here} if here else {})}
