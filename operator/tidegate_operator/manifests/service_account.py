"""The identity of engine pods: it may do nothing, and its token is not mounted."""

from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.labels import ENGINE_ROLE, metadata
from tidegate_operator.resources import SERVICE_ACCOUNT, Manifest


def service_account(pool: InferencePool) -> Manifest:
    return {
        "apiVersion": SERVICE_ACCOUNT.api_version,
        "kind": SERVICE_ACCOUNT.kind,
        "metadata": metadata(pool, pool.metadata.name, ENGINE_ROLE),
        "automountServiceAccountToken": False,
    }
