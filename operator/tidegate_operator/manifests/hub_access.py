"""How a pod of ours asks the hub: its address and who we are. Only pods that inspect or fetch a model can.

The token is a file from the user's Secret: the operator may not read Secrets, and an environment is inherited, logged
and shown by `kubectl describe`.
"""

from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.resources import Manifest

ENDPOINT_VARIABLE = "HF_ENDPOINT"
OFFLINE_VARIABLE = "HF_HUB_OFFLINE"
TOKEN_VOLUME = "hub-token"  # noqa: S105 - a volume's name
TOKEN_DIRECTORY = "/etc/tidegate-hub"  # noqa: S105 - a directory
TOKEN_KEY = "token"  # noqa: S105 - a file's name


def hub_variables(pool: InferencePool, endpoint: str, variables: list[Manifest]) -> list[Manifest]:
    """Of a container that asks the hub. What the pool says itself wins over the operator's endpoint."""
    known = {variable.name for variable in pool.spec.pod.env}
    ours = [{"name": ENDPOINT_VARIABLE, "value": endpoint}] if endpoint and ENDPOINT_VARIABLE not in known else []
    return [*(each for each in variables if each["name"] != OFFLINE_VARIABLE), *ours]


def token_arguments(pool: InferencePool) -> tuple[str, ...]:
    return ("--token-file", f"{TOKEN_DIRECTORY}/{TOKEN_KEY}") if pool.spec.model.token_secret_ref else ()


def token_volumes(pool: InferencePool) -> list[Manifest]:
    reference = pool.spec.model.token_secret_ref
    if reference is None:
        return []
    items = [{"key": reference.key, "path": TOKEN_KEY}]
    return [{"name": TOKEN_VOLUME, "secret": {"secretName": reference.name, "items": items}}]


def token_mounts(pool: InferencePool) -> list[Manifest]:
    if pool.spec.model.token_secret_ref is None:
        return []
    return [{"name": TOKEN_VOLUME, "mountPath": TOKEN_DIRECTORY, "readOnly": True}]
