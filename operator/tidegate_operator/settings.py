"""The operator's own settings, read once from the environment by __main__ and passed on by parts.

`TIDEGATE_ENGINE__IMAGE` is `engine.image`: prefix, then the path with two underscores. Lists and objects are JSON. An
unknown TIDEGATE_ variable is an error, so that a misspelt one is not a silent default.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from tidegate_core.launch import RunnerKind
from tidegate_operator.errors import OperatorError

PREFIX = "TIDEGATE_"
DELIMITER = "__"


class BadSettings(OperatorError):
    """The environment holds a wrong or unknown TIDEGATE_ variable: whoever deploys the operator corrects it."""


class _Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class EngineSettings(_Group):
    """What engine and inspection pods are made of."""

    image: str = Field(min_length=1)
    """Image of engine and inspection pods."""
    image_pull_policy: str = Field(default="IfNotPresent", pattern="^(Always|IfNotPresent|Never)$")
    """As in a pod."""
    runner: RunnerKind = RunnerKind.TORCH
    """torch serves the model; sim stands in for it without weights or device, to rehearse rollouts and scaling."""
    sim_preemptions_per_minute: float = Field(default=0.0, ge=0)
    """sim only: preemptions that each replica reports, for rehearsals."""
    pod_template_patch: dict[str, Any] = Field(default={})  # a strategic-merge patch is free-form
    """Merged into every pod template as the last step: the escape hatch for what the resource does not offer."""


class HubSettings(_Group):
    """Where models of hf:// are."""

    endpoint: str = Field(default="", pattern="^(https?://[^ ]+)?$")
    """HF_ENDPOINT of pods that inspect or fetch a model: a mirror. Empty: the hub itself. A pool's pod.env wins."""


class ScrapeSettings(_Group):
    """How engines are asked for their load."""

    interval_seconds: float = Field(default=5.0, gt=0)
    """Between two scrapes of a pool under load."""
    idle_interval_seconds: float = Field(default=60.0, gt=0)
    """Between two scrapes of a pool that has been idle for so long; before that the interval doubles step by step."""
    timeout_seconds: float = Field(default=2.0, gt=0)
    """An engine that has not answered by then is missing from this scrape."""


class ReconcileSettings(_Group):
    """The work queue."""

    resync_seconds: float = Field(default=300.0, gt=0)
    """Every pool is looked at at least this often."""
    workers: int = Field(default=4, ge=1)
    """Pools that are worked on at once."""


class ElectionSettings(_Group):
    """Which of several operators writes."""

    namespace: str = ""
    """Namespace of the Lease that the leader holds. Empty: no election, this is the only operator."""
    name: str = Field(default="tidegate-operator", min_length=1)
    """Name of the Lease."""
    duration_seconds: float = Field(default=15.0, ge=1)
    """A standby takes over when the leader has not renewed for so long."""
    renew_deadline_seconds: float = Field(default=10.0, gt=0)
    """A leader that could not renew for so long ends: before anybody else begins."""
    retry_seconds: float = Field(default=2.0, gt=0)
    """Between two attempts to get or renew the lease."""

    @model_validator(mode="after")
    def _leaders_never_overlap(self) -> Self:
        if not self.retry_seconds < self.renew_deadline_seconds < self.duration_seconds:
            raise ValueError("retry_seconds < renew_deadline_seconds < duration_seconds must hold")
        return self


class MonitoringSettings(_Group):
    """What is made for a Prometheus operator."""

    pod_monitors: bool = False
    """true: a PodMonitor for every pool, where that API is installed."""
    labels: dict[str, str] = Field(default={})
    """More labels of each: those by which your Prometheus finds its monitors."""


class OperatorSettings(BaseSettings):
    """Everything that can be set from outside."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter=DELIMITER,
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
    )

    engine: EngineSettings
    """Engine pods."""
    hub: HubSettings = HubSettings()
    """Models of a hub."""
    scrape: ScrapeSettings = ScrapeSettings()
    """Load reports."""
    reconcile: ReconcileSettings = ReconcileSettings()
    """The work queue."""
    election: ElectionSettings = ElectionSettings()
    """Leader election."""
    namespaces: tuple[str, ...] = ()
    """Namespaces to serve. Empty: the whole cluster, nodes included."""
    drain_token_file: Path = Path("/etc/tidegate/drain/token")
    """File with the token that lets only this operator drain engines."""
    admin_peers: tuple[dict[str, Any], ...] = ()  # free-form: the API server knows what a peer may be
    """Who may reach the admin port of engines, as a NetworkPolicy names peers. Empty: no NetworkPolicy is made."""
    client_peers: tuple[dict[str, Any], ...] = ()  # likewise
    """Who may use the API of engines that have a NetworkPolicy. Empty: everybody."""
    monitoring: MonitoringSettings = MonitoringSettings()
    """Prometheus."""
    prices_file: Path = Path("/etc/tidegate/prices/prices.yaml")
    """What an hour of a device or node costs, by name; without the file pools have no cost."""
    port: int = Field(default=8080, ge=0, le=65535)
    """Probes and metrics of the operator itself."""
    log_level: str = Field(default="INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$")
    """What is logged."""

    @property
    def is_cluster_wide(self) -> bool:
        return not self.namespaces


def variable_names(model: type[BaseModel] = OperatorSettings, prefix: str = PREFIX) -> Iterator[str]:
    """Every environment variable that sets something."""
    for name, field in model.model_fields.items():
        variable = f"{prefix}{name.upper()}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from variable_names(field.annotation, variable + DELIMITER)
        else:
            yield variable


def read_settings(environ: Mapping[str, str]) -> OperatorSettings:
    """Settings of this process, whose environment is `environ`. Raises BadSettings naming each wrong variable."""
    known = set(variable_names())
    unknown = sorted(name for name in environ if name.startswith(PREFIX) and name not in known)
    if unknown:
        raise BadSettings(f"unknown variables {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    try:
        return OperatorSettings()  # type: ignore[call-arg] # the environment gives what has no default
    except ValidationError as error:
        wrong = (f"{PREFIX}{DELIMITER.join(map(str, item['loc'])).upper()}: {item['msg']}" for item in error.errors())
        raise BadSettings("; ".join(wrong)) from error
