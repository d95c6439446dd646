"""Names that tie a pool to its children: labels, annotations, object names, owner references.

`tidegate.dev/serving` is in the Service's selector but not in the Deployment's: flipping it takes a pod out of traffic
without losing it. The recommended `app.kubernetes.io` labels are for people and dashboards; nothing selects by them.
"""

from collections.abc import Mapping

from tidegate_operator.api.base import API_VERSION, GROUP, KIND
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.resources import Manifest

POOL_LABEL = f"{GROUP}/pool"
ROLE_LABEL = f"{GROUP}/role"
SERVING_LABEL = f"{GROUP}/serving"
TEMPLATE_LABEL = f"{GROUP}/template"  # hash of the rendered pod template a pod was made from

APPLIED_ANNOTATION = f"{GROUP}/applied"  # hash of the manifest we applied last, to see what we no longer ask for
HOLDS_ANNOTATION = f"{GROUP}/holds"  # on a cache's claim: the snapshots on it; on a download Job: those after it
DESIRED_ANNOTATION = f"{GROUP}/desired-replicas"  # on the Deployment: the size decided, written with `replicas` at once
ROLLOUT_ANNOTATION = f"{GROUP}/rollout"  # on the Deployment: what rollout.py must remember
RETRIED_ANNOTATION = f"{GROUP}/retried"  # on the Deployment: for which refusal, and which room since, it tried anew
DRAINING_SINCE_ANNOTATION = f"{GROUP}/draining-since"
PROTECTED_ANNOTATION = f"{GROUP}/protected"  # on a pod that autoscalers of nodes are asked to leave alone
DELETION_COST_ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"

ENGINE_ROLE = "engine"
INSPECTION_ROLE = "inspection"
DOWNLOAD_ROLE = "download"
CACHE_ROLE = "cache"
MODEL_ROLE = "model"
TEMPLATE_ROLE = "template"
CHAT_TEMPLATE_ROLE = "chat-template"

ENGINE_CONTAINER = "engine"  # in all our pods: a settings patch finds it under one name
DOWNLOAD_CONTAINER = "download"  # in pods that fetch their model before the engine starts
MANAGED_BY = "tidegate"


def cache_name(pool: InferencePool) -> str:
    """Of the claim that a cache is."""
    return pool.metadata.name + "-models"


def selector(pool_name: str) -> dict[str, str]:
    """What the Deployment selects; it can never change for an existing Deployment."""
    return {POOL_LABEL: pool_name, ROLE_LABEL: ENGINE_ROLE}


def labels(pool: InferencePool, role: str) -> dict[str, str]:
    """Labels of a child."""
    return {
        "app.kubernetes.io/managed-by": MANAGED_BY,
        "app.kubernetes.io/name": "tidegate-engine",
        "app.kubernetes.io/instance": pool.metadata.name,
        POOL_LABEL: pool.metadata.name,
        ROLE_LABEL: role,
    }


def metadata(pool: InferencePool, name: str, role: str, annotations: Mapping[str, str] | None = None) -> Manifest:
    """Metadata of a child that goes when its pool goes."""
    extra = {"annotations": dict(annotations)} if annotations else {}
    return {
        "name": name,
        "namespace": pool.metadata.namespace,
        "labels": labels(pool, role),
        "ownerReferences": [owner_reference(pool)],
        **extra,
    }


def owner_reference(pool: InferencePool) -> Manifest:
    """The garbage collector removes a child once this very pool is gone, with the operator down as well."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": pool.metadata.name,
        "uid": pool.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def text_selector(pool_name: str) -> str:
    """The Deployment's selector as one string, for status.selector and list requests."""
    return ",".join(f"{key}={value}" for key, value in selector(pool_name).items())
