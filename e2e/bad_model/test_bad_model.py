"""Models that cannot be served, read by real inspection Jobs and real engines: each pool says what is wrong."""

from pathlib import Path

import pytest

from e2e.cluster.cluster import Cluster
from e2e.installation.operator import Installation
from e2e.installation.polling import wait_for
from e2e.installation.pool import Pool, provide_models
from e2e.installation.real_pool import real_pool
from e2e.installation.sim_pool import MODEL, provide_sim_model, sim_pool
from tests.configs import config_directory
from tests.real_model import gemma_gguf

TRUNCATED_BYTES = 20 * 2**20  # its metadata is whole, its tensors are not
TINY = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1000,
}  # fmt: skip
FAULTS = {
    "missing": ("pvc://models/no-such-model", "ModelNotFound", "no-such-model"),
    "truncated": ("pvc://models/truncated.gguf", "ModelCorrupt", "truncated.gguf"),
    "unknown": ("pvc://models/unknown", "ModelUnsupported", "mamba"),
}


@pytest.fixture
def bad_models(cluster: Cluster, pools_namespace: str, tmp_path: Path) -> None:
    """A claim with three faults, and one good model."""
    with gemma_gguf().open("rb") as whole, (tmp_path / "truncated.gguf").open("wb") as truncated:
        truncated.write(whole.read(TRUNCATED_BYTES))
    config_directory(tmp_path / "unknown", architectures=["MambaForCausalLM"], model_type="mamba")
    provide_sim_model(cluster, pools_namespace, tmp_path)


def test_each_fault_is_named_nothing_is_deployed_and_a_corrected_uri_is_enough(
    cluster: Cluster, sim_engines: Installation, pools_namespace: str, bad_models: None
) -> None:
    pools = [
        (Pool.apply(cluster, pools_namespace, sim_pool(name, model={"uri": uri})), uri, reason, cause)
        for name, (uri, reason, cause) in FAULTS.items()
    ]
    for pool, uri, reason, cause in pools:
        message = pool.wait_for_reason("ModelResolved", reason)
        assert pool.condition("ModelResolved")["status"] == "False"
        assert uri in message
        assert cause in message
    assert not cluster.kubectl("get", "deployments,services", "--namespace", pools_namespace, "-o", "name")
    for pool, *_ in pools:
        pool.patch(model={"uri": f"pvc://models/{MODEL}"})
    for pool, *_ in pools:
        pool.wait_for_condition("Ready", timeout_seconds=60)
        assert not pool.condition("Stalled")
    sim_engines.assert_quiescent(pools_namespace)


def test_an_engine_that_finds_no_weights_says_so_in_the_pool_and_its_restarts_do_not_touch_it(
    cluster: Cluster, torch_engines: Installation, pools_namespace: str, tmp_path: Path
) -> None:
    """A configuration is enough to plan with, not to serve."""
    config_directory(tmp_path / "weightless", **TINY)
    tmp_path.chmod(0o755)
    provide_models(cluster, pools_namespace, tmp_path)
    pool = Pool.apply(cluster, pools_namespace, real_pool("chat", model={"uri": "pvc://models/weightless"}))
    assert "weightless" in pool.wait_for_reason("Progressing", "EngineFailing")
    before, seen = pool.get()["metadata"]["resourceVersion"], pool.engines()[0].num_restarts

    def has_restarted() -> bool:
        return pool.engines()[0].num_restarts > seen

    wait_for("another restart", has_restarted, timeout_seconds=60)
    assert pool.get()["metadata"]["resourceVersion"] == before
