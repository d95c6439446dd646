"""CustomResourceDefinitions of neighbours, cut down to the fields that the operator uses, required ones kept.

What they do not have would be dropped by the API server or refused, so a field that the operator makes up is noticed.
"""

from typing import Any

_STRING, _INTEGER = {"type": "string"}, {"type": "integer"}
_LABELS = {"type": "object", "additionalProperties": _STRING}
_ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def _object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties} | ({"required": list(required)} if required else {})


def _crd(group: str, version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    plural = f"{kind.lower()}s"
    schema = {"type": "object", "properties": {"spec": spec}, "required": ["spec"]}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    approved = {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/gateway-api-inference-extension"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", "annotations": approved},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [served],
        },
    }


_PICKER = _object(
    ("name", "port"), name=_STRING, port=_object(("number",), number=_INTEGER),
    failureMode={"type": "string", "enum": ["FailOpen", "FailClose"]},
)  # fmt: skip
ENDPOINT_POOLS = _crd(
    "inference.networking.k8s.io", "v1", "InferencePool",
    _object(
        ("selector", "targetPorts", "endpointPickerRef"),
        selector=_object(("matchLabels",), matchLabels=_LABELS),
        targetPorts={"type": "array", "minItems": 1, "maxItems": 8, "items": _object(("number",), number=_INTEGER)},
        endpointPickerRef=_PICKER,
    ),
)  # fmt: skip
POD_MONITORS = _crd(
    "monitoring.coreos.com", "v1", "PodMonitor",
    _object(
        ("selector", "podMetricsEndpoints"),
        selector=_object(matchLabels=_LABELS),
        podMetricsEndpoints={"type": "array", "items": _object(
            port=_STRING, path=_STRING,
            relabelings={"type": "array", "items": _object(targetLabel=_STRING, replacement=_STRING)},
        )},
    ),
)  # fmt: skip
SCALED_OBJECTS = _crd("keda.sh", "v1alpha1", "ScaledObject", _ANYTHING)
NEIGHBOURS = (ENDPOINT_POOLS, POD_MONITORS, SCALED_OBJECTS)
