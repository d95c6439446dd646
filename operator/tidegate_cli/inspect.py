"""`tidegate inspect PATH`: a model's shape from its files, for people and for the operator's inspection Job.

The Job passes --termination-message: the shape, or the reason why there is none, becomes the container's last words.
"""

import argparse
import sys
from pathlib import Path

from tidegate_checkpoint.config_json import why_not_served
from tidegate_checkpoint.errors import CheckpointError, CorruptCheckpoint, MissingCheckpoint, UnsupportedCheckpoint
from tidegate_checkpoint.shape import read_shape
from tidegate_core.errors import CoreError
from tidegate_core.launch import TERMINATION_MESSAGE_PATH, ExitCode, TerminationMessage
from tidegate_core.quantity import format_bytes
from tidegate_core.shape import ModelShape


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model first: --termination-message takes an optional file."""
    parser.add_argument("path", type=Path, help="model directory, GGUF file or config.json")
    parser.add_argument("-o", "--output", choices=("json", "table"), default="json", help="default: json")
    parser.add_argument(
        "--termination-message",
        nargs="?",
        type=Path,
        const=Path(TERMINATION_MESSAGE_PATH),
        metavar="FILE",
        help=f"also write the answer, or the error, to FILE (without FILE: {TERMINATION_MESSAGE_PATH})",
    )


def run(arguments: argparse.Namespace) -> int:
    """0, or the ExitCode that the operator reads."""
    try:
        shape = _read_served(arguments.path)
        document = shape.to_json()
    except (CheckpointError, CoreError, OSError) as error:
        code, reason = _classify(error)
        words = TerminationMessage(reason=reason, message=str(error))
        print(f"tidegate inspect: {words.message}", file=sys.stderr)
        _leave(arguments.termination_message, words.encode())
        return code
    print(document if arguments.output == "json" else _table(shape))
    _leave(arguments.termination_message, document)
    return ExitCode.OK


def _read_served(path: Path) -> ModelShape:
    """A pool of a model that can only be sized would deploy engines that end at once."""
    shape = read_shape(path)
    if (reason := why_not_served(shape.architecture)) is not None:
        raise UnsupportedCheckpoint(f"{path}: {reason}")
    return shape


def _classify(error: Exception) -> tuple[ExitCode, str]:
    match error:
        case MissingCheckpoint() | OSError():
            return ExitCode.MODEL_UNREACHABLE, "ModelNotFound"
        case CorruptCheckpoint():
            return ExitCode.MODEL_UNSUPPORTED, "ModelCorrupt"
        case _:
            return ExitCode.MODEL_UNSUPPORTED, "ModelUnsupported"


def _leave(path: Path | None, text: str) -> None:
    if path is not None:
        path.write_text(text)


def _table(shape: ModelShape) -> str:
    rows = [
        ("architecture", shape.architecture),
        ("parameters", f"{shape.num_parameters:,}"),
        ("computes in", shape.dtype),
        ("context", f"{shape.max_context:,}"),
        ("vocabulary", f"{shape.vocab_size:,}"),
        *(
            ("attention", f"{g.num_layers} x {g.kind}, {g.num_kv_heads} KV heads of {g.head_dim}")
            for g in shape.attention
        ),
        *(("weights", f"{g.role} {g.dtype}, {g.rule}: {format_bytes(g.num_bytes)}") for g in shape.weights),
        ("fingerprint", shape.fingerprint),
    ]
    return "\n".join(f"{name:<14}{value}" for name, value in rows)
