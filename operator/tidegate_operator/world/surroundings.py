"""I/O: what stands around all pools that others brought: autoscalers, endpoint pickers, prices, optional APIs.

Any of these APIs may be absent, come or go while the operator runs, and mostly nobody uses them: one list of each kind
a minute serves all pools, and one that is not there is simply nothing. observe.py asks for a pool's part of it.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.errors import Forbidden, KubeError, NotFound
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
from tidegate_operator.world.neighbours import Neighbourhood, Picker, Scaler, read_picker, read_scaler
from tidegate_operator.world.price_file import PriceFile

TTL_SECONDS = 60.0
_LOOKED_AT = (AUTOSCALER, SCALED_OBJECT, GIE_POOL, POD_MONITOR)  # all of each: a stranger may have a child's name
_log = logging.getLogger(__name__)
_Key = tuple[Resource, str, str]  # kind, namespace, name


@dataclass(frozen=True)
class _Seen:
    """A look around everything; a kind that is not installed, or that we may not list, is missing in `kinds`."""

    kinds: frozenset[Resource] = frozenset()
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
        self._clock = clock
        self._lists: Mapping[Resource, Sequence[Manifest] | None] = {}
        self._seen = _Seen()
        self._looked_at: float | None = None
        self._looking = asyncio.Lock()
        self._refused: set[Resource] = set()

    async def around(self, pool: InferencePool) -> Neighbourhood:
        """As of about a minute ago, but with our own writes in it."""
        async with self._looking:
            if self._looked_at is None or self._clock() - self._looked_at > self._ttl_seconds:
                self._lists = await self._look()
                self._seen = _sort(self._lists)
                self._looked_at = self._clock()
        seen, namespace, name = self._seen, pool.metadata.namespace, pool.metadata.name
        optional = (seen.optional.get((each, namespace, name)) for each in OPTIONAL)
        return Neighbourhood(
            scalers=seen.scalers.get((namespace, name), ()),
            pickers=seen.pickers.get(namespace, ()),
            optional=tuple(item for item in optional if item is not None),
            installed=seen.kinds & frozenset(OPTIONAL),
            prices=self._prices.prices(),
        )

    def wrote(self, applied: Iterable[Manifest], deleted: Iterable[Manifest]) -> None:
        """Of optional kinds; until the next look it stands as we wrote it."""
        for item in applied:
            if (resource := resource_of(item)) in OPTIONAL:
                self._seen.optional[_key(resource, item)] = item
        for item in deleted:
            if (resource := resource_of(item)) in OPTIONAL:
                self._seen.optional.pop(_key(resource, item), None)

    async def _look(self) -> Mapping[Resource, Sequence[Manifest] | None]:
        found = await asyncio.gather(*map(self._list, _LOOKED_AT))
        return dict(zip(_LOOKED_AT, found, strict=True))

    async def _list(self, resource: Resource) -> Sequence[Manifest] | None:
        """None: there is no such API, or it is none of our business. Trouble now: as it was before."""
        try:
            lists = [await self._kube.list(resource, namespace) for namespace in self._namespaces]
        except NotFound:
            return None
        except Forbidden as error:
            if resource not in self._refused:
                _log.warning("%s are not looked at: %s", resource.plural, error)
            self._refused.add(resource)
            return None
        except KubeError as error:
            _log.warning("%s are as they were a minute ago: %s", resource.plural, error)
            return self._lists.get(resource)
        return [_slim(item) for listed in lists for item in listed]


def _sort(lists: Mapping[Resource, Sequence[Manifest] | None]) -> _Seen:
    """So that a pool finds its part without looking through that of thousand others."""
    scalers: dict[tuple[str, str], tuple[Scaler, ...]] = {}
    for item in (*(lists[AUTOSCALER] or ()), *(lists[SCALED_OBJECT] or ())):
        if scaler := read_scaler(item):
            place = scaler.namespace, scaler.target[2]
            scalers[place] = (*scalers.get(place, ()), scaler)
    pickers: dict[str, tuple[Picker, ...]] = {}
    for item in lists[GIE_POOL] or ():
        if picker := read_picker(item):
            pickers[picker.namespace] = (*pickers.get(picker.namespace, ()), picker)
    return _Seen(
        kinds=frozenset(kind for kind, listed in lists.items() if listed is not None),
        optional={_key(kind, item): item for kind in OPTIONAL for item in lists[kind] or ()},
        scalers=scalers,
        pickers=pickers,
    )


def _slim(item: Manifest) -> Manifest:
    """Without what is most of its text and nobody reads."""
    kept = {name: value for name, value in item["metadata"].items() if name != "managedFields"}
    return {**item, "metadata": kept}


def _key(resource: Resource, item: Manifest) -> _Key:
    return resource, item["metadata"]["namespace"], item["metadata"]["name"]
