"""`tidegate top [POOL]`: the load of all pools, or of one pool's replicas; with --watch again and again, with rates."""

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tidegate_cli.cluster.access import Cluster, Replica, run_in_cluster
from tidegate_cli.cluster.columns import NOTHING, columns, share
from tidegate_cli.cluster.options import add_access_arguments
from tidegate_cli.cluster.status import replica_table
from tidegate_core.telemetry import LoadReport
from tidegate_operator.api.v1alpha1 import InferencePool

CLEAR = "\x1b[2J\x1b[H"


@dataclass(frozen=True)
class PoolLoad:
    """All replicas of a pool that answered, at one moment."""

    pool: InferencePool
    num_replicas: int
    loads: Mapping[str, LoadReport]  # by the process that reports: counters begin anew with it

    @classmethod
    def of(cls, pool: InferencePool, replicas: Sequence[Replica]) -> "PoolLoad":
        loads = {replica.load.boot_id: replica.load for replica in replicas if replica.load is not None}
        return cls(pool, len(replicas), loads)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pool", metavar="POOL", nargs="?", help="show this pool's replicas; absent: all pools")
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="pools of every namespace")
    parser.add_argument(
        "-w", "--watch", type=float, nargs="?", const=2.0, metavar="SECONDS", help="again and again (default: every 2)"
    )
    add_access_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    async def answer(cluster: Cluster) -> int:
        before: tuple[PoolLoad, ...] = ()
        before_at = datetime.now(UTC)
        while True:
            now = datetime.now(UTC)
            if arguments.pool is not None:
                text = await _replicas_of(cluster, arguments.pool, now)
            else:
                loads = await _pools(cluster, is_everywhere=arguments.all_namespaces)
                seconds = (now - before_at).total_seconds()
                text = pool_table(loads, before, seconds, is_everywhere=arguments.all_namespaces)
                before, before_at = loads, now
            print((CLEAR if arguments.watch and sys.stdout.isatty() else "") + text, flush=True)
            if not arguments.watch:
                return 0
            await asyncio.sleep(arguments.watch)

    try:
        return run_in_cluster(arguments, answer, lambda said: print(f"tidegate top: {said}", file=sys.stderr))
    except KeyboardInterrupt:
        return 0


async def _replicas_of(cluster: Cluster, name: str, now: datetime) -> str:
    pool = await cluster.pool(name)
    return replica_table(await cluster.replicas(pool), now) or f"{pool.metadata.name} has no replicas"


async def _pools(cluster: Cluster, *, is_everywhere: bool) -> tuple[PoolLoad, ...]:
    pools = await cluster.pools(is_everywhere=is_everywhere)
    replicas = await asyncio.gather(*(cluster.replicas(pool) for pool in pools))
    return tuple(PoolLoad.of(pool, each) for pool, each in zip(pools, replicas, strict=True))


def pool_table(
    loads: Sequence[PoolLoad], before: Sequence[PoolLoad], seconds: float, *, is_everywhere: bool = False
) -> str:
    """A line a pool. Rates need a look before this one, `seconds` ago."""
    if not loads:
        return "no pools here"
    earlier = {(each.pool.metadata.namespace, each.pool.metadata.name): each for each in before}
    headings = ("POOL", "READY", "REPORTING", "RUNNING", "WAITING", "KV", "ETA", "PREEMPTED", "REFUSED", "REQUESTS/S")
    rows = []
    for load in loads:
        metadata = load.pool.metadata
        name = f"{metadata.namespace}/{metadata.name}" if is_everywhere else metadata.name
        previous = earlier.get((metadata.namespace, metadata.name))
        rows.append((name, *_figures(load), _rate(load, previous, seconds)))
    return columns(headings, rows)


def _figures(load: PoolLoad) -> tuple[str, ...]:
    reports = tuple(load.loads.values())
    ready = load.pool.status.ready or NOTHING
    reporting = f"{len(reports)}/{load.num_replicas}"
    if not reports:
        return (ready, reporting, *(NOTHING,) * 6)
    used, total = sum(each.kv_blocks_used for each in reports), sum(each.kv_blocks_total for each in reports)
    return (
        ready,
        reporting,
        str(sum(each.running for each in reports)),
        str(sum(each.waiting for each in reports)),
        share(used, total),
        f"{min(each.eta_seconds for each in reports):.1f}s",  # where a balanced request would go
        str(sum(each.preemptions for each in reports)),
        str(sum(each.rejects for each in reports)),
    )


def _rate(load: PoolLoad, before: PoolLoad | None, seconds: float) -> str:
    """Arrivals a second of the processes that reported both times."""
    if before is None or seconds <= 0:
        return NOTHING
    both = load.loads.keys() & before.loads.keys()
    return f"{sum(load.loads[boot].arrivals - before.loads[boot].arrivals for boot in both) / seconds:.1f}"
