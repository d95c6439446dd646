"""`tidegate plan --cluster`: room, rollout, time and money of a manifest, as the operator would decide them."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from pools import NOW, pod, pool_manifest, settled, stored
from shapes import shape_of
from tidegate_cli.cluster.planning import ClusterPlan, World, known_model, plan_there
from tidegate_cli.cluster.prospect import Prospect
from tidegate_cli.errors import BadPlan
from tidegate_core.inspected import Inspected
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.decisions.inspection import model_revision
from tidegate_operator.world.observed import Node, Observed
from tidegate_operator.world.prices import PriceList
from tidegate_operator.world.quota import Quota

GPU = "nvidia.com/gpu"
L4 = {f"{GPU}.product": "NVIDIA-L4", f"{GPU}.memory": "23034"}
SHORTER = {"context": {"max": 2048, "min": 2048}}
PHASES = {"scheduleSeconds": 1, "imageSeconds": 2, "downloadSeconds": 0, "loadSeconds": 30, "warmUpSeconds": 8}
PRICES = PriceList({"NVIDIA-L4": Decimal("0.71")})


def node(name: str, *, gpus: int = 4, used: int = 0) -> Node:
    return Node(name, L4, {GPU: str(gpus)}, used={GPU: str(used)})


def a_pool(**spec: Any) -> InferencePool:
    return stored(pool_manifest(accelerator={}, **spec))


def planned(
    pool: InferencePool, observed: Observed, live: InferencePool | None = None, prices: PriceList | None = None
) -> ClusterPlan:
    return plan_there(pool, World(live, observed, None), Inspected(shape_of()), prices)


def foreseen(
    pool: InferencePool, observed: Observed, live: InferencePool | None = None, prices: PriceList | None = None
) -> Prospect:
    found = planned(pool, observed, live, prices).prospect
    assert found is not None
    return found


def test_the_device_is_the_smallest_of_the_cluster_s_nodes() -> None:
    found = planned(a_pool(), Observed(nodes=(node("gpu-1"),)))
    assert (found.device.name, found.fit.memory_bytes) == ("NVIDIA-L4", 23034 * 2**20)


def test_nodes_that_do_not_tell_their_memory_are_bad_input() -> None:
    silent = Node("gpu-1", {}, {GPU: "1"}, used={})
    with pytest.raises(BadPlan, match=r"set accelerator\.memory"):
        planned(a_pool(), Observed(nodes=(silent,)))


def test_a_model_that_another_pool_had_inspected_is_known_and_another_revision_of_it_is_not() -> None:
    there = stored(pool_manifest("other", model={"uri": "hf://tiny/llama", "revision": "v1"}))
    revisions = (model_revision(there, Inspected(shape_of())),)
    same = stored(pool_manifest(model={"uri": "hf://tiny/llama", "revision": "v1"}))
    newer = stored(pool_manifest(model={"uri": "hf://tiny/llama", "revision": "v2"}))
    assert known_model(same, revisions) == Inspected(shape_of())
    assert known_model(newer, revisions) is None


def test_a_new_pool_replaces_nothing_and_shows_where_there_is_room() -> None:
    found = foreseen(a_pool(), Observed(nodes=(node("gpu-1", used=3), node("gpu-2", used=4))))
    assert found.room == f"{GPU} free: 1 on gpu-1"
    assert str(found.change) == "a new pool: nothing is replaced"
    assert found.cold_start.p90_seconds is None
    assert found.warnings == ()


def test_a_cluster_without_room_is_a_warning_with_numbers() -> None:
    (warning,) = foreseen(a_pool(), Observed(nodes=(node("gpu-1", used=4),))).warnings
    assert "fits nowhere now" in warning


def test_a_quota_that_holds_fewer_than_the_pool_starts_with_is_a_warning() -> None:
    quota = Quota("team", "gpus", hard={f"requests.{GPU}": "1"}, used={})
    observed = Observed(nodes=(node("gpu-1"),), quotas=(quota,))
    (warning,) = foreseen(a_pool(replicas=2), observed).warnings
    assert "ResourceQuota gpus" in warning
    assert foreseen(a_pool(replicas=1), observed).warnings == ()


@pytest.mark.parametrize(
    ("spec", "used", "words"),
    [
        ({}, 0, "no replica restarts"),
        ({"maxReplicas": 7}, 0, "no replica restarts"),
        (
            {"context": {"max": 2048, "min": 2048}},
            0,
            "2 replicas are replaced, Surge: 1 nvidia.com/gpu free on node gpu-1",
        ),
        ({"context": {"max": 2048, "min": 2048}}, 4, "2 replicas are replaced, Replace: no node has"),
    ],
)
def test_what_becomes_of_the_replicas_there_are_is_said_beforehand(spec: dict[str, Any], used: int, words: str) -> None:
    live = stored(pool_manifest())
    there = replace(settled(live), nodes=(node("gpu-1", used=used),), pods=(pod("chat-a"), pod("chat-b")))
    assert str(foreseen(stored(pool_manifest(**spec)), there, live).change).startswith(words)


def test_money_is_that_of_the_fewest_and_the_most_replicas() -> None:
    found = foreseen(a_pool(minReplicas=1, maxReplicas=4), Observed(nodes=(node("gpu-1"),)), prices=PRICES)
    assert str(found.cost) == "0.71 to 2.84 an hour; a replica 0.71 (1 x NVIDIA-L4 at 0.71)"
    document: Any = found.to_document()
    assert document["costPerHour"]["most"] == "2.84"


def test_without_a_price_nothing_is_said_about_money() -> None:
    found = foreseen(a_pool(), Observed(nodes=(node("gpu-1"),)), prices=PriceList({}))
    assert found.cost is None
    assert [name for name, _ in found.rows] == ["room", "rollout", "cold start"]


def test_the_cold_start_is_what_this_pool_s_replicas_took() -> None:
    sample = {"pod": "chat-a", "template": "t", "created": NOW.isoformat(), "seconds": 41, **PHASES}
    measured = {"p90Seconds": 41, "phases": PHASES, "measured": [sample]}
    live = stored({**pool_manifest(accelerator={}), "status": {"coldStart": measured}})
    found = foreseen(a_pool(), replace(settled(a_pool()), nodes=(node("gpu-1"),)), live)
    assert str(found.cold_start) == "41 s (p90 of 1 measured)"
