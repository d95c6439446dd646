"""I/O: what stands around all pools that others brought: autoscalers, endpoint pickers, prices, optional APIs.

Any of these APIs may be absent, come or go while the operator runs, and mostly nobody uses them: one list of each kind
a minute serves all pools, and one that is not there is simply nothing. One that cannot be looked at is something else:
what was asked for of it is neither made nor removed, and integration.py says why. reconcile.py asks for a pool's part.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.errors import Forbidden, NotFound
from tidegate_operator.kube import Kube
from tidegate_operator.resources import (
    AUTOSCALER,
    GIE_POOL,
    OPTIONAL,
    POD_MONITOR,
    SCALED_OBJECT,
    Manifest,
    Resource,
    resource_of,
)
from tidegate_operator.world.cache import slim
from tidegate_operator.world.kept import Kept, Sight
from tidegate_operator.world.neighbours import Neighbourhood, Picker, Scaler, read_picker, read_scaler
from tidegate_operator.world.price_file import PriceFile

TTL_SECONDS = 60.0
_LOOKED_AT = (AUTOSCALER, SCALED_OBJECT, GIE_POOL, POD_MONITOR)  # all of each: a stranger may have a child's name
_Items = Sequence[Manifest]
_Key = tuple[Resource, str, str]  # kind, namespace, name


@dataclass(frozen=True)
class _Seen:
    """A look around everything; a kind that is not installed is in neither of the first two."""

    kinds: frozenset[Resource] = frozenset()
    unseen: Mapping[Resource, str] = field(default_factory=dict)  # why a kind that may be there is not known
    optional: dict[_Key, Manifest] = field(default_factory=dict)
    scalers: Mapping[tuple[str, str], tuple[Scaler, ...]] = field(default_factory=dict)  # by namespace, target's name
    pickers: Mapping[str, tuple[Picker, ...]] = field(default_factory=dict)  # by namespace


class Surroundings:
    """`namespaces` empty: all of them."""

    def __init__(
        self,
        kube: Kube,
        namespaces: tuple[str, ...],
        prices_file: Path,
        *,
        ttl_seconds: float = TTL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._namespaces: tuple[str | None, ...] = namespaces or (None,)
        self._prices = PriceFile(prices_file)
        self._ttl_seconds = ttl_seconds
        self._kept = tuple(Kept(each.full_name, partial(self._read, each), clock=clock) for each in _LOOKED_AT)
        self._sights: Sequence[Sight[_Items]] = ()
        self._seen = _Seen()

    async def around(self, pool: InferencePool) -> Neighbourhood:
        """As of about a minute ago, but with our own writes in it."""
        self._learn(await asyncio.gather(*(kept.sight(self._ttl_seconds) for kept in self._kept)))
        seen, namespace, name = self._seen, pool.metadata.namespace, pool.metadata.name
        optional = (seen.optional.get((each, namespace, name)) for each in OPTIONAL)
        return Neighbourhood(
            scalers=seen.scalers.get((namespace, name), ()),
            pickers=seen.pickers.get(namespace, ()),
            optional=tuple(item for item in optional if item is not None),
            installed=seen.kinds & frozenset(OPTIONAL),
            unseen=seen.unseen,
            prices=self._prices.prices(),
        )

    def _learn(self, sights: Sequence[Sight[_Items]]) -> None:
        """Of kinds that were not looked at anew our own writes stand."""
        if sights == self._sights:
            return
        same = {kind for kind, new, old in zip(_LOOKED_AT, sights, self._sights, strict=False) if new is old}
        written = {key: item for key, item in self._seen.optional.items() if key[0] in same}
        found = _sort(dict(zip(_LOOKED_AT, sights, strict=True)))
        looked_up = {key: item for key, item in found.optional.items() if key[0] not in same}
        self._sights, self._seen = sights, replace(found, optional=looked_up | written)

    def wrote(self, applied: Iterable[Manifest], deleted: Iterable[Manifest]) -> None:
        """Of optional kinds; until the next look it stands as we wrote it."""
        for item in applied:
            if (resource := resource_of(item)) in OPTIONAL:
                self._seen.optional[_key(resource, item)] = item
        for item in deleted:
            if (resource := resource_of(item)) in OPTIONAL:
                self._seen.optional.pop(_key(resource, item), None)

    async def _read(self, resource: Resource) -> _Items:
        lists = [await self._kube.list(resource, namespace) for namespace in self._namespaces]
        return [slim(item) for listed in lists for item in listed]


def _sort(sights: Mapping[Resource, Sight[_Items]]) -> _Seen:
    """So that a pool finds its part without looking through that of thousand others."""
    lists = {kind: sight.value or () for kind, sight in sights.items()}
    scalers: dict[tuple[str, str], tuple[Scaler, ...]] = {}
    for item in (*lists[AUTOSCALER], *lists[SCALED_OBJECT]):
        if scaler := read_scaler(item):
            place = scaler.namespace, scaler.target[2]
            scalers[place] = (*scalers.get(place, ()), scaler)
    pickers: dict[str, tuple[Picker, ...]] = {}
    for item in lists[GIE_POOL]:
        if picker := read_picker(item):
            pickers[picker.namespace] = (*pickers.get(picker.namespace, ()), picker)
    return _Seen(
        kinds=frozenset(kind for kind, sight in sights.items() if sight.value is not None),
        unseen={kind: why for kind in OPTIONAL if (why := _why_unseen(sights[kind]))},
        optional={_key(kind, item): item for kind in OPTIONAL for item in lists[kind]},
        scalers=scalers,
        pickers=pickers,
    )


def _why_unseen(sight: Sight[_Items]) -> str:
    """In words that stay the same from try to try; empty for a kind that is known, or is not installed."""
    match sight.fault:
        case None | NotFound():
            return ""
        case Forbidden():
            return "the operator's role does not allow it to list them"
        case fault:
            answer = f"HTTP {fault.status}" if fault.status else "no answer"
            return f"the API server cannot list them ({answer})"


def _key(resource: Resource, item: Manifest) -> _Key:
    return resource, item["metadata"]["namespace"], item["metadata"]["name"]
