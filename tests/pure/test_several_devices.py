"""A pool whose replica takes two devices, question by question: its pod, room, quota, price, and what is learned."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from pools import IDLE, NOW, SETTINGS, inspected, pod, pool, pool_manifest, settled, stored
from restricted import violations
from shapes import full_layers, shape_of
from tidegate_cli.cluster import explain
from tidegate_cli.cluster.planning import World, plan_there
from tidegate_cli.cluster.status import to_table
from tidegate_core.inspected import Inspected
from tidegate_core.launch import EngineLaunch, RunnerKind
from tidegate_operator.api.spec import RolloutStrategy
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.decisions.engine_version import EngineDefaults
from tidegate_operator.decisions.plan import PlanSettings
from tidegate_operator.decisions.planning import plan
from tidegate_operator.decisions.revisions import TemplateRevision
from tidegate_operator.decisions.rollout import choose_strategy, num_accelerators
from tidegate_operator.decisions.scale import ScaleTiming
from tidegate_operator.manifests.pod import Runtime
from tidegate_operator.report.cost import cost_of
from tidegate_operator.report.status import status
from tidegate_operator.sizing.experience import Experience
from tidegate_operator.sizing.fitting import find_fit
from tidegate_operator.world.observed import Node, Observed
from tidegate_operator.world.prices import PriceList
from tidegate_operator.world.quota import Quota, room
from tidegate_operator.world.surroundings import Neighbourhood

GPU = "nvidia.com/gpu"
H100 = {f"{GPU}.product": "NVIDIA-H100-80GB-HBM3", f"{GPU}.memory": "81559"}
LARGE = shape_of(full_layers(80, 8, 128), linear_elements=68_000_000_000, num_attention_heads=64)  # Llama 3.1 70B
PRICES = PriceList({"NVIDIA-H100-80GB-HBM3": Decimal("4.10")})
MIB = 2**20


def node(name: str, *, gpus: int = 4, used: int = 0) -> Node:
    return Node(name, H100, {GPU: str(gpus)}, used={GPU: str(used)})


def world(subject: InferencePool, *nodes: Node, settings: PlanSettings = SETTINGS) -> Observed:
    """The large model is inspected; the pool's children are not there yet."""
    (job,) = plan(subject, Observed(), settings, NOW).apply
    found = inspected(LARGE.to_json(), name=job["metadata"]["name"])
    return Observed(inspections=(found,), nodes=nodes or (node("a"),))


def revision(subject: InferencePool, observed: Observed, settings: PlanSettings = SETTINGS) -> TemplateRevision:
    current = plan(subject, observed, settings, NOW).revisions.current
    assert current is not None
    return current


def engine(found: TemplateRevision) -> dict[str, Any]:
    (only,) = found.template["spec"]["containers"]
    return dict(only)


def test_its_pod_has_the_devices_a_core_for_each_and_memory_through_which_its_processes_talk() -> None:
    subject = pool(accelerator={})
    two = revision(subject, world(subject))
    launch = EngineLaunch.from_args(engine(two)["args"][1:])
    resources = engine(two)["resources"]
    assert launch.tensor_parallel == two.sizing.tensor_parallel == 2
    assert (resources["limits"][GPU], resources["requests"][GPU], resources["requests"]["cpu"]) == ("2", "2", "2")
    (volume,) = (each for each in two.template["spec"]["volumes"] if each["name"] == "shm")
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "4160Mi"}
    assert {"name": "shm", "mountPath": "/dev/shm"} in engine(two)["volumeMounts"]
    asked_mib = int(resources["requests"]["memory"].removesuffix("Mi"))
    assert asked_mib >= 4160 + two.sizing.resident_bytes / MIB, "what lies in /dev/shm is memory of the container"
    assert violations(two.template["spec"]) == []


def test_a_replica_on_one_device_has_neither() -> None:
    one = revision(pool(), settled())
    assert "shm" not in {each["name"] for each in one.template["spec"]["volumes"]}
    assert not any("tensor-parallel" in each for each in engine(one)["args"])


def test_what_the_user_says_about_host_memory_and_cores_stays() -> None:
    subject = pool(accelerator={}, pod={"resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}})
    requests = engine(revision(subject, world(subject)))["resources"]["requests"]
    assert (requests["cpu"], requests["memory"], requests[GPU]) == ("500m", "1Gi", "2")


def test_what_is_asked_for_unsaid_stays_within_the_users_limits() -> None:
    subject = pool(accelerator={}, pod={"resources": {"limits": {"cpu": "1500m", "memory": "4Gi"}}})
    requests = engine(revision(subject, world(subject)))["resources"]["requests"]
    assert (requests["cpu"], requests["memory"], requests[GPU]) == ("1500m", "4Gi", "2")


def test_a_container_of_the_operators_settings_takes_no_device() -> None:
    patch = {"spec": {"containers": [{"name": "proxy", "image": "proxy:1"}]}}
    patched = replace(SETTINGS.engine, runtime=replace(SETTINGS.engine.runtime, pod_patch=patch))
    settings = replace(SETTINGS, engine=patched)
    subject = pool(accelerator={})
    template = revision(subject, world(subject, settings=settings), settings).template
    assert len(template["spec"]["containers"]) == 2
    assert num_accelerators(template, GPU) == 2


def test_a_simulated_engine_gets_the_pool_of_one_of_its_devices() -> None:
    simulated = PlanSettings(EngineDefaults(Runtime("e", {}), runner=RunnerKind.SIM), ScaleTiming())
    subject = pool(accelerator={})
    found = revision(subject, world(subject, settings=simulated), simulated)
    launch = EngineLaunch.from_args(engine(found)["args"][1:])
    assert (launch.tensor_parallel, launch.kv_memory) == (2, found.sizing.kv_pool_bytes)


@pytest.mark.parametrize(
    ("used", "strategy", "why"),
    [
        ((2, 4), RolloutStrategy.SURGE, "2 nvidia.com/gpu free on node a"),
        ((3, 3), RolloutStrategy.REPLACE, "no node has 2 nvidia.com/gpu free"),
    ],
    ids=["two on one node", "one on each of two"],
)
def test_a_rollout_surges_where_one_node_has_all_devices_of_a_replica_free(
    used: tuple[int, int], strategy: RolloutStrategy, why: str
) -> None:
    subject = pool(accelerator={})
    observed = world(subject, node("a", used=used[0]), node("b", used=used[1]))
    assert choose_strategy(subject, revision(subject, observed).template, observed) == (strategy, why)


def test_a_quota_of_devices_counts_two_a_replica() -> None:
    subject = pool(accelerator={})
    template = revision(subject, world(subject)).template
    quota = Quota("team", "gpus", hard={f"requests.{GPU}": "7"}, used={f"requests.{GPU}": "2"})
    allowed = room((quota,), template)
    assert allowed.num_more == 2
    assert "a replica asks for 2" in allowed.why


def test_a_replica_costs_both_devices() -> None:
    subject = pool(accelerator={})
    observed = replace(
        world(subject),
        pods=(pod("a", node="a"), pod("b", node="a")),
        around=Neighbourhood(prices=PRICES),
    )
    cost = cost_of(subject, observed, revision(subject, observed).template)
    assert cost is not None
    assert (cost.per_hour, cost.basis) == ("16.4", "2 replicas: 2 x NVIDIA-H100-80GB-HBM3 at 4.1")


def test_a_plan_for_a_cluster_counts_room_and_money_for_both() -> None:
    subject = pool(accelerator={}, maxReplicas=2)
    observed = Observed(nodes=(node("a", used=3), node("b", used=3)))
    found = plan_there(subject, World(None, observed, None), Inspected(LARGE), PRICES)
    assert found.prospect is not None
    assert found.fit.tensor_parallel == 2
    assert found.prospect.warnings == (
        "fits nowhere now: a replica needs 2 nvidia.com/gpu on one node, largest contiguous = 1, 2 free on 2 nodes",
    )
    assert str(found.prospect.cost).startswith("8.20 to 16.40 an hour; a replica 8.20 (2 x NVIDIA-H100")


def test_a_plan_for_a_cluster_whose_nodes_are_too_small_says_so_with_numbers() -> None:
    small = World(None, Observed(nodes=(node("a", gpus=1),)), None)
    found = plan_there(pool(accelerator={}), small, Inspected(LARGE), None)
    assert found.prospect is None
    assert found.fit.statement == (
        "does not fit: a replica takes 2 devices of 79.65 GiB on one node, and no node has more than 1"
    )


def test_status_has_the_terms_of_one_device_and_says_how_many() -> None:
    subject = pool(accelerator={})
    observed = world(subject)
    new = status(subject, observed, plan(subject, observed, SETTINGS, NOW), (), NOW)
    shown = new.sizing
    assert shown is not None
    assert (shown.tensor_parallel, shown.memory_bytes) == (2, 81559 * MIB)
    assert shown.collectives_bytes
    assert shown.weight_bytes < 0.51 * LARGE.num_parameters * 2
    known = stored({**pool_manifest(accelerator={}), "status": new.to_wire()})
    assert "2 x 79.65 GiB, nvidia.com/gpu" in to_table(known, [], NOW)
    assert f"{shown.slots} slots a replica of 2 devices" in explain.to_table(known, [], NOW)


def test_what_engines_on_two_devices_measured_says_nothing_about_one_or_four() -> None:
    subject = pool(accelerator={})
    first = revision(subject, world(subject))
    estimated = first.sizing.runtime_bytes + first.sizing.weight_bytes
    measured = IDLE.sizing.model_copy(update={"loaded_bytes": estimated * 110 // 100})
    observed = replace(
        world(subject),
        pods=(pod(template=first.template_hash),),
        loads={"chat-a": IDLE.model_copy(update={"sizing": measured})},
    )
    (learned,) = status(subject, observed, plan(subject, observed, SETTINGS, NOW), (), NOW).learned_sizing
    assert (learned.tensor_parallel, learned.loaded_percent) == (2, 110)
    known = Experience("engine:1", (learned,))
    percents = {}
    for count in (1, 2, 4):
        asked = stored(pool_manifest(accelerator={"count": count}))
        basis = find_fit(asked, LARGE, (node("a", gpus=8),), known).basis
        percents[count] = basis and basis.loaded_percent
    assert percents == {1: 100, 2: 110, 4: 100}
