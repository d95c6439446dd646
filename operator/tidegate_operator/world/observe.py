"""I/O: gather everything about one pool into a frozen Observed. Reads only; decides nothing.

Children are found by the pool's label and kept when this very pool controls them. Objects that merely have a name we
need are looked up by name, so that nothing of a stranger is taken over.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pydantic import ValidationError

from tidegate_core.samples import History
from tidegate_operator.api.spec import InferencePoolSpec
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.errors import Forbidden, UnreadablePool
from tidegate_operator.kube import Kube
from tidegate_operator.labels import (
    DESIRED_ANNOTATION,
    DOWNLOAD_ROLE,
    ENGINE_ROLE,
    INSPECTION_ROLE,
    POOL_LABEL,
    ROLE_LABEL,
    cache_name,
)
from tidegate_operator.resources import (
    CHILDREN,
    DEPLOYMENT,
    JOB,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    POOL,
    SERVICE,
    SERVICE_ACCOUNT,
    Key,
    Manifest,
)
from tidegate_operator.world.cache import owns_replicas
from tidegate_operator.world.nodes import NodeCache
from tidegate_operator.world.observed import Inspection, Observed, Pod
from tidegate_operator.world.readers import read_deployment, read_inspection, read_pod
from tidegate_operator.world.scrape import Engines

DEFAULT_REPLICAS = InferencePoolSpec.model_fields["replicas"].default
NAMED_LIKE_THE_POOL = (SERVICE_ACCOUNT, SERVICE, DEPLOYMENT)
FREE_NAME_SECONDS = 600.0  # so old may be the word that nobody has a child's name: a write looks anew
CLAIM_SECONDS = 60.0  # so old may be the word that a user's claim is there: one that exists seldom goes
REPLICA_SET = "ReplicaSet"  # pods of the pool's labels that no such one made are a person's


@dataclass(frozen=True)
class Seen:
    """The pool, and whether spec.replicas came through its scale subresource."""

    pool: InferencePool
    is_scaled_by_others: bool


async def observe_pool(kube: Kube, key: Key) -> Seen | None:
    """None when the pool is gone. Raises UnreadablePool, naming each field."""
    namespace, name = key
    found = await kube.get(POOL, namespace, name)
    if found is None:
        return None
    try:
        return Seen(InferencePool.model_validate(found), is_scaled_by_others(found))
    except ValidationError as error:
        said = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise UnreadablePool(f"{said}; is the CRD of this operator's version installed?") from error


def is_scaled_by_others(pool: Manifest) -> bool:
    """Whether spec.replicas came through the scale subresource: kubectl scale, an HPA, KEDA.

    The API server takes the field from its owner then, and for custom resources names no new one; so a number that is
    neither the default nor anybody's came that way.
    """
    entries = [each for each in pool["metadata"].get("managedFields", ()) if owns_replicas(each)]
    if any(entry.get("subresource") == "scale" for entry in entries):
        return True
    return not entries and pool["spec"].get("replicas", DEFAULT_REPLICAS) != DEFAULT_REPLICAS


async def observe(kube: Kube, engines: Engines, nodes: NodeCache, seen: Seen, history: History | None) -> Observed:
    """What belongs to the pool, and what is in its way."""
    pool = seen.pool
    namespace, name = pool.metadata.namespace, pool.metadata.name
    labels = f"{POOL_LABEL}={name}"
    *lists, all_pods = [await kube.list(each, namespace, labels=labels) for each in (*CHILDREN, POD)]  # in memory
    labelled = [item for items in lists for item in items]
    present = {(item["kind"], item["metadata"]["name"]) for item in labelled}
    absent = [each for each in NAMED_LIKE_THE_POOL if (each.kind, name) not in present]
    unlabelled = await asyncio.gather(
        *(kube.get(each, namespace, name, max_age_seconds=FREE_NAME_SECONDS) for each in absent)
    )
    found = (*labelled, *filter(None, unlabelled))
    children = tuple(item for item in found if _controller(item).get("uid") == pool.metadata.uid)
    others = [item for item in found if item not in children]
    pods = tuple(
        read_pod(pod) for pod in _of_role(all_pods, ENGINE_ROLE) if _controller(pod).get("kind") == REPLICA_SET
    )
    known = Observed(
        children=children,
        strangers=tuple(_title(item) for item in others if _is_in_the_way(item, pool)),
        leftovers=tuple(_title(item) for item in others if _is_leftover(item, pool)),
        pods=tuple(sorted(_with_templates(pods, children), key=lambda pod: pod.name)),
        inspections=_jobs(children, all_pods, INSPECTION_ROLE),
        downloads=_jobs(children, all_pods, DOWNLOAD_ROLE),
        history=history,
        is_scaled_by_others=seen.is_scaled_by_others,
    )
    return await observe_outside(kube, engines, nodes, pool, known)


async def observe_outside(
    kube: Kube, engines: Engines, nodes: NodeCache, pool: InferencePool, known: Observed
) -> Observed:
    """With what no watch of ours tells: engines' loads, nodes, and the claim, which may be a user's."""
    answers, seen_nodes, claim = await asyncio.gather(engines.loads(known.pods), nodes.nodes(), _claim(kube, pool))
    has_own_claim = pool.spec.model.claim is not None
    return replace(
        known,
        is_claim_missing=has_own_claim and claim is None,
        cache_claim=None if has_own_claim else claim,
        nodes=seen_nodes,
        loads=answers.loads,
        failures=answers.failures,
    )


async def _claim(kube: Kube, pool: InferencePool) -> Manifest | None:
    """The claim with the model: the user's, or the pool's cache. Where we may not look, pods will tell."""
    own = pool.spec.model.claim
    name = own or (cache_name(pool) if pool.spec.cache else None)
    if name is None:
        return None
    try:
        return await kube.get(
            PERSISTENT_VOLUME_CLAIM, pool.metadata.namespace, name, max_age_seconds=CLAIM_SECONDS
        )  # fmt: skip
    except Forbidden:
        if own is None:
            raise
        return {}


def _with_templates(pods: Iterable[Pod], children: Iterable[Manifest]) -> Iterable[Pod]:
    """People take labels off. Where the Deployment says that all of its pods have its template, that one has it too.

    Its ReplicaSet does not select by this label, so it keeps the pod and says nothing.
    """
    facts = [read_deployment(each, DESIRED_ANNOTATION) for each in children if each["kind"] == DEPLOYMENT.kind]
    template = next((each.template for each in facts if each.is_settled), "")
    return (pod if pod.template else replace(pod, template=template) for pod in pods)


def _jobs(children: Iterable[Manifest], pods: Iterable[Manifest], role: str) -> tuple[Inspection, ...]:
    theirs = tuple(_of_role(pods, role))
    jobs = _of_role((child for child in children if child["kind"] == JOB.kind), role)
    return tuple(read_inspection(job, theirs) for job in jobs if _is_numbered(job))


def _is_numbered(job: Manifest) -> bool:
    """A copy that a person made has a name of its own, and is no try of ours."""
    return bool(job["metadata"]["name"].rpartition("-")[2].isdecimal())


def _of_role(items: Iterable[Manifest], role: str) -> Iterable[Manifest]:
    return (item for item in items if item["metadata"]["labels"].get(ROLE_LABEL) == role)


def _controller(item: Manifest) -> Manifest:
    return next((owner for owner in item["metadata"].get("ownerReferences", ()) if owner.get("controller")), {})


def _is_leftover(item: Manifest, pool: InferencePool) -> bool:
    """Of a deleted pool of the same name: the garbage collector takes it soon."""
    owner = _controller(item)
    return (owner.get("kind"), owner.get("name")) == (POOL.kind, pool.metadata.name)


def _is_in_the_way(item: Manifest, pool: InferencePool) -> bool:
    """Has a name that a child must have. With our label alone, a person's own Service say, it disturbs nobody."""
    has_our_name = item["metadata"]["name"] == pool.metadata.name
    return has_our_name and item["kind"] in {each.kind for each in NAMED_LIKE_THE_POOL} and not _is_leftover(item, pool)


def _title(item: Manifest) -> str:
    return f"{item['kind']} {item['metadata']['name']}"
