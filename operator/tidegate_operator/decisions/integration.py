"""What a pool and the neighbours it was made for have to do with each other: children that were asked for, and who
disturbs. Pure; planning.py applies what it says, findings.py shows it.

    asked for ─▶ API installed? ─▶ name free? ─▶ child          not asked for (any more) ─▶ the child goes
                     └─ no, or nobody     └─ no: said
                        can tell: said
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegate_operator.api.reasons import Reason
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.decisions.drift import is_satisfied, stamped
from tidegate_operator.manifests.endpoint_pool import endpoint_pool
from tidegate_operator.manifests.pod_monitor import pod_monitor
from tidegate_operator.resources import Manifest, Resource, resource_of
from tidegate_operator.world.neighbours import Neighbourhood, foreign_pickers, foreign_scalers


@dataclass(frozen=True)
class MonitoringDefaults:
    """From the operator's settings: whether every pool gets a PodMonitor, and which labels that carries."""

    has_pod_monitors: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)


NO_MONITORING = MonitoringDefaults()


@dataclass(frozen=True)
class Integration:
    """`apply` and `delete` are of optional kinds; the rest is for people."""

    apply: tuple[Manifest, ...] = ()
    delete: tuple[Manifest, ...] = ()
    scalers: str = ""  # who sets replicas that are not theirs, and what to change
    trouble: tuple[Reason, str] | None = None  # why something asked for is not there, or who misroutes
    is_asked_for: bool = False


def integrate(pool: InferencePool, around: Neighbourhood, monitoring: MonitoringDefaults) -> Integration:
    """Same arguments, same answer; what is already so is not in `apply`."""
    wanted = _wanted(pool, monitoring)
    live = {(item["apiVersion"], item["kind"], item["metadata"]["name"]): item for item in around.optional}
    unseen = {resource: why for each in wanted if (why := around.unseen.get(resource := resource_of(each)))}
    missing = [each for each in wanted if resource_of(each) not in around.installed]
    taken = [each for each in wanted if (found := live.get(_identity(each))) and not _is_ours(found, pool)]
    good = [stamped(each) for each in wanted if each not in missing and each not in taken]
    kept = {_identity(each) for each in wanted}
    return Integration(
        apply=tuple(each for each in good if not is_satisfied(each, live.get(_identity(each)))),
        delete=tuple(
            item
            for identity, item in live.items()
            if identity not in kept and _is_ours(item, pool) and "uid" in item["metadata"]
        ),
        scalers=foreign_scalers(pool, around.scalers),
        trouble=_trouble(missing, taken, unseen, foreign_pickers(pool, around.pickers)),
        is_asked_for=bool(wanted),
    )


def _wanted(pool: InferencePool, monitoring: MonitoringDefaults) -> list[Manifest]:
    picker = pool.spec.endpoint_picker_ref
    found = [endpoint_pool(pool, picker)] if picker else []
    return found + ([pod_monitor(pool, monitoring.labels)] if monitoring.has_pod_monitors else [])


def _trouble(
    missing: list[Manifest], taken: list[Manifest], unseen: Mapping[Resource, str], misrouted: str
) -> tuple[Reason, str] | None:
    if misrouted:
        return Reason.FOREIGN_PICKER, misrouted
    if taken:
        names = ", ".join(f"{resource_of(each).full_name} {each['metadata']['name']}" for each in taken)
        return Reason.CHILD_NOT_OURS, f"not controlled by this pool: {names}; rename or delete it"
    if unseen:
        said = "; ".join(f"{resource.full_name}: {why}" for resource, why in unseen.items())
        return Reason.API_NOT_READABLE, f"{said}; what is asked for is neither made nor removed meanwhile"
    if missing:
        names = ", ".join(resource_of(each).full_name for each in missing)
        return (
            Reason.API_NOT_INSTALLED,
            f"{names}: not installed in this cluster; install the CRD, or do not ask for it",
        )
    return None


def _identity(item: Manifest) -> tuple[str, str, str]:
    return item["apiVersion"], item["kind"], item["metadata"]["name"]


def _is_ours(item: Manifest, pool: InferencePool) -> bool:
    owners = item["metadata"].get("ownerReferences", ())
    return any(owner["uid"] == pool.metadata.uid and owner.get("controller") for owner in owners)
