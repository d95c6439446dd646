"""I/O: carry out a Plan. Thin: every decision has been made, and doing it twice changes nothing.

Order matters twice: pods are marked before the Deployment shrinks, so that the marked ones go; old objects are deleted
before new ones are created, so that they do not compete for what they hold.
"""

import asyncio
import logging

from tidegate_operator.decisions.plan import Plan, Refusal
from tidegate_operator.decisions.protection import DO_NOT_DISRUPT, Protection
from tidegate_operator.decisions.scaledown import Mark
from tidegate_operator.errors import BadRequest, EngineUnreachable, Forbidden, Invalid, NotFound
from tidegate_operator.kube import Kube
from tidegate_operator.labels import (
    DELETION_COST_ANNOTATION,
    DRAINING_SINCE_ANNOTATION,
    POOL_LABEL,
    PROTECTED_ANNOTATION,
    SERVING_LABEL,
)
from tidegate_operator.resources import DEPLOYMENT, OPTIONAL, POD, Manifest, resource_of
from tidegate_operator.world.observed import Pod
from tidegate_operator.world.scrape import Engines

_log = logging.getLogger(__name__)


async def apply(kube: Kube, engines: Engines, plan: Plan) -> tuple[Refusal, ...]:
    """Raises the KubeError of the first request that may work later."""
    await asyncio.gather(*(_mark(kube, plan.namespace, mark) for mark in plan.marks))
    await asyncio.gather(*(_protect(kube, plan.namespace, each) for each in plan.protect))
    await asyncio.gather(
        *(_tell(engines, pod, is_draining=True) for pod in plan.drain),
        *(_tell(engines, pod, is_draining=False) for pod in plan.undrain),
    )
    for manifest in plan.delete:
        metadata = manifest["metadata"]
        await kube.delete(resource_of(manifest), plan.namespace, metadata["name"], metadata["uid"])
    return tuple([refusal for manifest in plan.apply if (refusal := await _write(kube, manifest))])


async def rehearse(kube: Kube, plan: Plan) -> tuple[Refusal, ...]:
    """What the API server says to a new template before it is stored; a template in use is not asked about again."""
    deployments = [each for each in plan.apply if each["kind"] == DEPLOYMENT.kind] if plan.revisions.apply else []
    return tuple([said for each in deployments if (said := await _write(kube, each, is_rehearsal=True))])


async def _write(kube: Kube, manifest: Manifest, *, is_rehearsal: bool = False) -> Refusal | None:
    title, is_optional = f"{manifest['kind']} {manifest['metadata']['name']}", resource_of(manifest) in OPTIONAL
    if not is_optional and await _is_somebody_elses(kube, manifest):
        return Refusal(title, "it is there and belongs to somebody else; rename the pool, or delete it")
    try:
        await kube.apply(manifest, is_rehearsal=is_rehearsal)
    except (Invalid, Forbidden, BadRequest) as error:
        return Refusal(title, str(error), is_optional)
    except NotFound as error:
        if not is_optional:
            raise
        return Refusal(title, str(error), is_optional)  # its API was uninstalled since we looked
    return None


async def _is_somebody_elses(kube: Kube, manifest: Manifest) -> bool:
    """A write is forced and would take it over. What we made is in the cache: only before a new child is it asked."""
    wanted = manifest["metadata"]
    found = await kube.get(resource_of(manifest), wanted["namespace"], wanted["name"])
    if found is None:
        return False
    has_label = found["metadata"].get("labels", {}).get(POOL_LABEL) == wanted["labels"][POOL_LABEL]
    owners = {owner["uid"] for owner in wanted.get("ownerReferences", ())}
    return not has_label and owners.isdisjoint(each["uid"] for each in found["metadata"].get("ownerReferences", ()))


async def _mark(kube: Kube, namespace: str, mark: Mark) -> None:
    since = mark.draining_since.isoformat(timespec="seconds") if mark.draining_since else None
    annotations = {
        DRAINING_SINCE_ANNOTATION: since,
        DELETION_COST_ANNOTATION: str(mark.deletion_cost) if since else None,
    }
    labels = {SERVING_LABEL: "false" if since else "true"}
    await _patch(kube, namespace, mark.pod, {"labels": labels, "annotations": annotations})


async def _protect(kube: Kube, namespace: str, protection: Protection) -> None:
    annotations = {key: DO_NOT_DISRUPT[key] if protection.is_on else None for key in protection.keys}
    annotations[PROTECTED_ANNOTATION] = "true" if protection.is_on else None
    try:
        await _patch(kube, namespace, protection.pod, {"annotations": annotations})
    except Forbidden as error:  # a policy knows better, and the pool goes on without
        _log.warning("pod %s/%s is not protected: %s", namespace, protection.pod.name, error)


async def _patch(kube: Kube, namespace: str, pod: Pod, metadata: Manifest) -> None:
    try:
        await kube.patch(POD, namespace, pod.name, {"metadata": {"uid": pod.uid, **metadata}})
    except (NotFound, Invalid):  # gone, or another pod under its name
        _log.info("pod %s/%s is gone; it needs no mark", namespace, pod.name)


async def _tell(engines: Engines, pod: Pod, *, is_draining: bool) -> None:
    """An engine that cannot be told is told again in the next round: the label says what should be."""
    try:
        await engines.set_draining(pod, is_draining=is_draining)
    except EngineUnreachable as error:
        _log.warning("%s", error)
