"""Drain tokens: rotated in place, old ones kept for the pods that know no other."""

import asyncio
from hashlib import sha256
from pathlib import Path

import pytest
from aiohttp import ClientSession
from kubernetes.client import ApiClient

from pools import pod
from tidegate_operator.control.election import Elector
from tidegate_operator.errors import NotLeading
from tidegate_operator.kube import ApiServer
from tidegate_operator.settings import BadSettings
from tidegate_operator.world.drain_tokens import DrainTokens
from tidegate_operator.world.readers import read_pod
from tidegate_operator.world.scrape import AdminPorts


def sha(token: str) -> str:
    return sha256(token.encode()).hexdigest()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("first\n")
    return path


def test_a_rotated_token_is_for_new_pods_and_the_old_one_for_those_that_know_no_other(file: Path) -> None:
    tokens = DrainTokens(file)
    (file.parent / "token-before").write_text("first")
    file.write_text("second")
    assert tokens.current_sha256() == sha("second")
    assert tokens.accepted_by((sha("first"),)) == "first"
    assert tokens.accepted_by((sha("second"),)) == "second"
    assert tokens.accepted_by((sha("third"), sha("SECOND".lower()).upper())) == "second"


def test_a_token_that_was_removed_drains_nobody(file: Path) -> None:
    tokens = DrainTokens(file)
    file.write_text("second")
    tokens.current_sha256()
    assert tokens.accepted_by((sha("first"),)) is None


@pytest.mark.parametrize("is_draining", [True, False])
def test_whoever_does_not_lead_tells_no_engine_anything(file: Path, *, is_draining: bool) -> None:
    elector = Elector(ApiServer(ApiClient()), "tidegate-system", "operator", "never-elected")

    async def tell() -> None:
        async with ClientSession() as session:
            ports = AdminPorts(session, tokens=DrainTokens(file), before_write=elector.require)
            told = pod("chat-0", ip="127.0.0.1", drain_token_sha256=(sha("first"),))
            await ports.set_draining(told, is_draining=is_draining)

    with pytest.raises(NotLeading):
        asyncio.run(tell())


def test_a_file_that_cannot_be_read_for_a_moment_leaves_the_token_known_before(file: Path) -> None:
    tokens = DrainTokens(file)
    file.unlink()
    assert tokens.current_sha256() == sha("first")
    assert tokens.accepted_by((sha("first"),)) == "first"


def test_other_files_beside_it_are_no_tokens(file: Path) -> None:
    (file.parent / "notes").write_text("words")
    assert DrainTokens(file).accepted_by((sha("words"),)) is None


@pytest.mark.parametrize("content", [None, " \n"], ids=["missing", "empty"])
def test_an_operator_without_a_token_does_not_start(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BadSettings, match="put a random token there"):
        DrainTokens(path)


def test_a_pod_says_which_tokens_it_accepts() -> None:
    args = ["serve", "/models/x", f"--drain-token-sha256={sha('a')}", f"--drain-token-sha256={sha('b')}"]
    metadata = {"name": "a", "uid": "a", "creationTimestamp": "2026-11-29T12:00:00Z"}
    pod = read_pod({"metadata": metadata, "spec": {"containers": [{"name": "engine", "args": args}]}})
    assert pod.drain_token_sha256 == (sha("a"), sha("b"))
