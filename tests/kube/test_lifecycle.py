"""A pool's life on a real API server: children, status, drift, restarts, deletion. The operator runs under its role."""

import signal

from kubelet import Kubelet
from operator_process import OperatorUnderTest
from pools import cpu_pool_manifest, pool_manifest
from waiting import eventually

CHILD_KINDS = "deployments,services,serviceaccounts,configmaps,controllerrevisions,jobs"


def become_ready(operator: OperatorUnderTest, name: str = "chat") -> None:
    def is_so() -> bool:
        return operator.is_current(name) and operator.is_condition("Ready", "True", name)

    eventually(is_so, what=f"{name} is Ready")


def children(operator: OperatorUnderTest) -> set[str]:
    ours = operator.get(CHILD_KINDS, selector="tidegate.dev/pool")
    return {f"{item['kind']}/{item['metadata']['name']}" for item in ours}


def test_a_pool_becomes_ready_with_its_sizing_in_status(operator: OperatorUnderTest) -> None:
    operator.apply(pool_manifest(replicas=2, maxReplicas=4))
    become_ready(operator)
    pool = operator.pool()
    status = pool["status"]
    assert status["model"]["architecture"] == "qwen3"
    assert status["sizing"]["context"] == 4096
    assert status["sizing"]["slots"] > 1
    assert status["ready"] == "2/2"
    assert status["phase"] == "Ready"
    assert status["observedGeneration"] == pool["metadata"]["generation"]
    assert status["endpoint"] == f"http://chat.{operator.namespace}.svc:8000/v1"
    assert {each["type"] for each in status["conditions"]}.isdisjoint({"Stalled", "Reconciling"})
    assert "annotations" not in pool["metadata"]
    assert "finalizers" not in pool["metadata"]
    operator.assert_quiescent()


def test_a_cpu_pool_surges_and_an_accelerator_pool_replaces_in_place(operator: OperatorUnderTest) -> None:
    operator.apply(cpu_pool_manifest("on-cpu"))
    operator.apply(pool_manifest("on-gpu"))
    for name in ("on-cpu", "on-gpu"):
        become_ready(operator, name)
    on_cpu, on_gpu = (operator.get("deployment", name)["spec"] for name in ("on-cpu", "on-gpu"))
    assert on_cpu["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert on_gpu["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    limits = on_gpu["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "1"
    operator.assert_quiescent()


def test_drift_is_repaired_and_fields_of_others_are_kept(operator: OperatorUnderTest) -> None:
    operator.apply(pool_manifest())
    become_ready(operator)
    kubectl = operator.access.kubectl
    kubectl("annotate", "deployment", "chat", "team=blue", "-n", operator.namespace)
    kubectl("patch", "service", "chat", "-n", operator.namespace, "--type=merge", "-p",
            '{"spec": {"selector": {"tidegate.dev/serving": "false"}}}')  # fmt: skip
    kubectl("scale", "deployment", "chat", "--replicas=0", "-n", operator.namespace)

    def repaired() -> bool:
        service, deployment = operator.get("service", "chat"), operator.get("deployment", "chat")
        assert deployment["metadata"]["annotations"]["team"] == "blue"
        return service["spec"]["selector"]["tidegate.dev/serving"] == "true" and deployment["spec"]["replicas"] == 1

    eventually(repaired, timeout_seconds=10)
    (pod,) = eventually(operator.engine_pods)
    become_ready(operator)
    kubectl("label", "pod", pod["metadata"]["name"], "tidegate.dev/template-", "-n", operator.namespace)
    operator.assert_quiescent()
    assert operator.condition("Progressing")["reason"] == "UpToDate", "its ReplicaSet keeps it"
    assert operator.pool()["status"]["updatedReplicas"] == 1


def test_a_deleted_child_comes_back(operator: OperatorUnderTest) -> None:
    operator.apply(pool_manifest())
    become_ready(operator)
    for kind in ("deployment", "service", "serviceaccount"):
        before = operator.get(kind, "chat")["metadata"]["uid"]
        operator.access.kubectl("delete", kind, "chat", "-n", operator.namespace, "--wait=false")
        eventually(
            lambda kind=kind, before=before: (
                operator.exists(kind, "chat") and operator.get(kind, "chat")["metadata"]["uid"] != before
            )
        )
        become_ready(operator)
    operator.assert_quiescent()


def test_deleting_a_pool_with_the_operator_stopped_leaves_nothing(operator: OperatorUnderTest) -> None:
    operator.apply(pool_manifest(model={"uri": "pvc://models/qwen", "chatTemplate": "{{ messages }}"}))
    become_ready(operator)
    assert {"ConfigMap"} <= {name.split("/")[0] for name in children(operator)}
    assert operator.stop() == 0
    operator.access.kubectl("delete", "inferencepools.tidegate.dev", "chat", "-n", operator.namespace)
    eventually(lambda: not children(operator) and not operator.get("pods"), timeout_seconds=60)


def test_the_users_claim_outlives_the_pool_and_no_pod_of_ours_keeps_it(operator: OperatorUnderTest) -> None:
    kubectl = operator.access.kubectl
    operator.apply(pool_manifest())
    become_ready(operator)
    eventually(lambda: len(operator.get("pods")) == 1, what="the inspection's pod is gone, the engine's is left")
    kubectl("delete", "inferencepools.tidegate.dev", "chat", "-n", operator.namespace)
    eventually(lambda: not children(operator) and not operator.get("pods"), timeout_seconds=60)
    assert "deletionTimestamp" not in kubectl("get", "pvc", "models", "-n", operator.namespace, "-o", "yaml")


def test_replicas_that_never_came_up_are_replaced_by_a_corrected_template(
    operator: OperatorUnderTest, nodes: Kubelet
) -> None:
    nodes.becomes_ready = False
    operator.apply(pool_manifest(replicas=2, maxReplicas=2))
    broken = eventually(lambda: len(nodes.engines.by_pod) == 2 and dict(nodes.engines.by_pod))
    for engine in broken.values():
        engine.is_ready = False  # whatever happens
    nodes.becomes_ready = True
    operator.apply(pool_manifest(replicas=2, maxReplicas=2, context={"max": 2048, "min": 1024}))
    eventually(lambda: broken.keys().isdisjoint(pod["metadata"]["name"] for pod in operator.get("pods")))
    become_ready(operator)
    operator.assert_quiescent()


def test_a_pool_deleted_while_its_engines_load_leaves_nothing(operator: OperatorUnderTest, nodes: Kubelet) -> None:
    nodes.becomes_ready = False
    operator.apply(pool_manifest())
    eventually(lambda: operator.condition("Progressing").get("reason") == "ReplicasStarting")
    operator.access.kubectl("delete", "inferencepools.tidegate.dev", "chat", "-n", operator.namespace)
    eventually(lambda: not children(operator) and not operator.get("pods"), timeout_seconds=60)
    assert "Traceback" not in operator.log()


def test_a_pool_created_again_under_the_same_name_waits_for_the_garbage_collector(operator: OperatorUnderTest) -> None:
    operator.apply(pool_manifest())
    become_ready(operator)
    operator.access.kubectl("delete", "inferencepools.tidegate.dev", "chat", "-n", operator.namespace)
    operator.apply(pool_manifest())
    become_ready(operator)
    uid = operator.pool()["metadata"]["uid"]
    owners = {owner["uid"] for item in operator.get(CHILD_KINDS, selector="tidegate.dev/pool")
              for owner in item["metadata"]["ownerReferences"]}  # fmt: skip
    assert owners == {uid}
    operator.assert_quiescent()


def test_a_restart_in_the_middle_of_a_reconcile_converges(operator: OperatorUnderTest) -> None:
    """Killed without notice, again and again, while three pools are being built."""
    for name in ("a", "b", "c"):
        operator.apply(pool_manifest(name))
    for child in ("a-1", "b-1", "c-1"):
        eventually(lambda child=child: operator.exists("controllerrevision", child), timeout_seconds=30)
        operator.stop(signal.SIGKILL)
        operator.start()
    for name in ("a", "b", "c"):
        become_ready(operator, name)
    assert len(operator.get("deployments")) == 3
    assert len(operator.engine_pods()) == 3
    operator.assert_quiescent()


def test_a_restarted_operator_writes_nothing_to_a_settled_pool(operator: OperatorUnderTest) -> None:
    operator.apply(pool_manifest(replicas=2, maxReplicas=3))
    become_ready(operator)
    operator.assert_quiescent()
    before = operator.versions()
    assert operator.stop() == 0
    operator.start()
    operator.assert_quiescent()
    assert operator.versions() == before


def test_an_operator_with_other_templates_restarts_no_pod_until_inputs_change(operator: OperatorUnderTest) -> None:
    operator.apply(pool_manifest())
    become_ready(operator)
    pods = {pod["metadata"]["uid"] for pod in operator.engine_pods()}
    operator.stop()
    operator.settings["TIDEGATE_ENGINE__IMAGE"] = "localhost/engine:newer"
    operator.start()
    operator.assert_quiescent()
    assert {pod["metadata"]["uid"] for pod in operator.engine_pods()} == pods
    operator.apply(pool_manifest(context={"max": 2048, "min": 1024}))

    def image() -> str:
        return str(operator.get("deployment", "chat")["spec"]["template"]["spec"]["containers"][0]["image"])

    eventually(lambda: image().endswith("newer"))
    eventually(lambda: pods.isdisjoint(pod["metadata"]["uid"] for pod in operator.engine_pods()))
    become_ready(operator)
    operator.assert_quiescent()


def test_suspend_stops_every_replica_and_resuming_starts_them(operator: OperatorUnderTest) -> None:
    operator.apply(pool_manifest(replicas=2, maxReplicas=2))
    become_ready(operator)
    operator.apply(pool_manifest(replicas=2, maxReplicas=2, suspend=True))
    eventually(lambda: operator.condition("Ready").get("reason") == "Suspended" and not operator.get("pods"))
    operator.assert_quiescent()
    operator.apply(pool_manifest(replicas=2, maxReplicas=2, suspend=False))
    become_ready(operator)
    assert operator.pool()["status"]["ready"] == "2/2"
    operator.assert_quiescent()
