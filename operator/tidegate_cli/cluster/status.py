"""`tidegate status POOL`: what the pool is, whether it is well and if not why, and each replica with its load.

The resource's own status, put in the order in which an on-call engineer asks; replicas are asked for their load.
"""

import argparse
import json
from collections.abc import Sequence
from datetime import datetime

from tidegate_cli.cluster.about_pool import add_pool_arguments, print_pool
from tidegate_cli.cluster.access import Replica, to_document
from tidegate_cli.cluster.columns import NOTHING, age, columns, section, share
from tidegate_core.quantity import format_bytes
from tidegate_operator.api.conditions import ConditionType
from tidegate_operator.api.spec import ScalingMode
from tidegate_operator.api.status import SizingStatus
from tidegate_operator.api.v1alpha1 import InferencePool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pool_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """0 where the pool is Ready, 4 where it is not, so that scripts can ask."""
    return print_pool(arguments, "status", to_json, to_table, lambda pool: 0 if is_ready(pool) else 4)


def is_ready(pool: InferencePool) -> bool:
    """Of the spec as it is now, not of an older one."""
    ready = pool.status.condition(ConditionType.READY)
    is_seen = pool.status.observed_generation == pool.metadata.generation
    return is_seen and ready is not None and ready.status == "True"


def to_json(pool: InferencePool, replicas: Sequence[Replica]) -> str:
    document = {
        "pool": pool.metadata.name,
        "namespace": pool.metadata.namespace,
        "ready": is_ready(pool),
        "status": pool.status.to_wire(),
        "replicas": [to_document(replica) for replica in replicas],
    }
    return json.dumps(document, indent=2)


def to_table(pool: InferencePool, replicas: Sequence[Replica], now: datetime) -> str:
    title = f"{pool.metadata.namespace}/{pool.metadata.name}: {pool.status.phase or 'not seen by an operator yet'}"
    if pool.status.phase and pool.status.observed_generation != pool.metadata.generation:
        title += " (of an older spec: the operator has not seen the last change)"
    sections = [
        title,
        section("pool", _facts(pool)),
        section("conditions", _conditions(pool, now)),
        section("replicas", replica_table(replicas, now)),
    ]
    return "\n\n".join(each for each in sections if each)


def replica_table(replicas: Sequence[Replica], now: datetime) -> str:
    if not replicas:
        return ""
    headings = ("NAME", "STATE", "NODE", "AGE", "RESTARTS", "RUNNING", "WAITING", "KV", "ETA", "NOTE")
    return columns(headings, [_replica_row(replica, now) for replica in replicas])


def _replica_row(replica: Replica, now: datetime) -> tuple[str, ...]:
    pod, load = replica.pod, replica.load
    figures = (NOTHING,) * 4
    if load is not None:
        used = share(load.kv_blocks_used, load.kv_blocks_total)
        figures = (str(load.running), str(load.waiting), used, f"{load.eta_seconds:.1f}s")
    note = f"{pod.trouble.reason}: {pod.trouble.message}" if pod.trouble else replica.silence
    return (
        pod.name,
        state(replica),
        replica.node or NOTHING,
        age(pod.created_at, now),
        str(replica.num_restarts),
        *figures,
        note,
    )


def state(replica: Replica) -> str:
    """One word."""
    pod = replica.pod
    if pod.is_terminating:
        return "Leaving"
    if pod.draining_since is not None:
        return "Draining"
    if pod.is_ready:
        return "Serving"
    return "Starting" if pod.is_running else "Pending"


def _facts(pool: InferencePool) -> str:
    status, spec = pool.status, pool.spec
    low, high = pool.spec.bounds
    mode = f"Auto, {low} to {high}" if spec.scaling.mode is ScalingMode.AUTO else "Manual"
    rows = [("replicas", f"{status.ready_replicas} ready, {status.desired_replicas} wanted ({mode})")]
    rows.insert(0, ("model", _model(pool)))
    if (sizing := status.sizing) is not None:
        measured = f", {sizing.measured_kv_blocks:,} measured" if sizing.measured_kv_blocks is not None else ""
        rows += [
            ("context", f"{sizing.context:,} tokens"),
            ("slots", f"{sizing.slots:,} a replica, bound by {sizing.binding_constraint}"),
            ("KV cache", f"{sizing.kv_blocks:,} blocks{measured}"),
            ("device", f"{_devices(sizing)}, {spec.accelerator.resource}"),
        ]
    if status.rollout:
        rows.append(("rollout", f"{status.rollout.strategy}: {status.rollout.reason}"))
    if status.cold_start:
        rows.append(("start", f"{status.cold_start.p90_seconds} s from creation to ready (p90)"))
    if status.cost:
        rows.append(("cost", f"{status.cost.per_hour} an hour ({status.cost.basis})"))
    if status.endpoint:
        rows.append(("endpoint", status.endpoint))
    return "\n".join(f"{name:<10}{value}" for name, value in rows)


def _devices(sizing: SizingStatus) -> str:
    several = f"{sizing.tensor_parallel} x " if sizing.tensor_parallel > 1 else ""
    return several + format_bytes(sizing.memory_bytes)


def _model(pool: InferencePool) -> str:
    known = pool.status.model
    if known is None:
        return pool.spec.model.uri
    return f"{pool.spec.model.uri} ({known.architecture}, {known.parameters:,} parameters)"


def _conditions(pool: InferencePool, now: datetime) -> str:
    rows = [
        (each.type, each.status, age(each.last_transition_time, now), each.reason, each.message)
        for each in pool.status.conditions
    ]
    return columns(("TYPE", "STATUS", "SINCE", "REASON", "MESSAGE"), rows) if rows else ""
