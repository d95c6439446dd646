"""ControllerRevisions: immutable memory of a pool. One holds the inspected model, others the rendered pod templates."""

from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.labels import metadata
from tidegate_operator.resources import CONTROLLER_REVISION, Manifest


def controller_revision(pool: InferencePool, name: str, role: str, *, number: int, data: Manifest) -> Manifest:
    return {
        "apiVersion": CONTROLLER_REVISION.api_version,
        "kind": CONTROLLER_REVISION.kind,
        "metadata": metadata(pool, name, role),
        "revision": number,
        "data": data,
    }
