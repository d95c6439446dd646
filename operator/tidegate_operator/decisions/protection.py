"""Keeps autoscalers of nodes away from a replica that loads or drains. Pure.

    starting ──mark──▶ protected ──ready, or in trouble──▶ unmarked ──draining──▶ protected ──▶ gone

A node that is removed in the middle of a load costs the whole cold start again, and in the middle of a drain the
answers that it was meant to save. Written on pods, never into the template, so that nothing rolls and a pool of an
older operator has it too. A pod that fails is not protected: it would hold its node for ever. deployed.py asks,
apply.py writes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate_operator.world.observed import Pod

DO_NOT_DISRUPT = {
    "karpenter.sh/do-not-disrupt": "true",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
}


@dataclass(frozen=True)
class Protection:
    """A pod gets the annotations, or loses them."""

    pod: Pod
    is_on: bool
    keys: tuple[str, ...]  # those that the pool's user did not set


def plan_protection(pods: tuple[Pod, ...], user_annotations: Mapping[str, str]) -> tuple[Protection, ...]:
    """What differs from how it should be. Annotations that the user set for all pods of the pool stay as they are."""
    keys = tuple(key for key in DO_NOT_DISRUPT if key not in user_annotations)
    if not keys:
        return ()
    return tuple(
        Protection(pod, is_on=_needs_protection(pod), keys=keys)
        for pod in pods
        if not pod.is_terminating and pod.is_protected != _needs_protection(pod)
    )


def _needs_protection(pod: Pod) -> bool:
    if pod.draining_since is not None:
        return True
    return pod.scheduled_at is not None and not pod.is_ready and pod.trouble is None
