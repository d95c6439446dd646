"""The frozen pod template: rendered once for a user's inputs, kept in a ControllerRevision, re-applied verbatim. Pure.

An operator upgrade renders other templates, but inputs have not changed, so nothing rolls; learned values and new
defaults wait for the next rollout that the user causes. The previous revision stays, to go back to.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from tidegate_operator.api.model import ModelSource
from tidegate_operator.api.spec import Drain, EngineUpgrade
from tidegate_operator.api.status import SizingStatus
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.decisions.drain_time import DEFAULT_SECONDS
from tidegate_operator.decisions.engine_version import EngineDefaults
from tidegate_operator.errors import BadRevision
from tidegate_operator.labels import ROLE_LABEL, TEMPLATE_LABEL, TEMPLATE_ROLE
from tidegate_operator.manifests.controller_revision import controller_revision
from tidegate_operator.resources import CONTROLLER_REVISION, Manifest
from tidegate_operator.world.containers import main_container
from tidegate_operator.world.observed import Observed

NUM_KEPT = 2  # the current one and the one before
_HASH_CHARACTERS = 10


class TemplateRevision(BaseModel):
    """A rendered pod template with what belongs to it; the data of a ControllerRevision."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    number: int
    inputs: str  # hash of the user's part
    template: dict[str, Any]  # a pod template: free-form JSON
    sizing: SizingStatus
    engine: str = ""  # EngineDefaults.version; empty in those that an older operator wrote
    snapshot: str = ""  # of a hub's model: ORG/NAME@COMMIT
    drain_seconds: int = DEFAULT_SECONDS
    progress_deadline_seconds: int

    @field_validator("template")
    @classmethod
    def _is_of_an_engine(cls, template: dict[str, Any]) -> dict[str, Any]:
        pod_labels = template.get("metadata", {}).get("labels", {})
        if TEMPLATE_LABEL not in pod_labels or "image" not in main_container(template):
            raise ValueError("not a pod template of an engine")
        return template

    @property
    def template_hash(self) -> str:
        """As in the pods' label."""
        return str(self.template["metadata"]["labels"][TEMPLATE_LABEL])

    @property
    def config_maps(self) -> frozenset[str]:
        """Names of the ConfigMaps its pods mount."""
        volumes = self.template["spec"].get("volumes", ())
        return frozenset(volume["configMap"]["name"] for volume in volumes if "configMap" in volume)

    @property
    def claims(self) -> frozenset[str]:
        """Names of the claims its pods mount."""
        kind = "persistentVolumeClaim"
        volumes = self.template["spec"].get("volumes", ())
        return frozenset(volume[kind]["claimName"] for volume in volumes if kind in volume)

    def to_manifest(self, pool: InferencePool) -> Manifest:
        data = self.model_dump(mode="json", exclude={"name", "number", "sizing"}) | {"sizing": self.sizing.to_wire()}
        return controller_revision(pool, self.name, TEMPLATE_ROLE, number=self.number, data=data)


@dataclass(frozen=True)
class Revisions:
    """Which template applies, and what becomes of the others."""

    current: TemplateRevision | None  # None: nothing has ever fitted, so nothing is deployed
    good: TemplateRevision | None = None  # the last that served
    wish: str = ""  # Wish.key
    is_of_these_inputs: bool = False  # False: the user's change waits, the last good template stays
    apply: tuple[Manifest, ...] = ()
    delete: tuple[Manifest, ...] = ()
    config_maps: frozenset[str] = frozenset()  # those that a kept template mounts


def inputs_hash(pool: InferencePool) -> str:
    """Hash of what the user said about pods. Defaults are left out, so a field added by an upgrade changes nothing."""
    spec = pool.spec
    drain = spec.drain.model_copy(update={"timeout_seconds": None}) if _is_old_default(spec.drain) else spec.drain
    parts = (_served(pool), spec.context, spec.traffic, spec.accelerator, spec.queue, drain, spec.pod)
    said = [part.model_dump(mode="json", by_alias=True, exclude_defaults=True) for part in parts]
    said.append({"itlMilliseconds": spec.objectives.itl_milliseconds})
    if access := spec.access.model_dump(mode="json", by_alias=True, exclude_defaults=True):
        said.append({"access": access})
    engine_parts = {"upgrade"}  # who decides about the engine's version changes nothing by itself
    if engine := spec.engine.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=engine_parts):
        said.append({"engine": engine})
    if spec.cache is not None:
        said.append({"cache": {}})  # its size and its class are the claim's matter
    return content_hash(said)


def _served(pool: InferencePool) -> ModelSource:
    """Without what only the download Job needs: a new token replaces no pod that does not see it."""
    model = pool.spec.model
    return model if pool.spec.cache is None else model.model_copy(update={"token_secret_ref": None})


def _is_old_default(drain: Drain) -> bool:
    """The API server wrote it into pools while the field had a default: they said nothing."""
    return drain.timeout_seconds == DEFAULT_SECONDS


@dataclass(frozen=True)
class Wish:
    """What is asked of pods: the user's inputs and, for a pool that follows, the operator's engine."""

    inputs: str
    engine: str  # empty for a pinned pool

    @classmethod
    def of(cls, pool: InferencePool, defaults: EngineDefaults) -> "Wish":
        follows = pool.spec.engine.upgrade is EngineUpgrade.FOLLOW
        return cls(inputs_hash(pool), defaults.version if follows else "")

    @property
    def key(self) -> str:
        return f"{self.inputs}-{self.engine}"

    def is_met_by(self, revision: TemplateRevision) -> bool:
        return revision.inputs == self.inputs and self.engine in ("", revision.engine)


@dataclass(frozen=True)
class Deployed:
    """What the Deployment says of templates, by hash, and of wishes, by key."""

    template: str = ""
    good: str = ""
    given_up: str | None = None


def choose_revision(
    pool: InferencePool,
    observed: Observed,
    wish: Wish,
    deployed: Deployed,
    render: Callable[[int], TemplateRevision] | None,
) -> Revisions:
    """The newest revision or the deployed one, whichever is what is wished; else a new one, if `render` can make one.

    Where it cannot, or the wish was given up, the last good one stays.
    """
    stored = observed.of_role(CONTROLLER_REVISION.kind, ROLE_LABEL, TEMPLATE_ROLE)
    readable = stored_revisions(observed)
    running, good = _of_template(readable, deployed.template), _of_template(readable, deployed.good)
    is_given_up = good is not None and deployed.given_up == wish.key
    known = [each for each in (*readable[-1:], running) if each is not None]
    current = None if is_given_up else next(filter(wish.is_met_by, known), None)
    is_current = current is not None
    apply: tuple[Manifest, ...] = ()
    if is_given_up:
        current = good
    elif current is None and render is not None:
        current = render(max((each["revision"] for each in stored), default=0) + 1)
        is_current, apply = True, (current.to_manifest(pool),)
        readable.append(current)
    current = current or running or (readable[-1] if readable else None)
    used = {each.name for each in (current, running, good) if each is not None}
    kept = [*readable[-NUM_KEPT:], *(each for each in readable[:-NUM_KEPT] if each.name in used)]
    names = {revision.name for revision in kept}
    return Revisions(
        current=current,
        good=good,
        wish=wish.key,
        is_of_these_inputs=is_current,
        apply=apply,
        delete=tuple(each for each in stored if each["metadata"]["name"] not in names),
        config_maps=frozenset().union(*(revision.config_maps for revision in kept)),
    )


def stored_revisions(observed: Observed) -> list[TemplateRevision]:
    """Those that can be read, oldest first."""
    stored = observed.of_role(CONTROLLER_REVISION.kind, ROLE_LABEL, TEMPLATE_ROLE)
    return sorted(filter(None, map(_readable, stored)), key=lambda revision: revision.number)


def _of_template(revisions: list[TemplateRevision], template_hash: str) -> TemplateRevision | None:
    """The newest with that template."""
    return next((each for each in reversed(revisions) if each.template_hash == template_hash), None)


def read_revision(manifest: Manifest) -> TemplateRevision:
    """Raises BadRevision when the data is not what render_revision writes."""
    try:
        data = {**manifest["data"], "name": manifest["metadata"]["name"], "number": manifest["revision"]}
        revision = TemplateRevision.model_validate(data)
    except (ValidationError, KeyError, TypeError, AttributeError) as error:
        raise BadRevision(f"ControllerRevision {manifest['metadata']['name']} is not one of ours: {error}") from error
    return revision


def _readable(manifest: Manifest) -> TemplateRevision | None:
    """An unreadable revision counts as absent: its inputs are rendered anew under the next number."""
    try:
        return read_revision(manifest)
    except BadRevision:
        return None


def content_hash(value: object) -> str:
    """Short, and the same for the same JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()[:_HASH_CHARACTERS]
