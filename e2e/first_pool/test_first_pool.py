"""A user's first pool, the real model on the node's cores: from a manifest to an answer, and away without a trace.

Its namespace enforces the restricted security level, so a pod that is not restricted would not exist. The tests share
one pool, in their order: it is made, looked at, changed to 8 bits behind API keys, and deleted by the last one.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import yaml
from openai import AuthenticationError, DefaultHttpxClient, OpenAI

from e2e.cluster.cluster import Cluster
from e2e.installation.namespaces import namespace_of_pools
from e2e.installation.operator import PRICES, Installation
from e2e.installation.polling import wait_for
from e2e.installation.pool import Pool, provide_model
from e2e.installation.real_pool import SERVED_NAME, real_pool
from tests.real_model import CONTINUATION, NUM_CONTINUATION_TOKENS, PROMPT
from tidegate_engine.server.keys import key_line

FIRST_KEY, SECOND_KEY = "tg-the-first-key", "tg-the-second-key"
LONG_PROMPT = " ".join([PROMPT] * 20)  # several blocks of the KV cache


@pytest.fixture(scope="module")
def pool(cluster: Cluster, torch_engines: Installation) -> Iterator[Pool]:
    """Ready."""
    with namespace_of_pools(cluster) as namespace:
        provide_model(cluster, namespace)
        pool = Pool.apply(cluster, namespace, real_pool("chat"))
        pool.wait_for_condition("Ready")
        yield pool


def test_its_status_says_what_its_engine_allocated(pool: Pool) -> None:
    pool.wait_for_measured_blocks()
    status = pool.status()
    planned, (engine,) = status["sizing"], pool.engines()
    allocated = engine.load().sizing
    assert planned["context"] == allocated.context == 4096
    assert planned["slots"] == allocated.slots
    assert planned["measuredKvBlocks"] == allocated.kv_blocks_total
    assert planned["kvBlocks"] == pytest.approx(allocated.kv_blocks_total, rel=0.02)
    assert planned["residentBytes"] == pytest.approx(allocated.resident_bytes, rel=0.15)
    assert status["model"]["architecture"] == "gemma3_text"


def test_its_status_says_where_the_time_of_its_start_went_and_what_it_costs(pool: Pool) -> None:
    wait_for("a measured start", lambda: "coldStart" in pool.status(), 30)
    status, (engine,) = pool.status(), pool.engines()
    start, by_itself = status["coldStart"], engine.load().start
    assert by_itself is not None
    (sample,) = start["measured"]
    phases = {name: sample[name] for name in start["phases"]}
    assert (sample["pod"], start["p90Seconds"], start["phases"]) == (engine.name, sample["seconds"], phases)
    assert (phases["loadSeconds"], phases["warmUpSeconds"]) == (
        round(by_itself.load_seconds), round(by_itself.warm_up_seconds),
    )  # fmt: skip
    assert phases["loadSeconds"] > 0, "an interpreter, torch and 250 MB of weights"
    assert phases["downloadSeconds"] == 0, "the claim has the model"
    assert sum(phases.values()) == pytest.approx(sample["seconds"], abs=len(phases)), "nothing is left out"
    assert sample["seconds"] <= engine.ready_seconds + 2, "times of Kubernetes are whole seconds"
    assert status["cost"] == {"perHour": "0.1", "basis": f"1 replica: 2 x cpu at {PRICES['cpu']}"}


@contextmanager
def client_of(pool: Pool, api_key: str = "none") -> Iterator[OpenAI]:
    with DefaultHttpxClient(trust_env=False) as transport:
        yield OpenAI(base_url=pool.url(), api_key=api_key, http_client=transport)


def is_let_in(pool: Pool, api_key: str) -> bool:
    with client_of(pool, api_key) as client:
        try:
            client.models.list()
        except AuthenticationError:
            return False
    return True


def put_keys(pool: Pool, *api_keys: str) -> None:
    """As a user fills the pool's Secret."""
    keys = "\n".join(key_line(api_key, "team-a") for api_key in api_keys)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "chat-keys"}, "stringData": {"keys": keys}}
    pool.cluster.kubectl("apply", "--namespace", pool.namespace, "-f", "-", input=yaml.safe_dump(secret))


def is_replaced(pool: Pool, uid: str) -> bool:
    return [(engine.uid != uid, engine.is_ready) for engine in pool.engines()] == [(True, True)]


def test_it_answers_through_its_service_as_the_reference_does(pool: Pool) -> None:
    with (
        client_of(pool) as client,
        client.chat.completions.create(
            model=SERVED_NAME,
            messages=[{"role": "user", "content": PROMPT}],
            max_tokens=NUM_CONTINUATION_TOKENS,
            temperature=0,
            stream=True,
        ) as stream,
    ):
        pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(pieces) == CONTINUATION
    assert len(pieces) > NUM_CONTINUATION_TOKENS // 2, "the answer came at once, not as a stream"


def test_kubectl_shows_it_in_one_line(pool: Pool) -> None:
    header, line = pool.cluster.kubectl("get", "tgp", "--namespace", pool.namespace).splitlines()
    assert header.split() == ["NAME", "MODEL", "READY", "DESIRED", "CONTEXT", "SLOTS", "ACCELERATOR", "STATUS", "AGE"]
    slots = pool.status()["sizing"]["slots"]
    shown = ["chat", "pvc://models/gemma-3-270m-q4_k_m.gguf", "1/1", "1", "4096", str(slots), "cpu", "Ready"]
    assert line.split()[:-1] == shown


def test_a_change_to_8_bits_behind_api_keys_replaces_its_engine_and_is_in_its_sizing(pool: Pool) -> None:
    before, (old,) = pool.status()["sizing"], pool.engines()
    put_keys(pool, FIRST_KEY)
    pool.patch(
        model={"quantization": "Int8", "kvCacheDtype": "Int8"},
        access={"apiKeysSecretRef": {"name": "chat-keys", "key": "keys"}},
    )
    wait_for("another engine, alone", lambda: is_replaced(pool, old.uid), 120)
    pool.wait_for_condition("Ready")
    pool.wait_for_measured_blocks()
    after, (engine,) = pool.status()["sizing"], pool.engines()
    allocated = engine.load().sizing
    assert after["weightBytes"] < 0.55 * before["weightBytes"]
    assert after["kvBytesPerToken"] < 0.52 * before["kvBytesPerToken"]
    assert after["kvBlocks"] == pytest.approx(allocated.kv_blocks_total, rel=0.02)
    assert 0.8 * after["residentBytes"] < allocated.resident_bytes < 1.05 * after["residentBytes"]


def test_it_answers_only_who_has_a_key_and_a_repeated_prompt_from_its_cache(pool: Pool) -> None:
    assert not is_let_in(pool, "none")
    with client_of(pool, FIRST_KEY) as client:
        first, second = (
            client.completions.create(model=SERVED_NAME, prompt=LONG_PROMPT, max_tokens=8, temperature=0)
            for _ in range(2)
        )
    assert first.choices[0].text.strip()
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    cached = second.usage.prompt_tokens_details.cached_tokens or 0
    assert second.usage.prompt_tokens // 2 < cached < second.usage.prompt_tokens == first.usage.prompt_tokens


def test_a_key_that_is_exchanged_in_the_secret_works_without_a_restart(pool: Pool) -> None:
    (before,) = pool.engines()
    put_keys(pool, SECOND_KEY)
    wait_for("the second key", lambda: is_let_in(pool, SECOND_KEY), 120)
    assert not is_let_in(pool, FIRST_KEY)
    assert pool.engines() == [before]


def test_it_rests_once_it_is_ready(pool: Pool, torch_engines: Installation) -> None:
    torch_engines.assert_quiescent(pool.namespace)


def test_without_an_operator_it_serves_on_and_its_deletion_leaves_nothing(
    pool: Pool, torch_engines: Installation
) -> None:
    with torch_engines.stopped():
        assert pool.engines()[0].load().running == 0
        pool.delete()
        pool.wait_until_nothing_is_left()
