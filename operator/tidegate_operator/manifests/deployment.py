"""The Deployment that keeps the engine pods. `replicas` is always ours: one writer, never null."""

from dataclasses import dataclass

from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.manifests.labels import DESIRED_ANNOTATION, ENGINE_ROLE, metadata, selector
from tidegate_operator.resources import DEPLOYMENT, Manifest

REVISION_HISTORY_LIMIT = 2  # ReplicaSets; our own ControllerRevisions hold the templates


@dataclass(frozen=True)
class RolloutStrategy:
    """How pods of an older template are replaced."""

    max_surge: int
    max_unavailable: int


def rollout_strategy(*, is_cpu: bool) -> RolloutStrategy:
    """In place for accelerators: none may be assumed spare, and a surge that finds none would wait for ever.

    CPU pools can almost always surge.
    """
    return RolloutStrategy(1, 0) if is_cpu else RolloutStrategy(0, 1)


def deployment(
    pool: InferencePool,
    template: Manifest,
    *,
    num_replicas: int,
    num_desired: int,
    strategy: RolloutStrategy,
    progress_deadline_seconds: int,
) -> Manifest:
    """`num_replicas` is what runs now, `num_desired` what was decided; they differ while surplus replicas drain."""
    return {
        "apiVersion": DEPLOYMENT.api_version,
        "kind": DEPLOYMENT.kind,
        "metadata": metadata(pool, pool.metadata.name, ENGINE_ROLE, {DESIRED_ANNOTATION: str(num_desired)}),
        "spec": {
            "replicas": num_replicas,
            "selector": {"matchLabels": selector(pool.metadata.name)},
            "revisionHistoryLimit": REVISION_HISTORY_LIMIT,
            "progressDeadlineSeconds": progress_deadline_seconds,
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": strategy.max_surge, "maxUnavailable": strategy.max_unavailable},
            },
            "template": template,
        },
    }
