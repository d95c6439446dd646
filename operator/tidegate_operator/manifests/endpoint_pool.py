"""The InferencePool of the Gateway API inference extension for a pool that names its endpoint picker.

Its kind is called like ours and is another thing: the pods that a gateway's picker may choose from. Draining pods are
outside its selector, as they are outside the Service's.
https://gateway-api-inference-extension.sigs.k8s.io/reference/spec/
"""

from tidegate_core.telemetry import API_PORT
from tidegate_operator.api.spec import EndpointPickerRef
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.labels import ENGINE_ROLE, SERVING_LABEL, metadata, selector
from tidegate_operator.resources import GIE_POOL, Manifest


def endpoint_pool(pool: InferencePool, picker: EndpointPickerRef) -> Manifest:
    return {
        "apiVersion": GIE_POOL.api_version,
        "kind": GIE_POOL.kind,
        "metadata": metadata(pool, pool.metadata.name, ENGINE_ROLE),
        "spec": {
            "selector": {"matchLabels": {**selector(pool.metadata.name), SERVING_LABEL: "true"}},
            "targetPorts": [{"number": API_PORT}],
            "endpointPickerRef": {
                "name": picker.name,
                "port": {"number": picker.port},
                "failureMode": picker.failure_mode,
            },
        },
    }
