"""What a cluster gets from us, as files for a checker of manifests: the rendered chart and the children of pools.

`PYTHONPATH=operator:engine:tests:. python -m audited FOLDER` (`make audit`) writes them.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import yaml

from e2e.installation.chart import render_chart
from hub_pools import found, hub_pool
from pools import NOW, SETTINGS, cpu_pool_manifest, inspected, pool_manifest, stored
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.decisions.planning import plan
from tidegate_operator.manifests.network_policy import Peers
from tidegate_operator.manifests.pod import Runtime
from tidegate_operator.resources import JOB, Manifest
from tidegate_operator.world.observed import Observed

DIGEST = f"sha256:{'0' * 64}"
MONITORING = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
HARDENED = {
    "replicas": 2,
    "image": {"repository": "tidegate", "digest": DIGEST, "pullPolicy": "Always"},
    "networkPolicy": {"monitoring": [MONITORING]},
}
GUARDED = replace(
    SETTINGS,
    engine=replace(SETTINGS.engine, runtime=Runtime(f"tidegate@{DIGEST}", {}, image_pull_policy="Always")),
    peers=Peers(admin=(MONITORING,)),
)


def audited() -> Iterator[tuple[str, list[Manifest]]]:
    """File name -> documents."""
    yield "chart-cluster", list(render_chart(HARDENED))
    yield "chart-namespaced", list(render_chart(HARDENED | {"watchNamespaces": ["team-a"]}))
    yield "pool-gpu", children(stored(pool_manifest(minReplicas=2, maxReplicas=4)))
    yield "pool-cpu", children(stored(cpu_pool_manifest("small")))
    yield "pool-hub", children(hub_pool(), answer=found())
    yield "pool-cached", children(hub_pool(cache={}), answer=found())


def children(pool: InferencePool, answer: str | None = None) -> list[Manifest]:
    """The inspection Job, and what follows from its answer."""
    first = plan(pool, Observed(), GUARDED, NOW).apply
    jobs = [each["metadata"]["name"] for each in first if each["kind"] == JOB.kind]
    known = Observed(inspections=tuple(inspected(answer, name=name) for name in jobs))
    then = [each for each in plan(pool, known, GUARDED, NOW).apply if each["metadata"]["name"] not in jobs]
    titles = {(each["kind"], each["metadata"]["name"]) for each in then}
    return [*(each for each in first if (each["kind"], each["metadata"]["name"]) not in titles), *then]


def write(folder: Path, files: Iterable[tuple[str, list[Manifest]]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, documents in files:
        (folder / f"{name}.yaml").write_text(yaml.safe_dump_all(documents))


if __name__ == "__main__":
    write(Path(sys.argv[1]), audited())
