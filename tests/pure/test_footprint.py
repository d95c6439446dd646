"""What the operator keeps of a pool at rest: bytes that Python allocated, so the same on every machine."""

import asyncio
import gc
import json
import tracemalloc
from datetime import timedelta

from memory_world import KEY, Process, World, empty_world
from pools import pool_manifest
from tidegate_operator.resources import resource_of

NUM_POOLS = 8
LOOK_SECONDS = 60  # as often as an idle pool is looked at
MAX_BYTES_A_POOL = 40 * 1024  # half of it is objects as text
MANAGED = {"manager": "kubectl", "fieldsV1": {"f:spec": {f"f:field{number}": {} for number in range(250)}}}  # 5 KiB


def crowd() -> World:
    """One pool with all that is its own, again and again: each in a namespace with a name of its own."""
    world = empty_world()
    world.kube.store({**pool_manifest(maxReplicas=2), "metadata": {"namespace": KEY[0], "name": KEY[1]}})
    world.start().settle()
    for item in list(world.kube.objects.values()):
        for number in range(NUM_POOLS):
            text = json.dumps(item).replace(f'"{KEY[0]}"', f'"{namespace(number)}"').replace('"uid-', f'"uid-{number}-')
            copy = json.loads(text)
            metadata = copy["metadata"]
            metadata["managedFields"] = [MANAGED]
            world.kube.objects[resource_of(copy), metadata["namespace"], metadata["name"]] = copy
    return world


def namespace(number: int) -> str:
    return f"{KEY[0]}-{number}"


async def look(process: Process, num_looks: int) -> None:
    """At every pool of the crowd."""
    for _ in range(num_looks):
        process.world.now += timedelta(seconds=LOOK_SECONDS)
        process.world.kube.fill(process.cache)
        for number in range(NUM_POOLS):
            await process.reconciler((namespace(number), KEY[1]))


def bytes_now() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def test_a_pool_at_rest_takes_little_and_no_more_with_every_look() -> None:
    world = crowd()
    asyncio.run(look(world.start(), 3))  # who comes later finds nothing to write
    tracemalloc.start()
    try:
        before = bytes_now()
        process = world.start()
        asyncio.run(look(process, 4))
        num_writes, kept = world.kube.num_writes, bytes_now() - before
        asyncio.run(look(process, 8))
        assert world.kube.num_writes == num_writes
        grown = bytes_now() - before - kept
    finally:
        tracemalloc.stop()
    assert kept / NUM_POOLS < MAX_BYTES_A_POOL
    assert grown < kept / 20
