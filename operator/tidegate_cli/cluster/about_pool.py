"""What commands about one pool have in common: its name, how to print, and the pool with its replicas to print of."""

import argparse
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from tidegate_cli.cluster.access import Cluster, Replica, run_in_cluster
from tidegate_cli.cluster.options import add_access_arguments
from tidegate_operator.api.v1alpha1 import InferencePool


def add_pool_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pool", metavar="POOL", help="name of the InferencePool")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")
    add_access_arguments(parser)


def print_pool(
    arguments: argparse.Namespace,
    command: str,
    to_json: Callable[[InferencePool, Sequence[Replica]], str],
    to_table: Callable[[InferencePool, Sequence[Replica], datetime], str],
    exit_code: Callable[[InferencePool], int],
) -> int:
    """Prints it in the asked form; `exit_code` is that of a pool that was found."""

    async def answer(cluster: Cluster) -> int:
        pool = await cluster.pool(arguments.pool)
        replicas = await cluster.replicas(pool)
        is_json = arguments.output == "json"
        print(to_json(pool, replicas) if is_json else to_table(pool, replicas, datetime.now(UTC)))
        return exit_code(pool)

    return run_in_cluster(arguments, answer, lambda said: print(f"tidegate {command}: {said}", file=sys.stderr))
