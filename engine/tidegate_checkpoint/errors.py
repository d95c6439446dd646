"""Why a model's files cannot be read: one class per reaction.

CheckpointError
├── MissingCheckpoint      the path, a shard or the tokenizer is not there: put it there, then retry
├── CorruptCheckpoint      a file is cut short or inconsistent: fetch it again
└── UnsupportedCheckpoint  an architecture, format or type that is not served: choose another model
"""


class CheckpointError(Exception):
    """Base of everything tidegate_checkpoint raises on purpose."""


class MissingCheckpoint(CheckpointError):
    """A path, or a file that another file names, does not exist."""


class CorruptCheckpoint(CheckpointError):
    """A file ends early or contradicts itself."""


class UnsupportedCheckpoint(CheckpointError):
    """A well-formed model that this version does not serve."""
