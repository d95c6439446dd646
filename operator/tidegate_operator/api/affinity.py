"""Where a pool's pods prefer or refuse to run, field by field as in a pod.

A part of spec.pod with a file of its own, because Kubernetes' own words for it are many. Written out instead of taken
as a free-form object, so that the API server refuses a misspelt field and `kubectl explain` knows them all.
"""

from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.config import JsonDict

from tidegate_operator.api.base import ApiModel

LabelKey = Annotated[str, Field(min_length=1, max_length=317)]  # prefix, slash, name
LabelValue = Annotated[str, Field(max_length=63)]
Namespace = Annotated[str, Field(min_length=1, max_length=63)]

_ATOMIC: JsonDict = {"x-kubernetes-list-type": "atomic"}


class NodeRequirement(ApiModel):
    """A condition on one label or field of a node."""

    key: LabelKey
    """Label or field it is about."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    """How values are compared."""
    values: tuple[LabelValue, ...] = Field(default=(), max_length=64, json_schema_extra=_ATOMIC)
    """Values of In and NotIn; one number of Gt and Lt; none of the others."""


class NodeTerm(ApiModel):
    """Conditions that one node must all meet."""

    match_expressions: tuple[NodeRequirement, ...] = Field(default=(), max_length=16, json_schema_extra=_ATOMIC)
    """Conditions on labels."""
    match_fields: tuple[NodeRequirement, ...] = Field(default=(), max_length=4, json_schema_extra=_ATOMIC)
    """Conditions on fields, such as metadata.name."""


class NodeTerms(ApiModel):
    """Terms of which one must be met."""

    node_selector_terms: tuple[NodeTerm, ...] = Field(min_length=1, max_length=16, json_schema_extra=_ATOMIC)
    """A node that meets one of them may be chosen."""


class PreferredNodes(ApiModel):
    """A term that is worth something."""

    weight: int = Field(ge=1, le=100)
    """How much."""
    preference: NodeTerm
    """Conditions of the node."""


class NodeAffinity(ApiModel):
    """Which nodes, by their labels."""

    required_during_scheduling_ignored_during_execution: NodeTerms | None = None
    """Only these nodes; sizing goes by them."""
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredNodes, ...] = Field(
        default=(), max_length=16, json_schema_extra=_ATOMIC
    )
    """Rather these nodes."""


class LabelRequirement(ApiModel):
    """A condition on one label of a pod or namespace."""

    key: LabelKey
    """Label it is about."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """How values are compared."""
    values: tuple[LabelValue, ...] = Field(default=(), max_length=64, json_schema_extra=_ATOMIC)
    """Values of In and NotIn; none of the others."""


class LabelSelector(ApiModel):
    """Pods or namespaces by their labels; an empty one selects all."""

    match_labels: dict[str, LabelValue] = Field(default={}, max_length=64)
    """Labels with exactly these values."""
    match_expressions: tuple[LabelRequirement, ...] = Field(default=(), max_length=16, json_schema_extra=_ATOMIC)
    """Conditions on labels."""


class PodTerm(ApiModel):
    """Near or away from which pods."""

    topology_key: LabelKey
    """Node label that says what near means, such as kubernetes.io/hostname."""
    label_selector: LabelSelector | None = None
    """Which pods. Absent: none."""
    namespaces: tuple[Namespace, ...] = Field(default=(), max_length=16, json_schema_extra=_ATOMIC)
    """Namespaces to look in, by name. With no namespaceSelector either: the pool's own."""
    namespace_selector: LabelSelector | None = None
    """Namespaces to look in, by label."""


class PreferredPods(ApiModel):
    """A term that is worth something."""

    weight: int = Field(ge=1, le=100)
    """How much."""
    pod_affinity_term: PodTerm
    """Near or away from which pods."""


class PodAffinity(ApiModel):
    """Pods to be near to, or away from."""

    required_during_scheduling_ignored_during_execution: tuple[PodTerm, ...] = Field(
        default=(), max_length=16, json_schema_extra=_ATOMIC
    )
    """Without exception."""
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredPods, ...] = Field(
        default=(), max_length=16, json_schema_extra=_ATOMIC
    )
    """Where it can be."""


class Affinity(ApiModel):
    """As in a pod."""

    node_affinity: NodeAffinity | None = None
    """Nodes to run on."""
    pod_affinity: PodAffinity | None = None
    """Pods to be near to."""
    pod_anti_affinity: PodAffinity | None = None
    """Pods to be away from; the pool's own have the label tidegate.dev/pool."""

    def as_in_a_pod(self) -> dict[str, Any]:  # JSON of the API
        """What was said and nothing else."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
