"""The download of a hub's model: once for a pool, as a Job into its claim, or in each pod before its engine starts.

A Job is placed as engines are and, while such nodes are known, on a node with the accelerator: a volume that is made
for its first user (WaitForFirstConsumer) then lies where engines can run. One that a single node can mount is filled
again where the engines are that read it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import Any

from tidegate_core.hub import Snapshot
from tidegate_core.launch import MODELS_PATH
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.labels import (
    DOWNLOAD_CONTAINER,
    DOWNLOAD_ROLE,
    ENGINE_CONTAINER,
    HOLDS_ANNOTATION,
    cache_name,
    metadata,
    selector,
)
from tidegate_operator.manifests.hub_access import hub_variables, token_arguments, token_mounts, token_volumes
from tidegate_operator.manifests.merge import merge
from tidegate_operator.manifests.model_volume import MODEL_VOLUME, HubFiles, claim_volume
from tidegate_operator.manifests.pod import UID, Runtime, job_template
from tidegate_operator.manifests.resources import download_resources
from tidegate_operator.resources import JOB, Manifest
from tidegate_operator.world.observed import Node

START_SECONDS = 900  # a cold node, a large image, a volume to be made
SLOWEST_LINK_BYTES_PER_SECOND = 5_000_000  # what has arrived by then counts: the next try continues it
MAX_HOSTS = 256  # of a node affinity
HOST_LABEL = "kubernetes.io/hostname"


def download_seconds(num_bytes: int) -> int:
    return ceil(num_bytes / SLOWEST_LINK_BYTES_PER_SECOND)


@dataclass(frozen=True)
class Place:
    """Where a download may run: on `nodes`, all those that have the accelerator; or beside the pool's engines."""

    nodes: tuple[Node, ...] = ()
    is_beside_engines: bool = False  # they hold the only node that can mount the claim


def download_job(
    pool: InferencePool, name: str, files: HubFiles, runtime: Runtime, *, keep: Iterable[str], place: Place
) -> Manifest:
    """`keep`: names of the other snapshots that stay on the claim."""
    holds = sorted({files.snapshot.name, *keep})
    kept = [argument for snapshot in holds for argument in ("--keep", snapshot)]
    template = job_template(
        pool,
        DOWNLOAD_ROLE,
        (*_arguments(pool, files.snapshot), *kept, "--termination-message"),
        download_resources(),
        runtime=runtime,
        models=claim_volume(cache_name(pool), is_writable=True),
    )
    owner: Manifest = {"spec": {"securityContext": {"fsGroup": UID, "fsGroupChangePolicy": "OnRootMismatch"}}}
    return {
        "apiVersion": JOB.api_version,
        "kind": JOB.kind,
        "metadata": metadata(pool, name, DOWNLOAD_ROLE, {HOLDS_ANNOTATION: ",".join(holds)}),
        "spec": {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "activeDeadlineSeconds": START_SECONDS + download_seconds(files.num_bytes),
            "template": merge(merge(template, owner), {"spec": _placed(pool, template["spec"], place)}),
        },
    }


def with_download(pool: InferencePool, template: Manifest, files: HubFiles, runtime: Runtime) -> dict[str, Any]:
    """An engine's template whose pods fetch the model first, in a container made of the engine's own.

    Only it sees the token and may write; the engine is offline, as everywhere. `template` is finished, patch included,
    so that what a patch brings (libraries, certificates, proxies) is there as well.
    """
    (engine,) = (each for each in template["spec"]["containers"] if each["name"] == ENGINE_CONTAINER)
    mounts = [
        {key: value for key, value in mount.items() if key != "readOnly"} if mount["name"] == MODEL_VOLUME else mount
        for mount in engine["volumeMounts"]
    ]
    dropped = ("ports", "startupProbe", "readinessProbe", "livenessProbe", "lifecycle")
    container = {key: value for key, value in engine.items() if key not in dropped} | {
        "name": DOWNLOAD_CONTAINER,
        "args": [*_arguments(pool, files.snapshot), "--termination-message"],
        "env": hub_variables(pool, runtime.hub_endpoint, engine["env"]),
        "resources": _without_devices(engine["resources"]),
        "volumeMounts": [*mounts, *token_mounts(pool)],
    }
    volumes = [*template["spec"]["volumes"], *token_volumes(pool)]
    return merge(template, {"spec": {"initContainers": [container], "volumes": volumes}})


def _arguments(pool: InferencePool, snapshot: Snapshot) -> tuple[str, ...]:
    revision = ("--revision", snapshot.commit, "--to", MODELS_PATH)
    file = f"/{snapshot.file}" if snapshot.file else ""
    return ("download", f"hf://{snapshot.repo}{file}", *revision, *token_arguments(pool))


def _without_devices(resources: Manifest) -> Manifest:
    """Devices are for the engine; what an init container asks for is no addition to what the engine asks for."""
    plain = ("cpu", "memory", "ephemeral-storage")
    return {kind: {name: text for name, text in each.items() if name in plain} for kind, each in resources.items()}


def _placed(pool: InferencePool, spec: Manifest, place: Place) -> Manifest:
    """The user's affinity and ours."""
    affinity: Manifest = spec.get("affinity", {})
    if place.is_beside_engines:
        near: Manifest = affinity.get("podAffinity", {})
        required = near.get("requiredDuringSchedulingIgnoredDuringExecution", ())
        ours = {"labelSelector": {"matchLabels": selector(pool.metadata.name)}, "topologyKey": HOST_LABEL}
        both = {"requiredDuringSchedulingIgnoredDuringExecution": [*required, ours]}
        return {"affinity": {**affinity, "podAffinity": {**near, **both}}}
    hosts = sorted({host for node in place.nodes if (host := node.labels.get(HOST_LABEL))})[:MAX_HOSTS]
    return (
        {"affinity": {**affinity, "nodeAffinity": _on_hosts(affinity.get("nodeAffinity", {}), hosts)}} if hosts else {}
    )


def _on_hosts(affinity: Manifest, hosts: list[str]) -> Manifest:
    """Each of the user's terms also asks for one of the hosts."""
    ours = {"key": HOST_LABEL, "operator": "In", "values": hosts}
    required: Manifest = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    terms = required.get("nodeSelectorTerms") or [{}]
    both = [{**term, "matchExpressions": [*term.get("matchExpressions", ()), ours]} for term in terms]
    return {**affinity, "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": both}}
