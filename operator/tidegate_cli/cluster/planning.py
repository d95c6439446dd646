"""Reads what a plan for a cluster needs, with the rights of whoever asks: `tidegate plan -f POOL.yaml --cluster`.

What they may not read is planned without, as an operator without a ClusterRole does: nodes and quotas.
"""

import argparse
import asyncio
from dataclasses import dataclass
from pathlib import Path

from tidegate_cli.cluster.access import Cluster
from tidegate_cli.cluster.errors import ClusterError
from tidegate_cli.cluster.prospect import Prospect, foresee
from tidegate_cli.device import PlannedDevice
from tidegate_cli.errors import BadPlan, ModelElsewhere
from tidegate_core.fit import Fit
from tidegate_core.inspected import Inspected
from tidegate_core.quantity import format_bytes
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.decisions.engine_version import EngineDefaults
from tidegate_operator.decisions.inspection import is_about_model_of, stored_answer
from tidegate_operator.decisions.rendering import render_revision
from tidegate_operator.errors import BadPrices, KubeError
from tidegate_operator.labels import MODEL_ROLE, POOL_LABEL, ROLE_LABEL, text_selector
from tidegate_operator.manifests.model_volume import HubFiles
from tidegate_operator.manifests.pod import Runtime
from tidegate_operator.resources import CONTROLLER_REVISION, POD, POOL, Manifest
from tidegate_operator.sizing.fitting import find_fit, target
from tidegate_operator.world.nodes import NodeCache
from tidegate_operator.world.observed import Observed
from tidegate_operator.world.prices import PriceList, read_prices
from tidegate_operator.world.quotas import QuotaCache
from tidegate_operator.world.readers import read_pod

ANY_ENGINE = EngineDefaults(Runtime("engine", {}))  # what a replica takes does not depend on the image


@dataclass(frozen=True)
class World:
    """What the cluster is like for one pool."""

    live: InferencePool | None  # as it is stored
    observed: Observed
    known_model: Inspected | None  # what an inspection of this namespace found out about the model


@dataclass(frozen=True)
class ClusterPlan:
    """A fit on the cluster's devices, with its prospect where it fits."""

    fit: Fit
    device: PlannedDevice
    prospect: Prospect | None


def look(arguments: argparse.Namespace, pool: InferencePool) -> tuple[InferencePool, World]:
    """The pool with the namespace it would be applied to, and its world. Raises ModelElsewhere."""
    try:
        cluster = Cluster.connect(arguments)
        try:
            namespace = arguments.namespace or pool.metadata.namespace or cluster.namespace
            placed = pool.model_copy(update={"metadata": pool.metadata.model_copy(update={"namespace": namespace})})
            return placed, asyncio.run(_world(cluster, placed))
        finally:
            cluster.close()
    except (ClusterError, KubeError) as error:
        raise ModelElsewhere(str(error)) from error


async def _world(cluster: Cluster, pool: InferencePool) -> World:
    namespace, name = pool.metadata.namespace, pool.metadata.name
    found = await cluster.kube.get(POOL, namespace, name)
    revisions = await cluster.kube.list(CONTROLLER_REVISION, namespace, labels=POOL_LABEL)
    pods = await cluster.kube.list(POD, namespace, labels=text_selector(name))
    observed = Observed(
        children=tuple(each for each in revisions if each["metadata"]["labels"][POOL_LABEL] == name),
        pods=tuple(map(read_pod, pods)),
        nodes=await NodeCache(cluster.kube, is_allowed=True).nodes(),
        quotas=await QuotaCache(cluster.kube, (namespace,)).of(namespace),
    )
    live = None if found is None else InferencePool.model_validate(found)
    return World(live, observed, known_model(pool, revisions))


def known_model(pool: InferencePool, revisions: tuple[Manifest, ...]) -> Inspected | None:
    """By whichever pool of the namespace it was inspected."""
    models = (each for each in revisions if each["metadata"]["labels"].get(ROLE_LABEL) == MODEL_ROLE)
    answers = (stored_answer(each) for each in models if is_about_model_of(each, pool))
    return next((answer for answer in answers if answer is not None), None)


def plan_there(pool: InferencePool, world: World, model: Inspected, prices: PriceList | None) -> ClusterPlan:
    """As the operator would. Raises BadPlan where the cluster does not say what the device is."""
    finding = find_fit(pool, model.shape, world.observed.nodes)
    if finding.fit is None or finding.device is None:
        raise BadPlan(finding.message)
    device = finding.device
    there = PlannedDevice(
        device.name, target(pool, device), f"on {device.name} of this cluster ({format_bytes(device.memory_bytes)})"
    )
    return ClusterPlan(finding.fit, there, _prospect(pool, world, model, finding.fit, prices))


def _prospect(
    pool: InferencePool, world: World, model: Inspected, fit: Fit, prices: PriceList | None
) -> Prospect | None:
    if not fit.fits:
        return None
    files = None if model.snapshot is None else HubFiles(model.snapshot, model.download_bytes)
    template = render_revision(pool, fit, ANY_ENGINE, 1, files=files)
    return foresee(pool, world.live, template, world.observed, prices)


def price_list(file: str | None) -> PriceList | None:
    """Of --prices. Raises BadPlan."""
    if file is None:
        return None
    try:
        return read_prices(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, BadPrices) as error:
        raise BadPlan(f"--prices {file}: {error}") from error
