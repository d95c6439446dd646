"""Pods that have failed for good: kept a while as evidence, then removed; nodes where they pile up are named. Pure.

A node that refuses a pod (UnexpectedAdmissionError after its device plugin restarted, OutOfcpu), or evicts one, leaves
it behind as Failed. The Deployment makes another, and the API server keeps the dead until there are 12,500. planning.py
asks. The evidence is the pods themselves, so nothing is remembered: a condition shows them while they are there.
"""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidegate_operator.resources import POD, Manifest
from tidegate_operator.world.observed import Ending, Pod

KEPT_FOR = timedelta(hours=1)
MAX_KEPT = 5
MIN_FAILURES = 2  # of one node: a single pod may have had bad luck


@dataclass(frozen=True)
class FailedPods:
    """What goes, and the nodes that keep failing this pool's pods."""

    delete: tuple[Manifest, ...] = ()
    nodes: tuple[str, ...] = ()
    message: str = ""


NO_FAILED_PODS = FailedPods()


def judge_failed_pods(pods: tuple[Pod, ...], now: datetime) -> FailedPods:
    """The youngest few of the last hour stay."""
    failed = [(pod.ending, pod) for pod in pods if pod.ending is not None]
    failed.sort(key=lambda each: (each[0].at, each[1].name), reverse=True)
    kept = [each for each in failed[:MAX_KEPT] if now - each[0].at < KEPT_FOR]
    counts = Counter(pod.node for _, pod in kept if pod.node)
    nodes = tuple(sorted(node for node, count in counts.items() if count >= MIN_FAILURES))
    last = next((ending for ending, pod in kept if pod.node in nodes), None)
    return FailedPods(
        delete=tuple(_manifest(pod) for _, pod in failed[len(kept) :]),
        nodes=nodes,
        message=_words(nodes, last) if last else "",
    )


def _words(nodes: tuple[str, ...], last: Ending) -> str:
    names = ", ".join(nodes)
    said = f"{last.reason}: {last.message}" if last.message else last.reason
    return (
        f"{names}: pods of this pool failed there again and again within the hour, the last with {said}; "
        f"see kubectl describe node {nodes[0]}, and cordon it if it does not heal"
    )


def _manifest(pod: Pod) -> Manifest:
    return {"apiVersion": POD.api_version, "kind": POD.kind, "metadata": {"name": pod.name, "uid": pod.uid}}
