"""Reads the numbers of a config that only model code needs; a wrong one names its key."""

from tidegate_checkpoint.config_json import Json
from tidegate_checkpoint.errors import CorruptCheckpoint


def number(config: Json, key: str) -> float:
    """A required number."""
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CorruptCheckpoint(f"the model's config has '{key}' {value!r}, not a number; fetch the config again")
    return float(value)


def optional_number(config: Json, key: str) -> float | None:
    """None where the config is silent."""
    return None if config.get(key) is None else number(config, key)


def rope_scaling(config: Json) -> Json | None:
    """The completed config's rotary scaling."""
    scaling = config.get("rope_scaling")
    return scaling if isinstance(scaling, dict) else None
