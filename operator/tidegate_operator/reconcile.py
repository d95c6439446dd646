"""One pool, brought one step closer to its spec: observe -> plan -> apply -> status. Called by the work queue.

Level-triggered: it never asks what happened, only what is. Between calls it remembers nothing that matters but recent
load reports, and what the last look at a pool at rest was made of (rest.py), which saves the next one; everything else
is read anew, so it may be killed at any line and started again.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

from tidegate_core.samples import History
from tidegate_operator.api.conditions import ConditionType
from tidegate_operator.api.status import InferencePoolStatus
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.apply import apply, rehearse
from tidegate_operator.control.metrics import Pools
from tidegate_operator.decisions.notes import Note, transition_notes
from tidegate_operator.decisions.plan import Plan, PlanSettings, Refusal
from tidegate_operator.decisions.planning import plan
from tidegate_operator.decisions.rest import Rest
from tidegate_operator.decisions.scale import Size, look_seconds
from tidegate_operator.errors import KubeError, NotFound
from tidegate_operator.kube import Kube
from tidegate_operator.report.events import EventRecorder
from tidegate_operator.report.pool_metrics import PoolMetrics
from tidegate_operator.report.status import status, status_manifest
from tidegate_operator.resources import Key
from tidegate_operator.world.cache import Versions
from tidegate_operator.world.nodes import NodeCache
from tidegate_operator.world.observe import observe, observe_outside, observe_pool
from tidegate_operator.world.observed import Observed
from tidegate_operator.world.quotas import QuotaCache
from tidegate_operator.world.scrape import Engines
from tidegate_operator.world.surroundings import Surroundings

FRESH_NODES_SECONDS = 5.0
FRESH_QUOTAS_SECONDS = 2.0
_log = logging.getLogger(__name__)


@dataclass
class Reconciler:
    """`await reconciler(key)` returns the seconds until it wants to look again, None when the pool is gone."""

    kube: Kube
    engines: Engines
    nodes: NodeCache
    quotas: QuotaCache
    recorder: EventRecorder
    settings: Callable[[], PlanSettings]  # anew each time: drain tokens rotate
    clock: Callable[[], datetime]
    pools: Pools
    details: PoolMetrics
    surroundings: Surroundings
    versions: Callable[[Key], Versions]  # of the pool's objects as they are known by now
    _histories: dict[Key, tuple[str, History]] = field(default_factory=dict, init=False)  # with the pool's uid
    _rests: dict[Key, Rest] = field(default_factory=dict, init=False)

    async def __call__(self, key: Key) -> float | None:
        versions, rest = self.versions(key), self._rests.pop(key, None)
        seen = await observe_pool(self.kube, key)
        if seen is None or seen.pool.is_deleting:
            self._histories.pop(key, None)  # owner references do the rest, with or without us
            self.pools.forget(key)
            self.details.forget(key)
            return None
        pool = seen.pool
        uid, history = self._histories.get(key, ("", None))
        known = history if uid == pool.metadata.uid else None  # not that of a deleted pool of this name
        if rest is not None and rest.versions == versions:
            seconds = await self._look_again(pool, rest, known)
            if seconds is not None:
                self._rests[key] = rest
                return seconds
        observed = await observe(self.kube, self.engines, self.nodes, seen, known)
        observed = await self._surrounded(pool, observed)
        now = self.clock()
        settings = self.settings()
        observed, steps, refused = await self._plan(pool, observed, settings, now)
        if not steps.is_satisfied:
            _log.info("%s/%s: %s", *key, str(steps).replace("\n", ", "))
        refusals = refused + await apply(self.kube, self.engines, steps)
        if not refusals:
            self.surroundings.wrote(steps.apply, steps.delete)
        new = status(pool, observed, steps, refusals, now)
        if new != pool.status:
            try:
                await self.kube.patch_status(status_manifest(pool, new))
            except NotFound:  # deleted meanwhile
                return None
        self._keep(pool, steps.size)
        self.pools.set(key, new)
        self.details.set(pool, new)
        _log_reporting(key, pool.status, new)
        await self._tell(pool, (*steps.notes, *transition_notes(pool.status, new)), now)
        rest = Rest.after(versions, pool, observed, settings, steps)
        if rest is not None and new == pool.status and not refusals:
            self._rests[key] = rest
        return steps.requeue_after_seconds

    async def _look_again(self, pool: InferencePool, rest: Rest, history: History | None) -> float | None:
        """Seconds until the next look; None where more than the scaler's history would change."""
        before = replace(rest.observed, history=history)
        observed = await observe_outside(self.kube, self.engines, self.nodes, pool, before)
        observed = await self._surrounded(pool, observed)
        settings = self.settings()
        size = rest.again(pool, observed, settings, self.clock())
        if size is None:
            return None
        self._keep(pool, size)
        return look_seconds(observed, size, settings.timing)

    def _keep(self, pool: InferencePool, size: Size | None) -> None:
        """The scaler's history, for the next look."""
        if size is not None and size.history is not None:
            self._histories[pool.metadata.namespace, pool.metadata.name] = pool.metadata.uid, size.history

    async def _surrounded(self, pool: InferencePool, observed: Observed) -> Observed:
        quotas = await self.quotas.of(pool.metadata.namespace)
        return replace(observed, around=await self.surroundings.around(pool), quotas=quotas)

    async def _plan(
        self, pool: InferencePool, observed: Observed, settings: PlanSettings, now: datetime
    ) -> tuple[Observed, Plan, tuple[Refusal, ...]]:
        """A plan of what is free now where it begins a rollout or orders replicas, with what was observed for it.

        A template that the API server refuses begins nothing, at no look: so it is rehearsed first.
        """
        steps = plan(pool, observed, settings, now)
        refused = await rehearse(self.kube, steps)
        if steps.begins_rollout and not refused:
            observed = replace(observed, nodes=await self.nodes.nodes(FRESH_NODES_SECONDS))
            rehearsed, steps = steps.revisions.apply, plan(pool, observed, settings, now)
            refused = await rehearse(self.kube, steps) if steps.revisions.apply != rehearsed else ()
        if refused:
            steps = plan(pool, observed, settings, now, may_roll=False)
        if observed.quotas and (steps.orders_more or steps.is_refused_by_quota):
            seconds = 0.0 if steps.orders_more else FRESH_QUOTAS_SECONDS  # our last order may be in it
            fresh = await self.quotas.of(pool.metadata.namespace, max_age_seconds=seconds)
            observed = replace(observed, quotas=fresh)
            steps = plan(pool, observed, settings, now, may_roll=not refused)
        return observed, steps, refused

    async def _tell(self, pool: InferencePool, notes: tuple[Note, ...], now: datetime) -> None:
        """Events are a courtesy: one that cannot be written is logged and never repeats a reconcile."""
        for note in notes:
            try:
                await self.recorder.record(pool, note, now)
            except KubeError as error:
                _log.warning("Event %s of %s/%s: %s", note.reason, pool.metadata.namespace, pool.metadata.name, error)


def _log_reporting(key: Key, before: InferencePoolStatus, after: InferencePoolStatus) -> None:
    """Which engines do not report their load: a line a change, not a line a scrape."""
    old, new = (each.condition(ConditionType.METRICS_AVAILABLE) for each in (before, after))
    if new is None or (old is not None and old.message == new.message):
        return
    if new.status == "False":
        _log.warning("%s/%s: %s", *key, new.message)
    elif old is not None:
        _log.info("%s/%s: %s again", *key, new.message)
