"""How a spec names objects of the pool's own namespace: Secrets, ConfigMaps, entries of them.

The operator reads none of them. Pods have them mounted or injected by the kubelet, so it needs no rights on Secrets.
"""

from typing import Annotated

from pydantic import Field

from tidegate_operator.api.base import ApiModel

ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
EntryKey = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]


class SecretKey(ApiModel):
    """One entry of a Secret of the pool's namespace. The operator never reads it: pods have it mounted."""

    name: ObjectName
    """The Secret's name."""
    key: EntryKey
    """The entry's key."""


class ConfigMapKey(ApiModel):
    """One entry of a ConfigMap of the pool's namespace."""

    name: ObjectName
    """The ConfigMap's name."""
    key: EntryKey
    """The entry's key."""


class SecretName(ApiModel):
    """A whole Secret of the pool's namespace."""

    name: ObjectName
    """The Secret's name."""
