"""API keys: who is let in, as whom, and what happens to the file while the engine runs."""

import hashlib
from pathlib import Path

import httpx
import pytest

from in_process import MODEL, running_app
from tidegate_core.errors import BadLaunch
from tidegate_engine.request import DEFAULT_TERMS, Terms
from tidegate_engine.server.callers import FAIRNESS_HEADER, Access
from tidegate_engine.server.key_file import KeyFile, watched
from tidegate_engine.server.keys import key_line
from waiting import eventually_async

pytestmark = pytest.mark.anyio

KEY, OTHER_KEY = "tg-of-the-harbour", "tg-of-the-lighthouse"
COMPLETION = {"model": MODEL, "prompt": "x", "max_tokens": 1}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"# who may\n\n{key_line(KEY, 'harbour')}\n{key_line(OTHER_KEY)}\n")
    return path


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def terms_of(access: Access, headers: dict[str, str]) -> Terms:
    """What the engine is told about a completion with these headers."""
    async with running_app(access=access) as served:
        seen: list[Terms] = []
        submit = served.engine.submit

        def noting(request_id, prompt_token_ids, sampling, terms=DEFAULT_TERMS, *rest):
            seen.append(terms)
            return submit(request_id, prompt_token_ids, sampling, terms, *rest)

        served.engine.submit = noting
        response = await served.client.post("/v1/completions", json=COMPLETION, headers=headers)
    assert response.status_code == 200, response.text
    (terms,) = seen
    return terms


async def test_a_known_key_is_let_in_as_its_tenant_with_a_cache_of_its_own(file):
    digests = [hashlib.sha256(key.encode()) for key in (KEY, OTHER_KEY)]
    named, nameless = [await terms_of(Access(KeyFile(file)), bearer(key)) for key in (KEY, OTHER_KEY)]
    assert (named.tenant, named.cache_salt) == ("harbour", digests[0].digest())
    assert (nameless.tenant, nameless.cache_salt) == (digests[1].hexdigest()[:12], digests[1].digest())


async def test_without_a_key_file_everybody_is_one_tenant():
    assert await terms_of(Access(), {}) == DEFAULT_TERMS
    assert await terms_of(Access(), bearer("whatever a client has to send")) == DEFAULT_TERMS


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/v1/nothing"])
@pytest.mark.parametrize(
    "headers",
    [{}, bearer("wrong"), bearer(""), {"Authorization": "Basic abc"}, bearer(hashlib.sha256(KEY.encode()).hexdigest())],
    ids=["no key", "wrong key", "empty key", "another scheme", "the digest itself"],
)
async def test_nobody_else_is_let_in_and_the_answer_has_openais_shape(file, path, headers):
    async with running_app(access=Access(KeyFile(file))) as served:
        response = await served.client.post(path, json=COMPLETION, headers=headers)
        assert served.load().arrivals == 0
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert "wrong" not in response.text, "a key that was nearly right stays with the client"


async def test_models_need_a_key_and_metrics_do_not(file):
    async with running_app(access=Access(KeyFile(file))) as served:
        refused = await served.client.get("/v1/models")
        answered = await served.client.get("/v1/models", headers=bearer(KEY))
        metrics = await served.client.get("/metrics")
    assert [response.status_code for response in (refused, answered, metrics)] == [401, 200, 200]


@pytest.mark.parametrize(
    ("is_trusted", "fairness_id", "tenant"),
    [(True, "team-7", "team-7"), (False, "team-7", "harbour"), (True, "", "harbour"), (True, "x" * 129, "harbour")],
    ids=["trusted", "not trusted", "empty", "too long"],
)
async def test_the_fairness_header_names_the_tenant_only_behind_a_proxy_that_is_trusted(
    file, is_trusted, fairness_id, tenant
):
    access = Access(KeyFile(file), is_fairness_header_trusted=is_trusted)
    terms = await terms_of(access, {**bearer(KEY), FAIRNESS_HEADER: fairness_id})
    assert terms.tenant == tenant
    assert terms.cache_salt == hashlib.sha256(KEY.encode()).digest()


async def test_the_file_is_read_again_when_a_secrets_mount_is_swapped(tmp_path):
    for version, key in (("1", KEY), ("2", OTHER_KEY)):
        (tmp_path / version).mkdir()
        (tmp_path / version / "keys").write_text(key_line(key))
    link = tmp_path / "data"
    link.symlink_to("1")
    keys = KeyFile(link / "keys")
    async with running_app(access=Access(keys)) as served, watching(keys):
        assert await status(served.client, KEY) == 200
        (tmp_path / "new").symlink_to("2")
        (tmp_path / "new").rename(link)

        async def is_rotated() -> bool:
            return (await status(served.client, OTHER_KEY), await status(served.client, KEY)) == (200, 401)

        await eventually_async(is_rotated, timeout_seconds=10)


@pytest.mark.parametrize("content", ["", "# nobody", KEY, "sha256:12", "\x00\xff"])
async def test_a_new_file_that_cannot_be_used_leaves_the_old_keys_in_force_and_shows(file, content):
    keys = KeyFile(file)
    good = file.read_bytes()
    async with running_app(access=Access(keys)) as served:
        file.write_text(content)
        await keys.check()
        assert await status(served.client, KEY) == 200
        assert metric(await served.client.get("/metrics"), "tidegate_api_keys_outdated") == 1
        file.write_bytes(good)
        await keys.check()
        metrics = await served.client.get("/metrics")
        assert (metric(metrics, "tidegate_api_keys_outdated"), metric(metrics, "tidegate_api_keys")) == (0, 2)


async def test_a_file_that_vanishes_leaves_the_old_keys_in_force(file):
    keys = KeyFile(file)
    file.unlink()
    await keys.check()
    assert keys.fault is not None
    assert keys.keys.caller_of(KEY) is not None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (KEY, "line 1 .*sha256sum"),
        ("", "holds no key"),
        (f"{key_line(KEY)} two words", "line 1 has 3 words"),
        (f"{key_line(KEY)} {'x' * 65}", "line 1.*at most 64"),
        (f"{key_line(KEY, 'a')}\n{key_line(KEY, 'b')}", "line 2.*another tenant"),
    ],
)
def test_an_engine_does_not_start_with_a_file_it_cannot_use_and_no_key_is_shown(tmp_path, content, message):
    file = tmp_path / "keys"
    file.write_text(content)
    with pytest.raises(BadLaunch, match=f"--api-keys-file .*{message}") as raised:
        KeyFile(file)
    assert KEY not in str(raised.value)


def test_an_engine_does_not_start_without_the_file_it_was_told(tmp_path):
    with pytest.raises(BadLaunch, match="No such file"):
        KeyFile(tmp_path / "keys")


def watching(keys: KeyFile):
    return watched(keys, check_seconds=0.01)


async def status(client: httpx.AsyncClient, key: str) -> int:
    return (await client.get("/v1/models", headers=bearer(key))).status_code


def metric(response: httpx.Response, name: str) -> float:
    (value,) = [line.rsplit(" ", 1)[1] for line in response.text.splitlines() if line.startswith(f"{name}{{")]
    return float(value)
