"""The volume with a pool's model, for each of its sources, and the path an engine is given in it.

pvc://CLAIM/PATH  the user's claim            hf:// with a cache     the claim `<pool>-models`
oci://IMAGE#PATH  an image volume             hf:// without          an emptyDir that the pod fills first
"""

from dataclasses import dataclass
from math import ceil

from tidegate_core.hub import Snapshot
from tidegate_core.launch import MODELS_PATH
from tidegate_core.quantity import format_quantity
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.labels import cache_name
from tidegate_operator.resources import Manifest

MODEL_VOLUME = "models"
_MIB = 2**20
_DISK_MARGIN = 1.05  # file systems count blocks


@dataclass(frozen=True)
class HubFiles:
    """What an inspection found at the hub: where it will lie, and how much of it there is."""

    snapshot: Snapshot
    num_bytes: int


@dataclass(frozen=True)
class ModelVolume:
    """`source` as in a pod's volume."""

    source: Manifest

    def volume(self) -> Manifest:
        return {"name": MODEL_VOLUME, **self.source}

    def mount(self, *, is_writable: bool = False) -> Manifest:
        return {"name": MODEL_VOLUME, "mountPath": MODELS_PATH} | ({} if is_writable else {"readOnly": True})


def claim_volume(name: str, *, is_writable: bool = False) -> ModelVolume:
    read_only = {} if is_writable else {"readOnly": True}
    return ModelVolume({"persistentVolumeClaim": {"claimName": name, **read_only}})


def inspected_volume(pool: InferencePool) -> ModelVolume | None:
    """What an inspection mounts; None where it asks a hub."""
    model = pool.spec.model
    if model.claim is not None:
        return claim_volume(model.claim)
    if model.is_image:
        policy = {"pullPolicy": model.pull_policy.value} if model.pull_policy else {}
        return ModelVolume({"image": {"reference": model.image, **policy}})
    return None


def served_volume(pool: InferencePool, files: HubFiles | None) -> ModelVolume:
    """What an engine mounts."""
    if (volume := inspected_volume(pool)) is not None:
        return volume
    if pool.spec.cache is not None:
        return claim_volume(cache_name(pool))
    assert files is not None, "a hub's model is inspected before it is served"
    return ModelVolume({"emptyDir": {"sizeLimit": format_quantity(disk_bytes(files.num_bytes))}})


def model_path(pool: InferencePool, files: HubFiles | None = None) -> str:
    """Where engines, and the inspection of what is mounted, find the model."""
    path = files.snapshot.path if files is not None else pool.spec.model.path
    return f"{MODELS_PATH}/{path}".rstrip("/")


def disk_bytes(num_bytes: int) -> int:
    """What files of so many bytes take on a disk, in whole MiB."""
    return ceil(num_bytes * _DISK_MARGIN / _MIB + 64) * _MIB
