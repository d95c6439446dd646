"""Whether a look at a pool can find anything new: if not, it is not planned again. Pure; reconcile.py asks.

    a look that had nothing to do, nothing to wait for ──▶ Rest ◀──┐ the scaler's answer is the same: its history
                                                            │      │ gets the round, nothing else happens
                                            the next look ──┴──────┤
                                                                   └▶ anything differs: planned as if never seen

Same objects (by their versions), same nodes, quotas, prices, neighbours, settings and load reports leave one thing that
can change a plan: time. Of what time decides, the scaler's part (holds, panics, stale reports) is asked at every look.
For all the rest (a drain's timeout, deadlines of rollouts, tries after a fault, failed pods that are collected) some
object has to be in the middle of something, and a pool that has one never rests.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from tidegate_core.squeeze import is_squeezed
from tidegate_operator.api.reasons import Reason
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.decisions.plan import Plan, PlanSettings
from tidegate_operator.decisions.scale import Size, choose_size, is_serving, look_seconds
from tidegate_operator.labels import DESIRED_ANNOTATION
from tidegate_operator.resources import DEPLOYMENT
from tidegate_operator.world.cache import Versions
from tidegate_operator.world.observed import DeploymentFacts, Observed, Pod
from tidegate_operator.world.quota import Room, room
from tidegate_operator.world.readers import read_deployment


class Answer(NamedTuple):
    """What the scaler's word changes in a plan or a status, where it changes no size."""

    num_desired: int
    num_before: int
    limit: Reason
    limit_message: str
    has_metrics: bool | None
    silence: str
    is_busy: bool
    is_squeezed: bool

    @classmethod
    def of(cls, size: Size) -> "Answer":
        return cls(
            size.num_desired,
            size.num_before,
            size.limit,
            size.limit_message,
            size.has_metrics,
            size.silence,
            size.is_busy,
            is_squeezed=size.history is not None and is_squeezed(size.history.memory),
        )


@dataclass(frozen=True)
class Rest:
    """What the last look was made of; the pool and its children are in it by their versions alone."""

    versions: Versions
    observed: Observed
    settings: PlanSettings
    facts: DeploymentFacts
    num_slots: int
    room: Room
    answer: Answer

    @classmethod
    def after(
        cls,
        versions: Versions,
        pool: InferencePool,
        observed: Observed,
        settings: PlanSettings,
        steps: Plan,
    ) -> "Rest | None":
        """After a look that wrote nothing, its status included; None where time alone may make something happen."""
        live = observed.child(DEPLOYMENT.kind, pool.metadata.name)
        current, size = steps.revisions.current, steps.size
        if live is None or current is None or size is None or size.is_busy or not steps.is_satisfied:
            return None
        facts = read_deployment(live, DESIRED_ANNOTATION)
        if not _is_finished(observed, facts, size, steps, current.template_hash):
            return None
        if steps.requeue_after_seconds < look_seconds(observed, size, settings.timing):
            return None  # somebody waits for something
        return cls(
            versions,
            replace(observed, children=(), history=None),
            settings,
            facts,
            current.sizing.slots,
            room(observed.quotas, current.template),
            Answer.of(size),
        )

    def again(self, pool: InferencePool, observed: Observed, settings: PlanSettings, now: datetime) -> Size | None:
        """What the scaler says of the same pool now; None where anything differs, so that all has to be planned."""
        if settings != self.settings or replace(observed, history=None) != self.observed:
            return None
        size = choose_size(
            pool,
            observed,
            self.facts,
            now,
            slots=self.num_slots,
            timing=settings.timing,
            room=self.room,
        )
        return size if Answer.of(size) == self.answer else None


def _is_finished(observed: Observed, facts: DeploymentFacts, size: Size, steps: Plan, template: str) -> bool:
    """Nothing is on its way: no Job, no rollout, no start, no drain, no end of a pod."""
    counts = {facts.num_replicas, facts.num_live, len(observed.pods), size.num_desired, size.num_before}
    has_jobs = observed.inspections or observed.downloads
    is_rolling = steps.is_rolling_out or facts.template != template or not steps.revisions.is_of_these_inputs
    is_stuck = facts.refusal or steps.failed_pods.nodes
    pods_rest = all(_rests(pod, template) for pod in observed.pods)
    return len(counts) == 1 and pods_rest and not (has_jobs or is_rolling or is_stuck)


def _rests(pod: Pod, template: str) -> bool:
    """It serves, or waits for a node to appear, for which there is no deadline."""
    is_waiting = pod.scheduled_at is None and not pod.is_terminating and pod.is_serving
    is_current = pod.template == template and pod.draining_since is None and pod.ending is None
    return is_current and (is_serving(pod) or is_waiting)
