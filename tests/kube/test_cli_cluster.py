"""`tidegate status`, `explain`, `top` and `drain` against a real API server, with the operator at work."""

import json
from pathlib import Path

import pytest

from operator_process import OperatorUnderTest
from pools import pool_manifest
from tidegate_cli.__main__ import main
from waiting import eventually


def test_a_pool_is_planned_shown_explained_and_one_of_its_replicas_drained(
    operator: OperatorUnderTest, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    where = ["--kubeconfig", str(operator.access.kubeconfig), "-n", operator.namespace]
    operator.apply(pool_manifest(replicas=2, maxReplicas=4))
    eventually(lambda: operator.is_condition("Ready", "True"), what="chat is Ready")

    def said(*argv: str) -> str:
        assert main([*argv, *where]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    manifest = tmp_path / "pool.yaml"
    for context, words in ((4096, "no replica restarts"), (2048, "2 replicas are replaced, ")):
        manifest.write_text(json.dumps(pool_manifest(context={"max": context, "min": 2048})))
        assert f"  rollout     {words}" in said("plan", "--cluster", "-f", str(manifest))
    document = json.loads(said("status", "chat", "-o", "json"))
    assert document["ready"]
    assert [replica["ready"] for replica in document["replicas"]] == [True, True]
    assert "2 replicas are wanted: " in said("explain", "chat")
    assert said("top").splitlines()[1].split()[:2] == ["chat", "2/2"]
    name = document["replicas"][0]["name"]
    assert f"{name}: gone" in said("drain", name, "--timeout", "60")
    eventually(lambda: main(["status", "chat", *where]) == 0, what="another replica took its place")
    assert name not in capsys.readouterr().out.splitlines()[-2:]


def test_a_pool_that_is_not_there_is_answered_with_those_there_are(
    stopped_operator: OperatorUnderTest, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--kubeconfig", str(stopped_operator.access.kubeconfig), "-n", stopped_operator.namespace]
    stopped_operator.apply(pool_manifest("other"))
    assert main(["status", "chat", *where]) == 3
    assert "there are: other" in capsys.readouterr().err
    assert main(["status", "other", *where]) == 4  # no operator has seen it
