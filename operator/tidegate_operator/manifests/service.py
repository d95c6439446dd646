"""The Service in front of the serving engines."""

from tidegate_core.telemetry import API_PORT
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.labels import ENGINE_ROLE, SERVING_LABEL, metadata, selector
from tidegate_operator.resources import SERVICE, Manifest


def service(pool: InferencePool) -> Manifest:
    """A ClusterIP on the API port; draining pods are outside its selector."""
    return {
        "apiVersion": SERVICE.api_version,
        "kind": SERVICE.kind,
        "metadata": metadata(pool, pool.metadata.name, ENGINE_ROLE),
        "spec": {
            "type": "ClusterIP",
            "selector": {**selector(pool.metadata.name), SERVING_LABEL: "true"},
            "ports": [{"name": "http", "port": API_PORT, "protocol": "TCP", "targetPort": "api"}],
        },
    }


def endpoint(pool: InferencePool) -> str:
    """Base URL of the OpenAI API inside the cluster."""
    return f"http://{pool.metadata.name}.{pool.metadata.namespace}.svc:{API_PORT}/v1"
