"""An inspection's answer: the model's shape and, for a model of a hub, which commit and how many bytes to fetch.

One JSON line, the inspection container's last words: the shape's own document with the other fields beside it, so that
the answer about a local model is its shape and nothing else.
"""

import json
from dataclasses import dataclass
from typing import Any, Self

from tidegate_core.errors import UnsupportedShape
from tidegate_core.hub import Snapshot
from tidegate_core.shape import MAX_JSON_BYTES, ModelShape


@dataclass(frozen=True)
class Inspected:
    """`snapshot` and `download_bytes` are those of a hub's model."""

    shape: ModelShape
    snapshot: Snapshot | None = None
    download_bytes: int = 0

    def to_json(self) -> str:
        """Raises UnsupportedShape when it would not fit a termination message."""
        text = self.shape.to_json()
        if self.snapshot is not None:
            text = json.dumps(json.loads(text) | {"hub": self.hub_document()}, separators=(",", ":"))
        if len(text.encode()) > MAX_JSON_BYTES:
            raise UnsupportedShape(f"{self.shape.architecture}: its description takes over {MAX_JSON_BYTES} bytes")
        return text

    def hub_document(self) -> dict[str, Any]:  # JSON
        """The part that only a hub's model has."""
        if self.snapshot is None:
            return {}
        where = {"repo": self.snapshot.repo, "commit": self.snapshot.commit, "file": self.snapshot.file}
        return {**where, "downloadBytes": self.download_bytes}

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Raises UnsupportedShape."""
        shape = ModelShape.from_json(text)
        hub = json.loads(text).get("hub")
        match {"file": None, **hub} if isinstance(hub, dict) else hub:  # a store may drop what is null
            case {"repo": str(repo), "commit": str(commit), "file": str() | None as file, "downloadBytes": int(size)}:
                return cls(shape, Snapshot(repo, commit, file), size)
            case None:
                return cls(shape)
            case other:
                raise UnsupportedShape(f"not the description of a hub's model: {other!r}")
