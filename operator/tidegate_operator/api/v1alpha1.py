"""The InferencePool, tidegate.dev/v1alpha1: the whole object as stored.

The operator reads it with `InferencePool.model_validate`, leniently; what a person wrote is read by manifest.py.
"""

from pydantic import Field

from tidegate_operator.api.base import API_VERSION, KIND, ApiModel, Timestamp
from tidegate_operator.api.spec import InferencePoolSpec
from tidegate_operator.api.status import InferencePoolStatus


class ObjectMeta(ApiModel):
    """The part of metadata that we read."""

    name: str = ""
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    deletion_timestamp: Timestamp | None = None
    labels: dict[str, str] = Field(default={})
    annotations: dict[str, str] = Field(default={})


class InferencePool(ApiModel):
    """A model served by a pool of identical, sized and autoscaled engine replicas."""

    api_version: str = API_VERSION
    kind: str = KIND
    metadata: ObjectMeta = ObjectMeta()
    spec: InferencePoolSpec
    status: InferencePoolStatus = InferencePoolStatus()

    @property
    def is_deleting(self) -> bool:
        return self.metadata.deletion_timestamp is not None
