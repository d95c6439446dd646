"""The Deployment that keeps the engine pods. `replicas` is always ours: one writer, never null."""

from tidegate_operator.api.spec import RolloutStrategy
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.labels import (
    DESIRED_ANNOTATION,
    ENGINE_ROLE,
    RETRIED_ANNOTATION,
    ROLLOUT_ANNOTATION,
    metadata,
    selector,
)
from tidegate_operator.resources import DEPLOYMENT, Manifest

REVISION_HISTORY_LIMIT = 2  # ReplicaSets; our own ControllerRevisions hold the templates
NO_DEADLINE_SECONDS = 2**31 - 1  # rollout.py has its own, which pauses while a node boots
ROLLING_UPDATE = {
    RolloutStrategy.SURGE: {"maxSurge": 1, "maxUnavailable": 0},
    RolloutStrategy.REPLACE: {"maxSurge": 0, "maxUnavailable": 1},
}


def deployment(
    pool: InferencePool,
    template: Manifest,
    *,
    num_replicas: int,
    num_desired: int,
    strategy: RolloutStrategy,
    rollout_memory: str,
    retried: str = "",
) -> Manifest:
    """`num_replicas` is what runs now, `num_desired` what was decided; they differ while surplus replicas drain."""
    annotations = {DESIRED_ANNOTATION: str(num_desired), ROLLOUT_ANNOTATION: rollout_memory}
    if retried:
        annotations[RETRIED_ANNOTATION] = retried
    return {
        "apiVersion": DEPLOYMENT.api_version,
        "kind": DEPLOYMENT.kind,
        "metadata": metadata(pool, pool.metadata.name, ENGINE_ROLE, annotations),
        "spec": {
            "replicas": num_replicas,
            "selector": {"matchLabels": selector(pool.metadata.name)},
            "revisionHistoryLimit": REVISION_HISTORY_LIMIT,
            "progressDeadlineSeconds": NO_DEADLINE_SECONDS,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": ROLLING_UPDATE[strategy]},
            "template": template,
        },
    }
