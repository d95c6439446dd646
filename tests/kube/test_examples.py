"""What the examples directory shows, on a real API server: pools, overlays and values are accepted to the letter."""

from pathlib import Path

import pytest
import yaml

from e2e.cluster.api_server import ApiServer
from operator_process import ROOT

EXAMPLES = ROOT / "examples"
OVERLAYS = sorted((EXAMPLES / "kustomize" / "overlays").iterdir())


def dry_run(api_server: ApiServer, *arguments: str, text: str) -> str:
    return api_server.kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", *arguments,
                              "-f", "-", input=text)  # fmt: skip


def test_every_pool_is_accepted(api_server: ApiServer, crd: None, namespace: str) -> None:
    texts = [path.read_text() for path in sorted(EXAMPLES.glob("*.yaml"))]
    answer = dry_run(api_server, "-n", namespace, text="\n---\n".join(texts))
    assert len(answer.splitlines()) == len(texts)


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_an_overlay_is_built_by_kustomize_and_accepted(api_server: ApiServer, crd: None, overlay: Path) -> None:
    built = api_server.kubectl("kustomize", overlay)
    documents = list(yaml.safe_load_all(built))
    (pool,) = (each for each in documents if each["kind"] == "InferencePool")
    api_server.create_namespace(pool["metadata"]["namespace"], {})
    try:
        assert len(dry_run(api_server, text=built).splitlines()) == len(documents)
    finally:
        api_server.delete_namespace(pool["metadata"]["namespace"])
    secrets = [each["metadata"]["name"] for each in documents if each["kind"] == "Secret"]
    reference = pool["spec"]["access"]["apiKeysSecretRef"]["name"]
    assert secrets in ([], [reference]), "a hash in the Secret's name would replace every engine when a key changes"
