"""A gated model of a hub: the pool says what is wrong with its token, and fetches the model once when it is right.

The hub is a stand-in on this machine that speaks the real client's HTTP; Jobs, claims and engines are real.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.cluster import Cluster
from e2e.installation.operator import Installation
from e2e.installation.pool import Pool, provide_models
from e2e.installation.sim_pool import sim_pool
from tests.model_hub.models import tiny_llama
from tests.model_hub.server import ModelHub, model_hub

REPOSITORY = "tiny/llama"


@pytest.fixture
def hub(cluster: Cluster, tmp_path: Path) -> Iterator[ModelHub]:
    gated = tiny_llama(tmp_path, REPOSITORY, is_gated=True, accepted_tokens={"good"})
    (gated.directory / "tokenizer.json").unlink()  # it is none: a simulated engine does without
    with model_hub(gated, tokens=("good", "stranger"), host=cluster.network.host) as started:
        yield started


def put_token(cluster: Cluster, namespace: str, token: str) -> None:
    secret = ("create", "secret", "generic", "hf", f"--from-literal=token={token}", "--dry-run=client", "-o", "yaml")
    manifest = cluster.kubectl(*secret)
    cluster.kubectl("apply", "--namespace", namespace, "-f", "-", input=manifest)


def test_a_gated_model_says_what_its_token_lacks_and_is_fetched_when_it_has_it(
    cluster: Cluster, sim_engines: Installation, pools_namespace: str, hub: ModelHub, tmp_path: Path
) -> None:
    provide_models(cluster, pools_namespace, tmp_path)  # for the claim of the engine's packages
    put_token(cluster, pools_namespace, "stranger")
    pool = Pool.apply(
        cluster,
        pools_namespace,
        sim_pool(
            "chat",
            model={"uri": f"hf://{REPOSITORY}", "tokenSecretRef": {"name": "hf", "key": "token"}},
            context={"max": 512, "min": 128},
            traffic={"promptTokens": 100, "outputTokens": 50},
            pod={
                "env": [{"name": "HF_ENDPOINT", "value": hub.url}],
                "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
            },
        ),
    )
    assert REPOSITORY in pool.wait_for_reason("ModelResolved", "ModelGated", timeout_seconds=120)
    assert not pool.engines()

    put_token(cluster, pools_namespace, "good")
    pool.wait_for_condition("Ready")
    assert pool.status()["model"]["revision"] == hub.repositories[REPOSITORY].commit
    assert not hub.ranges_of(f"/{REPOSITORY}/resolve/main/pytorch_model.bin")
    sim_engines.assert_quiescent(pools_namespace)
