"""A user's first pool, the real model on the node's cores: from a manifest to an answer, and away without a trace.

Its namespace enforces the restricted security level, so a pod that is not restricted would not exist. The tests share
one pool, which the last one deletes.
"""

from collections.abc import Iterator

import pytest
from openai import DefaultHttpxClient, OpenAI

from e2e.cluster.cluster import Cluster
from e2e.installation.namespaces import namespace_of_pools
from e2e.installation.operator import Installation
from e2e.installation.pool import Pool, provide_model
from e2e.installation.real_pool import SERVED_NAME, real_pool
from tests.real_model import CONTINUATION, NUM_CONTINUATION_TOKENS, PROMPT


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


def test_it_answers_through_its_service_as_the_reference_does(pool: Pool) -> None:
    with DefaultHttpxClient(trust_env=False) as transport:
        client = OpenAI(base_url=pool.url(), api_key="none", http_client=transport)
        with client.chat.completions.create(
            model=SERVED_NAME,
            messages=[{"role": "user", "content": PROMPT}],
            max_tokens=NUM_CONTINUATION_TOKENS,
            temperature=0,
            stream=True,
        ) as stream:
            pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(pieces) == CONTINUATION
    assert len(pieces) > NUM_CONTINUATION_TOKENS // 2, "the answer came at once, not as a stream"


def test_kubectl_shows_it_in_one_line(pool: Pool) -> None:
    header, line = pool.cluster.kubectl("get", "tgp", "--namespace", pool.namespace).splitlines()
    assert header.split() == ["NAME", "MODEL", "READY", "DESIRED", "CONTEXT", "SLOTS", "ACCELERATOR", "STATUS", "AGE"]
    slots = pool.status()["sizing"]["slots"]
    shown = ["chat", "pvc://models/gemma-3-270m-q4_k_m.gguf", "1/1", "1", "4096", str(slots), "cpu", "Ready"]
    assert line.split()[:-1] == shown


def test_it_rests_once_it_is_ready(pool: Pool, torch_engines: Installation) -> None:
    torch_engines.assert_quiescent(pool.namespace)


def test_without_an_operator_it_serves_on_and_its_deletion_leaves_nothing(
    pool: Pool, torch_engines: Installation
) -> None:
    with torch_engines.stopped():
        assert pool.engines()[0].load().running == 0
        pool.delete()
        pool.wait_until_nothing_is_left()
