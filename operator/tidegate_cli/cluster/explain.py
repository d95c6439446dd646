"""`tidegate explain POOL`: why this many replicas: the scaler's last decisions with what it saw, and what limits it.

Everything comes from the resource's status, which keeps the inputs of each decision; live figures stand beside them.
"""

import argparse
import json
from collections.abc import Sequence
from datetime import datetime

from tidegate_cli.cluster.about_pool import add_pool_arguments, print_pool
from tidegate_cli.cluster.access import Replica, to_document
from tidegate_cli.cluster.columns import age, section
from tidegate_cli.cluster.status import replica_table
from tidegate_operator.api.conditions import ConditionType
from tidegate_operator.api.spec import ScalingMode
from tidegate_operator.api.status import ScalingEvent, SizingStatus
from tidegate_operator.api.v1alpha1 import InferencePool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pool_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    return print_pool(arguments, "explain", to_json, to_table, lambda _: 0)


def to_json(pool: InferencePool, replicas: Sequence[Replica]) -> str:
    low, high = pool.spec.bounds
    document = {
        "pool": pool.metadata.name,
        "namespace": pool.metadata.namespace,
        "desiredReplicas": pool.status.desired_replicas,
        "mode": pool.spec.scaling.mode,
        "minReplicas": low,
        "maxReplicas": high,
        "limit": _limit(pool),
        "decisions": [event.to_wire() for event in pool.status.scaling_history],
        "replicas": [to_document(replica) for replica in replicas],
    }
    return json.dumps(document, indent=2)


def to_table(pool: InferencePool, replicas: Sequence[Replica], now: datetime) -> str:
    decisions = pool.status.scaling_history
    sections = [
        f"{pool.metadata.namespace}/{pool.metadata.name}: {_verdict(pool, decisions)}",
        section("what decides", "\n".join(_rules(pool))),
        section("last decision", _decision(decisions[0], now)) if decisions else "",
        section("before", "\n".join(_line(event, now) for event in decisions[1:])),
        section("replicas now", replica_table(replicas, now)),
    ]
    return "\n\n".join(each for each in sections if each)


def _verdict(pool: InferencePool, decisions: Sequence[ScalingEvent]) -> str:
    wanted = pool.status.desired_replicas
    words = "1 replica is wanted" if wanted == 1 else f"{wanted} replicas are wanted"
    if pool.spec.suspend:
        return f"{words}: spec.suspend is true"
    if pool.spec.scaling.mode is ScalingMode.MANUAL:
        return f"{words}: scaling.mode is Manual, so spec.replicas decides"
    if decisions and decisions[0].to == wanted:
        return f"{words}: {decisions[0].reason}"
    return f"{words}: the size it started with; nothing has asked for another"


def _rules(pool: InferencePool) -> list[str]:
    low, high = pool.spec.bounds
    objectives = pool.spec.objectives
    rules = []
    if pool.spec.scaling.mode is ScalingMode.AUTO:
        hold = pool.spec.scaling.scale_down_hold_seconds
        slots = "" if pool.status.sizing is None else f"; {_replica(pool.status.sizing)}"
        rules.append(f"between {low} and {high} replicas; one leaves when fewer were enough for {hold} s")
        rules.append(f"first token within {objectives.ttft_milliseconds} ms{slots}")
    if limit := _limit(pool):
        rules.append(limit)
    return rules


def _replica(sizing: SizingStatus) -> str:
    several = f" of {sizing.tensor_parallel} devices" if sizing.tensor_parallel > 1 else ""
    return f"{sizing.slots:,} slots a replica{several}"


def _limit(pool: InferencePool) -> str | None:
    """What keeps the scaler from what it wants, or blinds it."""
    found = []
    limited = pool.status.condition(ConditionType.SCALING_LIMITED)
    if limited is not None and limited.status == "True":
        found.append(f"limited: {limited.reason}: {limited.message}")
    metrics = pool.status.condition(ConditionType.METRICS_AVAILABLE)
    if metrics is not None and metrics.status == "False":
        found.append(f"blind: {metrics.reason}: {metrics.message}")
    return "; ".join(found) or None


def _decision(event: ScalingEvent, now: datetime) -> str:
    width = max((len(name) for name in event.inputs), default=0)
    return "\n".join([_line(event, now), *(f"  {name:<{width}}  {value}" for name, value in event.inputs.items())])


def _line(event: ScalingEvent, now: datetime) -> str:
    return f"{age(event.time, now)} ago: {event.from_} -> {event.to}: {event.reason}"
