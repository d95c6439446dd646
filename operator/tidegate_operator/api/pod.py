"""What a user may say about a pool's pods: spec.pod, spelled as in a pod.

Only what placing and starting them needs: no containers, volumes or security settings, so that every pod stays
restricted and the CRD stays small. What is missing here, the operator's settings can patch for a whole cluster.
"""

from typing import Annotated, Literal

from pydantic import Field

from tidegate_operator.api.affinity import Affinity
from tidegate_operator.api.base import ApiModel, Quantity
from tidegate_operator.api.references import ConfigMapKey, SecretKey, SecretName

OUR_VARIABLES = ("HOME", "HF_HUB_OFFLINE", "HF_HOME", "HF_HUB_CACHE")  # set by the operator, in one pod or another
TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")  # secrets are mounted as files, never in the environment

Labels = Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=64)]


class Toleration(ApiModel):
    """As in a pod."""

    key: str | None = Field(default=None, max_length=316)
    """Taint key; absent with operator Exists: every taint."""
    operator: Literal["Equal", "Exists"] | None = None
    """Equal compares the value, Exists does not. Absent: Equal."""
    value: str | None = Field(default=None, max_length=63)
    """Taint value."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Absent: every effect."""
    toleration_seconds: int | None = None
    """How long a NoExecute taint is borne."""


class Resources(ApiModel):
    """Requests and limits of the engine container, as in a pod; the accelerator is added by the operator."""

    requests: dict[str, Quantity] = Field(default={}, max_length=16)
    """Absent: computed from the model."""
    limits: dict[str, Quantity] = Field(default={}, max_length=16)
    """For a cpu pool `memory` is the size of the device and `cpu` the number of threads."""


class VariableSource(ApiModel):
    """Where a variable's value comes from; one of both."""

    config_map_key_ref: ConfigMapKey | None = None
    """An entry of a ConfigMap."""
    secret_key_ref: SecretKey | None = None
    """An entry of a Secret, such as a proxy's address with a password. A change of it reaches pods only when they are
    replaced."""


class Variable(ApiModel):
    """One environment variable."""

    name: str = Field(min_length=1, max_length=256, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Its name. Those that the operator sets itself are refused."""
    value: str | None = Field(default=None, max_length=4096)
    """Its value in plain text."""
    value_from: VariableSource | None = None
    """Its value from elsewhere."""


class PodSettings(ApiModel):
    """What the pool's pods need beyond what the operator chooses; spelled as in a pod."""

    node_selector: Labels = Field(default={})
    """Labels a node must have."""
    tolerations: tuple[Toleration, ...] = Field(
        default=(), max_length=32, json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """Taints that are borne; the accelerator's own taint always is."""
    affinity: Affinity | None = None
    """Nodes and pods to be near to or away from."""
    priority_class_name: str | None = Field(default=None, max_length=253)
    """Absent: the cluster's default."""
    runtime_class_name: str | None = Field(default=None, min_length=1, max_length=253)
    """RuntimeClass of the pods, such as nvidia where it is not the nodes' default. Absent: the nodes' default."""
    image_pull_secrets: tuple[SecretName, ...] = Field(
        default=(),
        max_length=8,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    """Secrets with which the nodes pull the images of the pods."""
    env: tuple[Variable, ...] = Field(
        default=(),
        max_length=32,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    """More environment variables, for engines and the inspection alike: NCCL_DEBUG, HTTPS_PROXY and the like."""
    labels: Labels = Field(default={})
    """More labels for the pods."""
    annotations: dict[str, str] = Field(default={}, max_length=64)
    """More annotations for the pods."""
    resources: Resources = Resources()
    """Requests and limits of the engine container."""
