"""Which tokens end an answer, by a model directory's files. Called by the engine's runner and by its tokenizer.

generation_config.json, where there is one, knows the ends of a turn; config.json often only the end of a text.
"""

from pathlib import Path

from tidegate_checkpoint.config_json import Json, read_optional_object
from tidegate_checkpoint.errors import CorruptCheckpoint
from tidegate_checkpoint.location import reading

GENERATION_FILE = "generation_config.json"


def generation_end_ids(directory: Path) -> frozenset[int]:
    """Empty where the file is not there or does not say. Raises CheckpointError."""
    file = directory / GENERATION_FILE
    with reading(file):
        return end_ids(read_optional_object(file), str(file))


def end_ids(config: Json, source: str) -> frozenset[int]:
    """`eos_token_id` of any of the files: an id, several, or null. Raises CorruptCheckpoint, which names the source."""
    given = config.get("eos_token_id")
    ids = given if isinstance(given, list) else [] if given is None else [given]
    if not all(type(token_id) is int for token_id in ids):
        raise CorruptCheckpoint(f"{source}: eos_token_id is {given!r}, not token ids; fetch the file again")
    return frozenset(ids)
