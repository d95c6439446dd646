"""`make demo`: from a manifest to tokens on a real cluster, then load, then quiet.

Exit status 0 only if all of it happened: every step checks what it shows. `--keep` (`make up`) leaves cluster and pool
running after the first answer.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import yaml
from openai import DefaultHttpxClient, OpenAI

from e2e.cluster.cluster import Cluster
from e2e.cluster.diagnostics import describe
from e2e.cluster.images import ImageBuilder
from e2e.cluster.node import NodeSpec
from e2e.demo.narration import Narrator
from e2e.installation.burst import Burst
from e2e.installation.namespaces import RESTRICTED
from e2e.installation.operator import Installation
from e2e.installation.polling import wait_for
from e2e.installation.pool import KIND, Pool, provide_model
from e2e.installation.quiescence import NUM_RESYNCS
from tests.real_model import gemma_gguf
from tidegate_core.quantity import format_bytes

MANIFEST = Path(__file__).parent / "pool.yaml"
NAMESPACE = "team-a"
MODEL = "gemma-3-270m"
QUESTION = "The capital of France is"
NUM_CLIENTS = 12
BURST_TOKENS = 24
SCALE_SECONDS = 240.0


class Broken(Exception):
    """The demo saw something that must not be."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.demo", description="Tidegate on a real local cluster.")
    parser.add_argument("--keep", action="store_true", help="leave cluster and pool running")
    keep = parser.parse_args(arguments).keep
    say = Narrator()
    say.step("Plan: what will fit, before there is a cluster")
    show_plan(say)
    say.step("A real Kubernetes on this machine: etcd, API server, controllers, scheduler, kubelet, containerd")
    images = ImageBuilder.default()
    cluster = Cluster.start([NodeSpec()], [images.python], is_detached=keep)
    say.detail(cluster.kubectl("get", "nodes"))
    try:
        installation, pool = deploy(say, cluster, images)
        if not keep:
            show_scaling(say, pool)
            show_restart(say, installation)
    except Exception:
        print(describe(cluster), file=sys.stderr)
        raise
    finally:
        if not keep:
            say.step("Tear down")
            cluster.stop()
    if keep:
        show_ways_in(say, cluster, pool)
    else:
        say.detail("done")
    return 0


def show_ways_in(say: Narrator, cluster: Cluster, pool: Pool) -> None:
    say.step("Left running")
    say.detail(f"export KUBECONFIG={cluster.kubeconfig}")
    say.detail(".venv/bin/python -m e2e.cluster kubectl get tgp --all-namespaces")
    say.detail(f"curl {pool.url()}/models")
    say.detail(f"make down NAME={cluster.spec.name}")


def show_plan(say: Narrator) -> None:
    command = [sys.executable, "-m", "tidegate_cli", "plan", "-f", str(MANIFEST), "--model", str(gemma_gguf())]
    say.detail(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def deploy(say: Narrator, cluster: Cluster, images: ImageBuilder) -> tuple[Installation, Pool]:
    say.step("The operator, from its chart, as a pod under its minimal role")
    installation = Installation.install(cluster, images)
    say.detail(cluster.kubectl("get", "pods", "--all-namespaces"))
    say.step("kubectl apply of an InferencePool")
    cluster.create_namespace(NAMESPACE, RESTRICTED)
    provide_model(cluster, NAMESPACE)
    pool = Pool.apply(cluster, NAMESPACE, MANIFEST.read_text())
    pool.wait_for_condition("Fits")
    say.detail("model inspected, sizing known, waiting for the engine ...")
    pool.wait_for_condition("Ready")
    say.detail(cluster.kubectl("get", KIND, "--namespace", NAMESPACE))
    show_sizing(say, pool)
    say.step("The same pool with a third of the memory: refused with numbers, and nothing is deployed")
    show_refusal(say, cluster)
    say.step("An answer, streamed through the Service by the openai client")
    ask(say, pool)
    return installation, pool


def show_sizing(say: Narrator, pool: Pool) -> None:
    sizing = pool.status()["sizing"]
    say.detail(
        f"status.sizing: {format_bytes(sizing['weightBytes'])} of weights, {sizing['kvBlocks']} KV blocks planned, "
        f"{sizing['measuredKvBlocks']} allocated; context {sizing['context']}, {sizing['slots']} slots, bound by "
        f"{sizing['bindingConstraint']}"
    )


def show_refusal(say: Narrator, cluster: Cluster) -> None:
    manifest = yaml.safe_load(MANIFEST.read_text())
    manifest["metadata"]["name"] = "too-small"
    manifest["spec"]["pod"]["resources"] = {"limits": {"cpu": "500m", "memory": "768Mi"}}
    pool = Pool.apply(cluster, NAMESPACE, yaml.safe_dump(manifest))
    pool.wait_for_condition("Fits", "False")
    say.detail(pool.condition("Fits")["message"])
    if cluster.kubectl("get", "deployment", pool.name, "--namespace", NAMESPACE, "--ignore-not-found"):
        raise Broken("a pool that does not fit was deployed")
    pool.delete()


def ask(say: Narrator, pool: Pool) -> None:
    with DefaultHttpxClient(trust_env=False) as transport:
        client = OpenAI(base_url=pool.url(), api_key="none", http_client=transport)
        stream = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": QUESTION}], max_tokens=24, temperature=0, stream=True
        )
        say.piece(f"          {QUESTION}")
        answer = ""
        for chunk in stream:
            piece = chunk.choices[0].delta.content or "" if chunk.choices else ""
            say.piece(piece.replace("\n", " "))
            answer += piece
    say.piece("\n")
    if not answer.strip():
        raise Broken("the pool's answer was empty")


def show_scaling(say: Narrator, pool: Pool) -> None:
    say.step(f"A burst: {NUM_CLIENTS} clients on half a core; the pool grows, and shrinks when they are gone")
    burst = Burst(pool.url(), MODEL, num_clients=NUM_CLIENTS, max_tokens=BURST_TOKENS)
    burst.start()
    pool.wait_for_ready_replicas(2, timeout_seconds=SCALE_SECONDS)
    say.detail("2 replicas are ready; the clients go on for a moment, then leave")
    before = burst.result.num_completed
    wait_for(
        "streams served by two replicas", lambda: burst.result.num_completed >= before + NUM_CLIENTS, SCALE_SECONDS
    )
    result = burst.finish()
    say.detail(
        f"{result.num_completed} streams completed ({result.num_tokens} tokens), {result.num_refused} refused with "
        f"Retry-After, {result.num_failed} accepted requests failed"
    )
    pool.wait_for_ready_replicas(1, timeout_seconds=SCALE_SECONDS)
    show_history(say, pool)
    if result.num_failed:
        raise Broken(f"{result.num_failed} accepted requests failed; the last: {result.fault}")


def show_history(say: Narrator, pool: Pool) -> None:
    history = pool.scaling_history()
    for entry in reversed(history):
        say.detail(f"{entry['time']}  {entry['reason']}")
    moves = [(entry["from"], entry["to"]) for entry in reversed(history)]
    if (1, 2) not in moves or (2, 1) not in moves:
        raise Broken(f"status.scalingHistory should show 1 -> 2 -> 1, it shows {moves}")


def show_restart(say: Narrator, installation: Installation) -> None:
    say.step("The operator is killed and comes back; its resyncs must change nothing")
    installation.restart()
    moved = installation.moved_in_resyncs(NAMESPACE)
    if moved:
        raise Broken(f"resyncs moved the resourceVersion of {', '.join(sorted(moved))}")
    say.detail(f"{NUM_RESYNCS} forced resyncs after the restart: no resourceVersion moved")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("interrupted; the cluster is gone")
