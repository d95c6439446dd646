"""Reading a pool: what cannot be read is named for a person, field by field."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from memory_kube import MemoryKube
from pools import pool, pool_manifest
from tidegate_operator.api.spec import RolloutStrategy
from tidegate_operator.errors import UnreadablePool
from tidegate_operator.kube import ApiServer
from tidegate_operator.labels import ENGINE_ROLE, TEMPLATE_LABEL, labels
from tidegate_operator.manifests.deployment import deployment
from tidegate_operator.manifests.inspection_job import inspection_job
from tidegate_operator.manifests.pod import Runtime
from tidegate_operator.world.nodes import NodeCache
from tidegate_operator.world.observe import Seen, observe, observe_pool
from tidegate_operator.world.observed import Pod
from tidegate_operator.world.scrape import Answers


class StoredPool(ApiServer):
    """One object, whatever is asked for."""

    def __init__(self, stored: dict[str, Any]) -> None:
        self._stored = stored

    async def get(self, *_: object) -> dict[str, Any]:
        return self._stored


def test_a_pool_of_another_crd_is_named_with_its_fields_instead_of_a_traceback() -> None:
    kube = StoredPool(pool_manifest(replicas="many"))
    with pytest.raises(UnreadablePool, match=r"spec\.replicas: .*is the CRD of this operator's version installed"):
        asyncio.run(observe_pool(kube, ("team", "chat")))


class NoEngines:
    """Nobody to ask."""

    async def loads(self, _: Iterable[Pod]) -> Answers:
        return Answers({}, {})

    async def set_draining(self, pod: Pod, *, is_draining: bool) -> None:
        raise AssertionError(f"{pod.name}: {is_draining}")


def test_a_copy_of_an_inspection_job_that_a_person_made_is_no_try_of_ours() -> None:
    kube = MemoryKube()
    for name in ("chat-inspect-0123abcd-1", "chat-inspect-0123abcd-1-debug", "copy"):
        kube.store(inspection_job(pool(), name, Runtime("engine:1", {})))
    seen = Seen(pool(), is_scaled_by_others=False)
    found = asyncio.run(observe(kube, NoEngines(), NodeCache(kube, is_allowed=False), seen, None))
    assert [(each.name, each.attempt) for each in found.inspections] == [("chat-inspect-0123abcd-1", 1)]


@pytest.mark.parametrize(
    ("counts", "template"),
    [
        pytest.param({"replicas": 1, "updatedReplicas": 1}, "new", id="every pod has the Deployment's template"),
        pytest.param({"replicas": 1, "updatedReplicas": 0}, "", id="one of them is still to be replaced"),
    ],
)
def test_a_pod_whose_template_label_a_person_took_away_has_the_template_that_the_deployment_says(
    counts: dict[str, int], template: str
) -> None:
    kube = MemoryKube()
    made = deployment(
        pool(), {"metadata": {"labels": {TEMPLATE_LABEL: "new"}}, "spec": {}}, num_replicas=1, num_desired=1,
        strategy=RolloutStrategy.SURGE, rollout_memory="{}",
    )  # fmt: skip
    kube.store({**made, "status": {"observedGeneration": 1, **counts}})
    owner = {"kind": "ReplicaSet", "name": "chat-1", "uid": "rs", "controller": True}
    metadata = {
        "name": "chat-1-x", "namespace": "team", "labels": labels(pool(), ENGINE_ROLE), "ownerReferences": [owner],
    }  # fmt: skip
    kube.store({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
    seen = Seen(pool(), is_scaled_by_others=False)
    found = asyncio.run(observe(kube, NoEngines(), NodeCache(kube, is_allowed=False), seen, None))
    assert [each.template for each in found.pods] == [template]
