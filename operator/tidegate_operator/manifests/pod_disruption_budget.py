"""The budget that lets node drains take one engine at a time, for pools that keep at least two.

Over a single replica a budget would block every drain of its node for ever, so there is none then. An engine that is
not ready anyway may always be evicted: a broken pool must not hold a node.
"""

from tidegate_operator.api.spec import ScalingMode
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.labels import ENGINE_ROLE, metadata, selector
from tidegate_operator.resources import POD_DISRUPTION_BUDGET, Manifest
from tidegate_operator.world.observed import Observed

MIN_REPLICAS = 2


def disruption_budgets(pool: InferencePool) -> tuple[Manifest, ...]:
    """One, or none where the pool may be as small as one replica."""
    return (_budget(pool),) if num_kept(pool) >= MIN_REPLICAS else ()


def unwanted_disruption_budgets(pool: InferencePool, observed: Observed) -> tuple[Manifest, ...]:
    """Of a time when the pool was larger."""
    ours = (each for each in observed.children if each["kind"] == POD_DISRUPTION_BUDGET.kind)
    return () if disruption_budgets(pool) else tuple(ours)


def num_kept(pool: InferencePool) -> int:
    """Replicas that the pool has at its smallest."""
    if pool.spec.suspend:
        return 0
    return pool.spec.replicas if pool.spec.scaling.mode is ScalingMode.MANUAL else pool.spec.min_replicas


def _budget(pool: InferencePool) -> Manifest:
    return {
        "apiVersion": POD_DISRUPTION_BUDGET.api_version,
        "kind": POD_DISRUPTION_BUDGET.kind,
        "metadata": metadata(pool, f"{pool.metadata.name}-engines", ENGINE_ROLE),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": selector(pool.metadata.name)},
        },
    }
