"""Where a pool's model comes from, and where it is kept: spec.model and spec.cache.

Three sources: a claim of the user (pvc://), a hub (hf://), an image (oci://). What they have in common is asked of
`ModelSource`; what a model of each needs in pods is in manifests/model_volume.py.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from tidegate_core.hub import SCHEME as HUB_SCHEME
from tidegate_operator.api.base import ApiModel, Quantity
from tidegate_operator.api.references import SecretKey

CLAIM_SCHEME, IMAGE_SCHEME = "pvc://", "oci://"

Name = Annotated[str, Field(min_length=1, max_length=253)]


class KvCacheDtype(StrEnum):
    """What keys and values are kept in."""

    INT8 = "Int8"
    FP8 = "Fp8"


class WeightQuantization(StrEnum):
    """What weights are rounded to when an engine loads them."""

    INT8 = "Int8"


class PullPolicy(StrEnum):
    """As in a pod."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class ModelSource(ApiModel):
    """Where the model is and how clients call it."""

    uri: str = Field(max_length=1024)
    """The model: pvc://CLAIM/PATH, a PersistentVolumeClaim of this namespace and the directory or GGUF file in it;
    hf://ORG/NAME or hf://ORG/NAME/FILE.gguf, a repository of the hub at HF_ENDPOINT; oci://IMAGE or oci://IMAGE#PATH,
    an image whose files are mounted as they are (Kubernetes 1.35 or newer)."""
    revision: str | None = Field(default=None, max_length=255, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")
    """hf:// only: branch, tag or commit. It is resolved to a commit once, which status.model.revision shows and the
    pods keep. Absent: main."""
    token_secret_ref: SecretKey | None = None
    """hf:// only: the hub's token, for gated and private models. Mounted as a file where a model is inspected or
    fetched, never in the environment and never into an engine."""
    pull_policy: PullPolicy | None = None
    """oci:// only: when the image is pulled. Absent: Always for the tag latest, else IfNotPresent."""
    served_names: tuple[Name, ...] = Field(
        default=(), max_length=8, json_schema_extra={"x-kubernetes-list-type": "set"}
    )
    """Names clients may give as `model`. Absent: the pool's name."""
    chat_template: str | None = Field(default=None, min_length=1, max_length=65536)
    """Jinja chat template for a model that has none. Absent: the model's own."""
    kv_cache_dtype: KvCacheDtype | None = None
    """Int8 holds twice the tokens in the same memory, on every device, at a small loss of quality. Fp8 is as small and
    needs GPUs of compute capability 8.9 (Ada, Hopper) or newer. Absent: as wide as the model."""
    quantization: WeightQuantization | None = None
    """Int8 rounds weights when they are loaded: half the memory of 16 bits and up to one and a half times the speed, at
    a loss of quality to be measured. Only for cpu pools. Absent: weights stay as they are."""

    @property
    def is_of_hub(self) -> bool:
        return self.uri.startswith(HUB_SCHEME)

    @property
    def is_image(self) -> bool:
        return self.uri.startswith(IMAGE_SCHEME)

    @property
    def claim(self) -> str | None:
        """Name of the user's PersistentVolumeClaim; None for other sources."""
        return self.uri.removeprefix(CLAIM_SCHEME).partition("/")[0] if self.uri.startswith(CLAIM_SCHEME) else None

    @property
    def image(self) -> str:
        """Of an image source: its reference."""
        return self.uri.removeprefix(IMAGE_SCHEME).partition("#")[0]

    @property
    def path(self) -> str:
        """Path inside the claim or image, without a leading slash; empty for its root."""
        separator = "#" if self.is_image else "/"
        return self.uri.partition("://")[2].partition(separator)[2]


class AccessMode(StrEnum):
    """As in a claim. ReadWriteOncePod is missing: the download and the engines are several pods."""

    READ_WRITE_ONCE = "ReadWriteOnce"
    READ_WRITE_MANY = "ReadWriteMany"
    READ_ONLY_MANY = "ReadOnlyMany"


class CacheClaim(ApiModel):
    """The PersistentVolumeClaim to make."""

    storage_class_name: str | None = Field(default=None, max_length=253)
    """Absent: the cluster's default class."""
    access_modes: tuple[AccessMode, ...] = Field(
        default=(), max_length=3, json_schema_extra={"x-kubernetes-list-type": "set"}
    )
    """ReadWriteOnce serves replicas on one node only; ReadWriteMany serves them anywhere. Absent: ReadWriteOnce."""
    storage: Quantity | None = None
    """Its size. Absent: twice the model and 1Gi, so that the next revision fits beside the one that serves."""

    @property
    def modes(self) -> tuple[AccessMode, ...]:
        return self.access_modes or (AccessMode.READ_WRITE_ONCE,)


class ModelCache(ApiModel):
    """Where a hub's model is kept, so that it is fetched once for the pool."""

    persistent_volume_claim: CacheClaim = CacheClaim()
    """The claim `<pool>-models`."""
    retain: bool = False
    """true: the claim outlives the pool, and a pool of the same name takes it again. false: it goes with the pool."""
