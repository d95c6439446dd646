"""Which engine a pool asks for: its own image or the operator's, pinned or following. Pure.

A pinned pool gets a newer operator's engine with the next change its user makes. One that follows also rolls when what
the operator says about engines changes; drain tokens, which pods of any age share, are no part of that.
"""

import json
from dataclasses import dataclass, replace
from hashlib import sha256

from tidegate_core.launch import RunnerKind
from tidegate_operator.api.status import EngineStatus
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.manifests.pod import Runtime
from tidegate_operator.resources import Manifest
from tidegate_operator.world.containers import main_container

_HASH_CHARACTERS = 10


@dataclass(frozen=True)
class EngineDefaults:
    """What the operator's settings contribute to a template when it is rendered."""

    runtime: Runtime
    runner: RunnerKind = RunnerKind.TORCH
    drain_token_sha256: tuple[str, ...] = ()
    sim_preemptions_per_minute: float = 0.0

    def of_pool(self, pool: InferencePool) -> "EngineDefaults":
        """With the image that the pool chose for itself."""
        if pool.spec.engine.image is None:
            return self
        return replace(self, runtime=replace(self.runtime, image=pool.spec.engine.image))

    @property
    def version(self) -> str:
        """Changes when an engine rendered now would not be the one rendered before."""
        runtime = self.runtime
        said = (
            runtime.image, runtime.image_pull_policy, runtime.pod_patch, self.runner, self.sim_preemptions_per_minute,
        )  # fmt: skip
        return sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:_HASH_CHARACTERS]


def engine_status(template: Manifest, defaults: EngineDefaults) -> EngineStatus:
    """The image of a pool's template beside the one it would get today."""
    image = main_container(template)["image"]
    available = defaults.runtime.image
    return EngineStatus(image=image, available_image=None if available == image else available)
