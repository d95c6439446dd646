"""Autoscalers and endpoint pickers of others that lay hands on a pool, and the line that changes that. Pure.

    HorizontalPodAutoscaler, ScaledObject ─▶ our Deployment     never: the operator owns its replicas
                                          ─▶ the pool           only in Manual mode, and only one
    InferencePool of inference.networking ─▶ the pool's pods    only those that take traffic

surroundings.py reads them, integration.py asks here. Who merely stands nearby is nobody's business.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegate_operator.api.base import GROUP, KIND
from tidegate_operator.api.spec import ScalingMode
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.labels import ENGINE_ROLE, SERVING_LABEL, labels
from tidegate_operator.resources import DEPLOYMENT, SCALED_OBJECT, Manifest, Resource
from tidegate_operator.world.prices import PriceList

_SELECTOR_LINE = f'add {SERVING_LABEL}: "true" to its spec.selector.matchLabels'


@dataclass(frozen=True)
class Scaler:
    """Something that sets the replicas of an object of its namespace."""

    kind: str
    name: str
    namespace: str
    target: tuple[str, str, str]  # API group, kind, name

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True)
class Picker:
    """An InferencePool of the Gateway API inference extension, which sends requests to the pods it selects."""

    name: str
    namespace: str
    selector: Mapping[str, str]
    owner_uid: str  # of the object that controls it; empty: a person made it


@dataclass(frozen=True)
class Neighbourhood:
    """One pool's part. `optional` are objects of optional kinds that have its name, as its children do."""

    scalers: tuple[Scaler, ...] = ()
    pickers: tuple[Picker, ...] = ()
    optional: tuple[Manifest, ...] = ()
    installed: frozenset[Resource] = frozenset()  # optional APIs that are there
    unseen: Mapping[Resource, str] = field(default_factory=dict)  # optional APIs that cannot be looked at, and why
    prices: PriceList | None = None


NOBODY = Neighbourhood()


def read_scaler(item: Manifest) -> Scaler | None:
    """None for an autoscaler that KEDA made: its ScaledObject is named instead."""
    metadata = item["metadata"]
    if any(owner["kind"] == SCALED_OBJECT.kind for owner in metadata.get("ownerReferences", ())):
        return None
    target = item.get("spec", {}).get("scaleTargetRef", {})
    group = target.get("apiVersion", DEPLOYMENT.api_version).rpartition("/")[0]
    kind, name = target.get("kind", DEPLOYMENT.kind), target.get("name", "")  # KEDA's defaults
    return Scaler(item["kind"], metadata["name"], metadata["namespace"], (group, kind, name))


def read_picker(item: Manifest) -> Picker | None:
    """None for one that heeds the label of those who take traffic: it can do no harm."""
    metadata = item["metadata"]
    owners = (each["uid"] for each in metadata.get("ownerReferences", ()) if each.get("controller"))
    selector = item.get("spec", {}).get("selector", {}).get("matchLabels", {})
    if SERVING_LABEL in selector:
        return None
    return Picker(metadata["name"], metadata["namespace"], selector, next(owners, ""))


def foreign_scalers(pool: InferencePool, scalers: tuple[Scaler, ...]) -> str:
    """Who sets replicas that are not theirs to set, and what to change; empty: nobody."""
    name = pool.metadata.name
    ours = [each for each in scalers if each.namespace == pool.metadata.namespace]
    on_deployment = [each for each in ours if each.target == (DEPLOYMENT.group, DEPLOYMENT.kind, name)]
    on_pool = [each for each in ours if each.target == (GROUP, KIND, name)]
    said = []
    if on_deployment:
        said.append(
            f"{_names(on_deployment)}: target Deployment {name} belongs to the operator; set spec.scaleTargetRef to "
            f"{{apiVersion: {pool.api_version}, kind: {KIND}, name: {name}}} and the pool's spec.scaling.mode to Manual"
        )
    if on_pool and pool.spec.scaling.mode is ScalingMode.AUTO:
        said.append(
            f"{_names(on_pool)}: sets spec.replicas, but scaling.mode Auto decides; "
            "set spec.scaling.mode: Manual, or delete it"
        )
    elif len(on_pool) > 1:
        said.append(f"{_names(on_pool)}: each sets spec.replicas, so the size goes back and forth; keep one of them")
    return "; ".join(said)


def foreign_pickers(pool: InferencePool, pickers: tuple[Picker, ...]) -> str:
    """Who sends requests to replicas that leave, and what to change; empty: nobody."""
    pods = {**pool.spec.pod.labels, **labels(pool, ENGINE_ROLE), SERVING_LABEL: "true"}
    blind = [
        each
        for each in pickers
        if each.namespace == pool.metadata.namespace
        and each.owner_uid != pool.metadata.uid
        and each.selector.items() <= pods.items()
    ]
    if not blind:
        return ""
    names = ", ".join(each.name for each in blind)
    return (
        f"inferencepools.inference.networking.k8s.io {names}: selects this pool's pods, also those that drain; "
        f"{_SELECTOR_LINE}"
    )


def _names(scalers: list[Scaler]) -> str:
    return ", ".join(sorted(map(str, scalers)))
