"""The NetworkPolicy around a pool's pods: everybody may use the API, only the named peers the admin port.

The admin port tells what the engine does and takes drains; a drain needs the operator's token, but load and metrics
are nobody else's business either. Kubelets' probes come from the node itself, which no policy shuts out. Egress is left
alone: what an engine may reach is the cluster's decision.
"""

from tidegate_core.telemetry import ADMIN_PORT, API_PORT
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.manifests.labels import ENGINE_ROLE, POOL_LABEL, metadata
from tidegate_operator.observed import Observed
from tidegate_operator.resources import NETWORK_POLICY, Manifest


def network_policies(pool: InferencePool, admin_peers: tuple[Manifest, ...]) -> tuple[Manifest, ...]:
    """One, or none where the operator's settings name nobody: then ports are as open as the namespace leaves them."""
    return (_policy(pool, admin_peers),) if admin_peers else ()


def unwanted_network_policies(observed: Observed, admin_peers: tuple[Manifest, ...]) -> tuple[Manifest, ...]:
    """Of a time when the settings still named somebody."""
    ours = (each for each in observed.children if each["kind"] == NETWORK_POLICY.kind)
    return () if admin_peers else tuple(ours)


def _policy(pool: InferencePool, admin_peers: tuple[Manifest, ...]) -> Manifest:
    return {
        "apiVersion": NETWORK_POLICY.api_version,
        "kind": NETWORK_POLICY.kind,
        "metadata": metadata(pool, f"{pool.metadata.name}-pods", ENGINE_ROLE),
        "spec": {
            "podSelector": {"matchLabels": {POOL_LABEL: pool.metadata.name}},  # inspections too
            "policyTypes": ["Ingress"],
            "ingress": [
                {"ports": [{"protocol": "TCP", "port": API_PORT}]},
                {"ports": [{"protocol": "TCP", "port": ADMIN_PORT}], "from": list(admin_peers)},
            ],
        },
    }
