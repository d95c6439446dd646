"""How many more replicas the quotas of a namespace allow. Pure; quotas.py reads them.

The scaler wants no more than they allow, the Deployment asks for no more, and a rollout does not surge without room
for one. Which of a pool's pods hold their share already says capacity.num_held.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import NamedTuple

from tidegate_core.quantity import format_quantity, parse_quantity
from tidegate_operator.resources import Manifest
from tidegate_operator.world.pod_total import pod_total

REFUSAL = "exceeded quota"  # the words of the API server's admission plugin
LOOK_SECONDS = 15.0  # while a quota holds replicas back: no watch tells that it was raised
REFUSED_LOOK_SECONDS = 3.0  # while one refuses pods that are ordered: somebody waits for them
_SHORT = ("cpu", "memory", "ephemeral-storage")  # a quota may name requests of these without a prefix
_NEVER_OURS = ("Terminating", "BestEffort", "CrossNamespacePodAffinity")  # engines have requests and no deadline


class Scope(NamedTuple):
    """What pods a quota counts."""

    name: str
    operator: str = "Exists"
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Quota:
    """A ResourceQuota with what is used of it."""

    namespace: str
    name: str
    hard: Mapping[str, str]
    used: Mapping[str, str]
    scopes: tuple[Scope, ...] = ()


@dataclass(frozen=True)
class Room:
    """What quotas leave."""

    num_more: int | None = None  # replicas; None: no quota counts them
    why: str = ""  # the tightest quota and its numbers

    def most_replicas(self, num_held: int) -> int | None:
        """With those that hold their share already."""
        return None if self.num_more is None else num_held + self.num_more


NO_QUOTA = Room()


def read_quota(manifest: Manifest) -> Quota:
    """What the API server has not counted yet allows nothing to be said."""
    spec, status, metadata = manifest.get("spec", {}), manifest.get("status", {}), manifest["metadata"]
    selected = spec.get("scopeSelector", {}).get("matchExpressions", ())
    return Quota(
        namespace=metadata["namespace"],
        name=metadata["name"],
        hard=status.get("hard", {}),
        used=status.get("used", {}),
        scopes=(
            *(Scope(name) for name in spec.get("scopes", ())),
            *(Scope(each["scopeName"], each["operator"], tuple(each.get("values", ()))) for each in selected),
        ),
    )


def room(quotas: Iterable[Quota], template: Manifest) -> Room:
    """For more pods of this template."""
    claimed = claim(template)
    priority_class = template["spec"].get("priorityClassName", "")
    rooms = [
        _room_in(quota, name, asked)
        for quota in quotas
        if all(_counts(scope, priority_class) for scope in quota.scopes)
        for name, asked in claimed.items()
        if asked > 0 and name in quota.hard
    ]
    return min(rooms, key=lambda each: each.num_more or 0, default=NO_QUOTA)


def num_to_order(num_wanted: int, *, num_ordered: int, num_live: int, room: Room, is_refused: bool) -> int:
    """Replicas that the Deployment asks for: those that live and what quotas leave.

    A ReplicaSet tries a refused pod ever less often, in the end four times an hour, and carries out a larger order at
    once. So what was refused is taken back until there is room. What was not stays ordered: its pods may have been made
    since the quotas were read.
    """
    if room.num_more is None:
        return num_wanted
    return min(num_wanted, max(num_live + room.num_more, num_live if is_refused else num_ordered))


def retry(before: str, *, refused_since: datetime | None, room: Room) -> str:
    """What the Deployment says of the last try that we asked for: which refusal it was, and the room seen since.

    A change of these words reaches the new ReplicaSet, which tries at once; by itself it may wait for minutes, in a
    rollout as long as the old replica took to drain. The same refusal and the same numbers are the same words, so each
    try is asked for once.
    """
    if refused_since is None or room.num_more == 0:
        return before
    return f"refused at {refused_since:%Y-%m-%dT%H:%M:%SZ}; {room.why or 'no quota counts these pods'}"


def claim(template: Manifest) -> dict[str, Decimal]:
    """What one pod asks for, by the names that quotas use."""
    claimed = {"pods": Decimal(1), "count/pods": Decimal(1)}
    for kind in ("requests", "limits"):
        totals = pod_total(template["spec"], partial(_amounts, kind=kind))
        claimed |= {f"{kind}.{resource}": number for resource, number in totals.items()}
    return claimed | {name: claimed[f"requests.{name}"] for name in _SHORT if f"requests.{name}" in claimed}


def _amounts(container: Manifest, *, kind: str) -> dict[str, Decimal]:
    return {name: parse_quantity(text) for name, text in container.get("resources", {}).get(kind, {}).items()}


def _room_in(quota: Quota, name: str, asked: Decimal) -> Room:
    hard, used = quota.hard[name], quota.used.get(name, "0")
    left = parse_quantity(hard) - parse_quantity(used)
    numbers = f"{name} {hard}, {used} is used and a replica asks for {_spelled(name, asked)}"
    return Room(max(0, int(left // asked)), f"ResourceQuota {quota.name} allows {numbers}")


def _spelled(name: str, number: Decimal) -> str:
    """Bytes with their unit."""
    is_bytes = name.endswith(("memory", "storage"))
    return format_quantity(int(number)) if is_bytes else f"{number.normalize():f}"


def _counts(scope: Scope, priority_class: str) -> bool:
    if scope.name != "PriorityClass":
        return scope.name not in _NEVER_OURS
    match scope.operator:
        case "In":
            return priority_class in scope.values
        case "NotIn":
            return priority_class not in scope.values
        case "DoesNotExist":
            return not priority_class
        case _:
            return bool(priority_class)
