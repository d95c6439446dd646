"""The frozen pod template: rendered once for a user's inputs, kept in a ControllerRevision, re-applied verbatim. Pure.

An operator upgrade renders other templates, but inputs have not changed, so nothing rolls; learned values and new
defaults wait for the next rollout that the user causes. The previous revision stays, to go back to.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from tidegate_core.fit import Fit
from tidegate_core.launch import Device, EngineLaunch, RunnerKind
from tidegate_operator.api.status import SizingStatus
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.errors import BadRevision
from tidegate_operator.extra_args import with_extra_args
from tidegate_operator.fitting import kv_dtype, quantization, sizing_status
from tidegate_operator.manifests.config_map import CHAT_TEMPLATE_FILE, chat_template_name
from tidegate_operator.manifests.controller_revision import controller_revision
from tidegate_operator.manifests.deployment import RolloutStrategy, rollout_strategy
from tidegate_operator.manifests.inspection_job import model_path
from tidegate_operator.manifests.labels import ROLE_LABEL, TEMPLATE_LABEL, TEMPLATE_ROLE
from tidegate_operator.manifests.merge import merge
from tidegate_operator.manifests.pod import API_KEYS_FILE, Runtime, engine_template, startup_seconds
from tidegate_operator.manifests.resources import engine_resources
from tidegate_operator.observed import Observed
from tidegate_operator.resources import CONTROLLER_REVISION, Manifest

NUM_KEPT = 2  # the current one and the one before
SCHEDULING_ALLOWANCE_SECONDS = 600  # a node that boots, an image that is pulled
_HASH_CHARACTERS = 10


@dataclass(frozen=True)
class EngineDefaults:
    """What the operator's settings contribute to a template when it is rendered."""

    runtime: Runtime
    runner: RunnerKind = RunnerKind.TORCH
    drain_token_sha256: tuple[str, ...] = ()
    sim_preemptions_per_minute: float = 0.0


class TemplateRevision(BaseModel):
    """A rendered pod template with what belongs to it; the data of a ControllerRevision."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    number: int
    inputs: str  # hash of the user's part
    template: dict[str, Any]  # a pod template: free-form JSON
    sizing: SizingStatus
    max_surge: int
    max_unavailable: int
    progress_deadline_seconds: int

    @property
    def template_hash(self) -> str:
        """As in the pods' label."""
        return str(self.template["metadata"]["labels"][TEMPLATE_LABEL])

    @property
    def strategy(self) -> RolloutStrategy:
        return RolloutStrategy(self.max_surge, self.max_unavailable)

    @property
    def config_maps(self) -> frozenset[str]:
        """Names of the ConfigMaps its pods mount."""
        volumes = self.template["spec"].get("volumes", ())
        return frozenset(volume["configMap"]["name"] for volume in volumes if "configMap" in volume)

    def to_manifest(self, pool: InferencePool) -> Manifest:
        data = self.model_dump(mode="json", exclude={"name", "number", "sizing"}) | {"sizing": self.sizing.to_wire()}
        return controller_revision(pool, self.name, TEMPLATE_ROLE, number=self.number, data=data)


@dataclass(frozen=True)
class Revisions:
    """Which template applies, and what becomes of the others."""

    current: TemplateRevision | None  # None: nothing has ever fitted, so nothing is deployed
    is_of_these_inputs: bool = False  # False: the user's change waits, the last good template stays
    apply: tuple[Manifest, ...] = ()
    delete: tuple[Manifest, ...] = ()
    config_maps: frozenset[str] = frozenset()  # those that a kept template mounts


def inputs_hash(pool: InferencePool) -> str:
    """Hash of what the user said about pods. Defaults are left out, so a field added by an upgrade changes nothing."""
    spec = pool.spec
    parts = (spec.model, spec.context, spec.traffic, spec.accelerator, spec.queue, spec.drain, spec.pod)
    said = [part.model_dump(mode="json", by_alias=True, exclude_defaults=True) for part in parts]
    said.append({"itlMilliseconds": spec.objectives.itl_milliseconds})
    if access := spec.access.model_dump(mode="json", by_alias=True, exclude_defaults=True):
        said.append({"access": access})
    if engine := spec.engine.model_dump(mode="json", by_alias=True, exclude_defaults=True):
        said.append({"engine": engine})
    return _hash(said)


def choose_revision(
    pool: InferencePool, observed: Observed, render: Callable[[int], TemplateRevision] | None
) -> Revisions:
    """The newest revision while the inputs are its own; else a new one, if `render` can make one (the model fits)."""
    stored = observed.of_role(CONTROLLER_REVISION.kind, ROLE_LABEL, TEMPLATE_ROLE)
    readable = sorted(filter(None, map(_readable, stored)), key=lambda revision: revision.number)
    newest = readable[-1] if readable else None
    is_current = newest is not None and newest.inputs == inputs_hash(pool)
    apply: tuple[Manifest, ...] = ()
    if not is_current and render is not None:
        number = max((each["revision"] for each in stored), default=0) + 1
        newest, is_current = render(number), True
        readable.append(newest)
        apply = (newest.to_manifest(pool),)
    kept = readable[-NUM_KEPT:]
    names = {revision.name for revision in kept}
    return Revisions(
        current=newest,
        is_of_these_inputs=is_current,
        apply=apply,
        delete=tuple(each for each in stored if each["metadata"]["name"] not in names),
        config_maps=frozenset().union(*(revision.config_maps for revision in kept)),
    )


def render_revision(pool: InferencePool, fit: Fit, defaults: EngineDefaults, number: int) -> TemplateRevision:
    """A new template from the user's spec, this operator's defaults and a sizing that fits."""
    launch = with_extra_args(engine_launch(pool, fit, defaults), pool)
    template = engine_template(
        pool,
        launch,
        engine_resources(pool, fit.resident_bytes),
        defaults.runtime,
        weight_bytes=fit.weight_bytes,
        chat_template_map=chat_template_name(pool),
    )
    strategy = rollout_strategy(is_cpu=pool.spec.accelerator.is_cpu)
    return TemplateRevision(
        name=f"{pool.metadata.name}-{number}",
        number=number,
        inputs=inputs_hash(pool),
        template=merge(template, {"metadata": {"labels": {TEMPLATE_LABEL: _hash(template)}}}),
        sizing=sizing_status(pool, fit),
        max_surge=strategy.max_surge,
        max_unavailable=strategy.max_unavailable,
        progress_deadline_seconds=startup_seconds(fit.weight_bytes) + SCHEDULING_ALLOWANCE_SECONDS,
    )


def engine_launch(pool: InferencePool, fit: Fit, defaults: EngineDefaults) -> EngineLaunch:
    """The engine's arguments, as far as the operator sets them.

    On CUDA the KV pool is measured after loading; elsewhere nothing can be measured, so the planned size is given.
    """
    spec = pool.spec
    measures_memory = not spec.accelerator.is_cpu and defaults.runner is RunnerKind.TORCH
    return EngineLaunch(
        model=model_path(pool),
        device=Device.CPU if spec.accelerator.is_cpu else Device.CUDA,
        runner=defaults.runner,
        context=fit.context,
        slots=fit.slots,
        kv_memory=None if measures_memory else fit.kv_pool_bytes,
        kv_dtype=kv_dtype(pool),
        quantization=quantization(pool),
        max_queue=spec.queue.max_requests,
        max_queue_tokens=spec.queue.max_tokens,
        max_wait_seconds=spec.queue.max_wait_seconds,
        prompt_tokens=spec.traffic.prompt_tokens,
        output_tokens=spec.traffic.output_tokens,
        itl_ms=spec.objectives.itl_milliseconds,
        served_name=spec.served_names(pool.metadata.name),
        chat_template=CHAT_TEMPLATE_FILE if spec.model.chat_template else None,
        api_keys_file=API_KEYS_FILE if spec.access.api_keys_secret_ref else None,
        trust_fairness_header=spec.access.trust_fairness_header,
        drain_seconds=spec.drain.timeout_seconds,
        drain_token_sha256=defaults.drain_token_sha256,
        sim_preemptions_per_minute=defaults.sim_preemptions_per_minute if defaults.runner is RunnerKind.SIM else 0.0,
    )


def read_revision(manifest: Manifest) -> TemplateRevision:
    """Raises BadRevision when the data is not what render_revision writes."""
    try:
        data = {**manifest["data"], "name": manifest["metadata"]["name"], "number": manifest["revision"]}
        revision = TemplateRevision.model_validate(data)
    except (ValidationError, KeyError, TypeError) as error:
        raise BadRevision(f"ControllerRevision {manifest['metadata']['name']} is not one of ours: {error}") from error
    return revision


def _readable(manifest: Manifest) -> TemplateRevision | None:
    """An unreadable revision counts as absent: its inputs are rendered anew under the next number."""
    try:
        return read_revision(manifest)
    except BadRevision:
        return None


def _hash(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()[:_HASH_CHARACTERS]
