"""The NetworkPolicy around a pool's pods: who may use the API, and who the admin port.

The admin port tells what the engine does and takes drains; a drain needs the operator's token, but load and metrics
are nobody else's business either. Kubelets' probes come from the node itself, which no policy shuts out. Egress is left
alone: what an engine may reach is the cluster's decision.
"""

from dataclasses import dataclass

from tidegate_core.telemetry import ADMIN_PORT, API_PORT
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.labels import ENGINE_ROLE, POOL_LABEL, metadata
from tidegate_operator.resources import NETWORK_POLICY, Manifest
from tidegate_operator.world.observed import Observed


@dataclass(frozen=True)
class Peers:
    """Who may reach what, as a NetworkPolicy names peers; from the operator's settings."""

    admin: tuple[Manifest, ...] = ()  # nobody: no policy is made
    clients: tuple[Manifest, ...] = ()  # nobody: everybody


NO_PEERS = Peers()


def network_policies(pool: InferencePool, peers: Peers) -> tuple[Manifest, ...]:
    """One, or none where the operator's settings name nobody: then ports are as open as the namespace leaves them."""
    return (_policy(pool, peers),) if peers.admin else ()


def unwanted_network_policies(observed: Observed, peers: Peers) -> tuple[Manifest, ...]:
    """Of a time when the settings still named somebody."""
    ours = (each for each in observed.children if each["kind"] == NETWORK_POLICY.kind)
    return () if peers.admin else tuple(ours)


def _policy(pool: InferencePool, peers: Peers) -> Manifest:
    from_clients = {"from": list(peers.clients)} if peers.clients else {}
    return {
        "apiVersion": NETWORK_POLICY.api_version,
        "kind": NETWORK_POLICY.kind,
        "metadata": metadata(pool, f"{pool.metadata.name}-pods", ENGINE_ROLE),
        "spec": {
            "podSelector": {"matchLabels": {POOL_LABEL: pool.metadata.name}},  # inspections too
            "policyTypes": ["Ingress"],
            "ingress": [
                {"ports": [{"protocol": "TCP", "port": API_PORT}], **from_clients},
                {"ports": [{"protocol": "TCP", "port": ADMIN_PORT}], "from": list(peers.admin)},
            ],
        },
    }
