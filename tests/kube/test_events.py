"""Events on a real API server: one for each thing said, repeats as a count."""

import asyncio
from datetime import UTC, datetime, timedelta

from e2e.cluster.api_server import ApiServer as Cluster
from pools import pool_manifest
from tidegate_operator.api.reasons import Reason
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.decisions.notes import Note
from tidegate_operator.kube import ApiServer
from tidegate_operator.report.events import EventRecorder
from tidegate_operator.resources import EVENT


def test_what_is_said_again_is_counted_and_what_is_new_is_another_event(api_server: Cluster, namespace: str) -> None:
    async def scenario() -> list[dict]:
        kube = ApiServer.connect(str(api_server.admin_kubeconfig))
        recorder = EventRecorder(kube, "this-operator")
        pool = InferencePool.model_validate(
            {**pool_manifest(), "metadata": {"name": "chat", "namespace": namespace, "uid": "u-1"}}
        )
        start = datetime.now(UTC)
        for seconds in range(3):
            await recorder.record(pool, Note(Reason.SCALED_UP, "1 -> 2"), start + timedelta(seconds=seconds))
        await recorder.record(pool, Note(Reason.DOES_NOT_FIT, "x" * 5000, "Warning"), start)
        found = await kube.list(EVENT, namespace)
        kube.close()
        return [dict(each) for each in found]

    events = {each["reason"]: each for each in asyncio.run(scenario())}
    assert set(events) == {"ScaledUp", "DoesNotFit"}
    assert events["ScaledUp"]["series"]["count"] == 3
    assert events["ScaledUp"]["type"] == "Normal"
    assert events["ScaledUp"]["regarding"]["name"] == "chat"
    assert events["DoesNotFit"]["type"] == "Warning"
    assert len(events["DoesNotFit"]["note"]) <= 1024
