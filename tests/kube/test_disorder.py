"""What people, crashes and clocks do to pools meanwhile: the operator converges to the same children, then rests."""

import random
import signal
import time

from fake_engines import FakeEngines
from kubelet import Kubelet
from operator_process import OperatorUnderTest
from pools import pool_manifest
from tidegate_operator.decisions.failed_pods import MAX_KEPT
from tidegate_operator.world.readers import read_pod
from waiting import eventually

NUM_KILLS = 10
AUTO = {"minReplicas": 1, "maxReplicas": 4, "scaling": {"mode": "Auto", "scaleDownHoldSeconds": 3600}}


def become_ready(operator: OperatorUnderTest, name: str = "chat", ready: str = "1/1") -> None:
    def is_so() -> bool:
        status = operator.pool(name).get("status", {})
        return operator.is_current(name) and (status.get("phase"), status.get("ready")) == ("Ready", ready)

    eventually(is_so, timeout_seconds=60, what=f"{name} is Ready with {ready}")


def children(operator: OperatorUnderTest) -> list[str]:
    kinds = "deployments,services,serviceaccounts,configmaps,controllerrevisions,jobs"
    found = operator.get(kinds, selector="tidegate.dev/pool")
    return sorted(f"{each['kind']}/{each['metadata']['name']}" for each in found)


def kubectl(operator: OperatorUnderTest, *arguments: str) -> str:
    return operator.access.kubectl(*arguments, "-n", operator.namespace)


def test_killed_again_and_again_at_any_line_it_converges_to_the_same_children(operator: OperatorUnderTest) -> None:
    """Pools are created, scaled, changed and drained meanwhile; when a kill falls is random, and printed."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    manual = {"scaling": {"mode": "Manual"}, "drain": {"timeoutSeconds": 1}}
    wishes = [
        {"replicas": 1, **manual},
        {"replicas": 3, **manual},
        {"replicas": 1, **manual},
        {"replicas": 2, **manual, "context": {"max": 2048, "min": 1024}},
        {"replicas": 1, **manual, "context": {"max": 2048, "min": 1024}},
    ]
    for kill in range(NUM_KILLS):
        if kill % 2 == 0:
            wish = wishes[min(kill // 2, len(wishes) - 1)]
            for name in ("a", "b"):
                operator.apply(pool_manifest(name, **wish))
        end = time.monotonic() + rng.uniform(0, 0.8)
        eventually(lambda end=end: time.monotonic() >= end, what="the moment of the kill")
        operator.stop(signal.SIGKILL)
        operator.start()
    for name in ("a", "b"):
        become_ready(operator, name)
    eventually(lambda: len(operator.get("pods")) == 2, timeout_seconds=60)
    found = children(operator)
    for name in ("a", "b"):
        ours = [each for each in found if each.split("/")[1].split("-")[0] == name]
        assert [each for each in ours if not each.startswith("ControllerRevision")] == [
            f"Deployment/{name}", f"Service/{name}", f"ServiceAccount/{name}"
        ]  # fmt: skip
        assert [each for each in ours if "-model-" not in each and each.startswith("ControllerRevision")] == [
            f"ControllerRevision/{name}-1", f"ControllerRevision/{name}-2"
        ]  # fmt: skip
    operator.assert_quiescent()


def test_marks_that_a_person_garbled_are_put_right(operator: OperatorUnderTest) -> None:
    operator.apply(pool_manifest(replicas=2, maxReplicas=2))
    become_ready(operator, ready="2/2")
    first, second = (pod["metadata"]["name"] for pod in operator.engine_pods())
    kubectl(operator, "annotate", "pod", first, "tidegate.dev/draining-since=yesterday")
    kubectl(operator, "label", "pod", second, "tidegate.dev/serving=false", "--overwrite")

    def are_right() -> bool:
        return all(pod["metadata"]["labels"]["tidegate.dev/serving"] == "true"
                   and "tidegate.dev/draining-since" not in pod["metadata"].get("annotations", {})
                   for pod in operator.engine_pods())  # fmt: skip

    eventually(are_right)
    become_ready(operator, ready="2/2")
    assert {first, second} == {pod["metadata"]["name"] for pod in operator.engine_pods()}
    assert "Traceback" not in operator.log()
    operator.assert_quiescent()


def test_labels_of_strangers_cost_the_operator_nothing(operator: OperatorUnderTest) -> None:
    kubectl(operator, "create", "configmap", "odd")
    kubectl(operator, "label", "configmap", "odd", "tidegate.dev/pool=")
    kubectl(operator, "create", "configmap", "other")
    kubectl(operator, "label", "configmap", "other", "tidegate.dev/pool=No_such.pool")
    operator.apply(pool_manifest())
    become_ready(operator)
    assert "failed, again in" not in operator.log()
    operator.assert_quiescent()


def test_a_service_that_a_person_puts_beside_the_pool_under_its_label_is_no_obstacle(
    operator: OperatorUnderTest,
) -> None:
    own = {"name": "chat-public", "labels": {"tidegate.dev/pool": "chat"}}
    operator.apply({"apiVersion": "v1", "kind": "Service", "metadata": own, "spec": {"ports": [{"port": 80}]}})
    operator.apply(pool_manifest())
    become_ready(operator)
    assert operator.exists("service", "chat-public")
    operator.assert_quiescent()


def test_a_pod_that_only_looks_like_ours_is_neither_counted_nor_touched(operator: OperatorUnderTest) -> None:
    operator.apply(pool_manifest())
    become_ready(operator)
    stranger = {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "debug", "labels": {"tidegate.dev/pool": "chat", "tidegate.dev/role": "engine"}},
        "spec": {"containers": [{"name": "shell", "image": "shell"}]},
    }  # fmt: skip
    operator.apply(stranger)
    before = operator.num_reconciles()
    eventually(lambda: operator.num_reconciles() > before + 5)
    assert operator.pool()["status"]["replicas"] == 1
    assert operator.condition("Progressing")["reason"] == "UpToDate"
    assert "tidegate.dev/serving" not in operator.get("pod", "debug")["metadata"]["labels"]
    operator.assert_quiescent()


def test_load_reports_that_lie_neither_stop_the_pool_nor_move_its_status(
    operator: OperatorUnderTest, engines: FakeEngines
) -> None:
    operator.apply(pool_manifest(**{**AUTO, "replicas": 2}))
    become_ready(operator, ready="2/2")
    good = next(iter(engines.by_pod.values())).report.model_dump_json(by_alias=True)
    (_, liar) = engines.by_pod.values()
    for lie in (
        good.replace('"etaSeconds":0.0', '"etaSeconds":NaN'),
        good.replace('"etaSeconds":0.0', '"etaSeconds":1e999'),
        good.replace('"running":0', '"running":1' + "0" * 400),
        good.replace('"running":0', '"running":-5'),
        good.replace('"kvBlocksTotal":500', '"kvBlocksTotal":1' + "0" * 30),
        "[]", "not JSON", "", "x" * 3_000_000,
    ):  # fmt: skip
        liar.body = lie
        before = operator.num_reconciles()
        eventually(lambda before=before: operator.num_reconciles() > before + 3)
        assert operator.pool()["status"]["desiredReplicas"] == 2, lie[:200]
        assert "failed, again in" not in operator.log(), operator.log()[-2000:]
    operator.assert_quiescent()


def test_pods_that_nobody_may_create_are_explained(operator: OperatorUnderTest) -> None:
    operator.apply(pool_manifest())
    become_ready(operator)
    operator.apply(pool_manifest(pod={"priorityClassName": "no-such-class"}))
    eventually(lambda: operator.condition("Progressing").get("reason") == "PodsRefused")
    assert "no-such-class" in operator.condition("Progressing")["message"]
    operator.assert_quiescent()


def test_of_pods_that_a_node_refused_a_few_stay_and_the_others_are_collected(
    operator: OperatorUnderTest, nodes: Kubelet
) -> None:
    operator.apply(pool_manifest())
    become_ready(operator)
    refusal = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Allocate failed: no devices"}
    refused: set[str] = set()

    def serving() -> str | None:
        """One that the kubelet's stand-in has nothing more to say of."""
        pods = [read_pod(pod) for pod in operator.engine_pods()]
        return next((pod.name for pod in pods if pod.is_ready and pod.name not in refused), None)

    for _ in range(MAX_KEPT + 2):
        name = eventually(serving, timeout_seconds=90, what="another pod serves")
        nodes.write_status(name, refusal)
        refused.add(name)
    eventually(lambda: len(operator.engine_pods()) == MAX_KEPT + 1)
    become_ready(operator)
    operator.assert_quiescent()


def test_an_inspection_whose_pod_nobody_may_create_says_where_to_look(operator: OperatorUnderTest) -> None:
    operator.apply(pool_manifest(pod={"priorityClassName": "no-such-class"}))
    eventually(lambda: operator.condition("ModelResolved").get("reason") == "PodsRefused")
    assert "kubectl describe job chat-inspect-" in operator.condition("ModelResolved")["message"]
    operator.assert_quiescent()


def test_a_quota_that_forbids_a_child_is_named_until_it_is_raised(operator: OperatorUnderTest) -> None:
    kubectl(operator, "create", "quota", "none", "--hard=count/deployments.apps=0")
    eventually(lambda: operator.access.kubectl("get", "quota", "none", "-n", operator.namespace, "-o",
                                               "jsonpath={.status.hard}"))  # fmt: skip
    operator.apply(pool_manifest())
    eventually(lambda: operator.condition("Stalled").get("reason") == "ApplyFailed")
    assert "exceeded quota" in operator.condition("Stalled")["message"]
    operator.assert_quiescent()
    kubectl(operator, "delete", "quota", "none")
    become_ready(operator)


def test_two_pools_share_a_claim_and_deleting_one_leaves_the_other(operator: OperatorUnderTest) -> None:
    for name in ("one", "two"):
        operator.apply(pool_manifest(name))
    for name in ("one", "two"):
        become_ready(operator, name)
    kubectl(operator, "delete", "inferencepools.tidegate.dev", "one")
    eventually(lambda: not [each for each in children(operator) if "/one" in each], timeout_seconds=60)
    become_ready(operator, "two")
    operator.assert_quiescent()


def test_an_edited_chat_template_rolls_the_pods_and_its_old_map_is_collected(operator: OperatorUnderTest) -> None:
    def apply(text: str) -> None:
        operator.apply(pool_manifest(model={"uri": "pvc://models/qwen", "chatTemplate": text}))

    apply("{{ first }}")
    become_ready(operator)
    before = {pod["metadata"]["uid"] for pod in operator.engine_pods()}
    for text in ("{{ second }}", "{{ third }}"):
        apply(text)
        eventually(lambda before=before: before.isdisjoint({pod["metadata"]["uid"] for pod in operator.engine_pods()}))
        become_ready(operator)
        before = {pod["metadata"]["uid"] for pod in operator.engine_pods()}
    texts = {each["data"]["chat_template.jinja"] for each in operator.get("configmaps", selector="tidegate.dev/pool")}
    assert texts == {"{{ second }}", "{{ third }}"}, "of the current template and the one before"
    operator.assert_quiescent()


def test_bounds_move_a_running_pool_and_so_does_its_mode(operator: OperatorUnderTest) -> None:
    operator.apply(pool_manifest(**AUTO))
    become_ready(operator, ready="1/1")
    operator.apply(pool_manifest(**{**AUTO, "minReplicas": 3}))
    become_ready(operator, ready="3/3")
    operator.apply(pool_manifest(**{**AUTO, "maxReplicas": 2}))
    become_ready(operator, ready="2/2")
    operator.apply(pool_manifest(scaling={"mode": "Manual"}, replicas=3))
    become_ready(operator, ready="3/3")
    operator.apply(pool_manifest(**{**AUTO, "replicas": 1}))
    become_ready(operator, ready="3/3")
    assert operator.pool()["status"]["desiredReplicas"] == 3, "Auto goes on from the size it finds"
    operator.assert_quiescent()


def test_a_pool_deleted_while_it_drains_with_the_operator_down_leaves_nothing(
    operator: OperatorUnderTest, nodes: Kubelet
) -> None:
    operator.apply(pool_manifest(scaling={"mode": "Manual"}, replicas=2))
    become_ready(operator, ready="2/2")
    for engine in nodes.engines.by_pod.values():
        engine.set_load(running=3)
    kubectl(operator, "scale", "inferencepools.tidegate.dev", "chat", "--replicas=1")
    eventually(lambda: any(engine.report.draining for engine in nodes.engines.by_pod.values()))
    operator.stop(signal.SIGKILL)
    kubectl(operator, "delete", "inferencepools.tidegate.dev", "chat")
    eventually(lambda: not children(operator) and not operator.get("pods"), timeout_seconds=60)
    operator.start()
    operator.apply(pool_manifest())
    become_ready(operator)
    operator.assert_quiescent()


def test_any_spelling_of_a_quantity_ends_in_a_status_and_rest(operator: OperatorUnderTest) -> None:
    spellings: tuple[str | int, ...] = ("24e9", "0.5Ti", "8Pi", 25769803776, "+24Gi", "24000000000000m")
    names = [f"{device}{number}" for number in range(len(spellings)) for device in ("gpu", "cpu")]
    for number, memory in enumerate(spellings):
        limits = {"memory": memory, "cpu": "1.5"}
        operator.apply(pool_manifest(f"gpu{number}", accelerator={"memory": memory}))
        operator.apply(
            pool_manifest(f"cpu{number}", accelerator={"resource": "cpu"}, pod={"resources": {"limits": limits}})
        )
    for name in names:
        eventually(lambda name=name: operator.pool(name).get("status", {}).get("phase") in ("Ready", "DoesNotFit"))
    assert "failed, again in" not in operator.log(), operator.log()[-2000:]
    operator.assert_quiescent()
