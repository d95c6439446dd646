"""`tidegate inspect MODEL`: a model's shape, for people and for the operator's inspection Job.

Of files in a directory, or of a hub's repository, of which only config and heads are read. The Job passes
--termination-message: the answer, or the reason why there is none, becomes the container's last words.
"""

import argparse
from pathlib import Path

from tidegate_checkpoint.config_json import why_not_served
from tidegate_checkpoint.errors import CheckpointError, UnsupportedCheckpoint
from tidegate_checkpoint.shape import read_shape
from tidegate_cli.hub_token import BadToken, add_token_file, read_token
from tidegate_cli.last_words import add_termination_message, end_well, end_with
from tidegate_core.errors import CoreError
from tidegate_core.hub import DEFAULT_REVISION, SCHEME
from tidegate_core.inspected import Inspected
from tidegate_core.quantity import format_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model first: --termination-message takes an optional file."""
    parser.add_argument("model", help="model directory, GGUF file, config.json, or hf://ORG/NAME[/FILE.gguf]")
    parser.add_argument("--revision", default=DEFAULT_REVISION, help="of a hub's model (default: main)")
    parser.add_argument("-o", "--output", choices=("json", "table"), default="json", help="default: json")
    add_token_file(parser)
    add_termination_message(parser)


def run(arguments: argparse.Namespace) -> int:
    """0, or the ExitCode that the operator reads."""
    errors = _errors(arguments.model)
    try:
        inspected = _inspect(arguments)
        document = inspected.to_json()
    except errors as error:
        return end_with("inspect", arguments, error)
    print(document if arguments.output == "json" else _table(inspected))
    return end_well(arguments, document)


def _errors(model: str) -> tuple[type[Exception], ...]:
    """What can go wrong; the hub's client is imported for its own models only."""
    local = (CheckpointError, CoreError, BadToken, OSError)
    if not model.startswith(SCHEME):
        return local
    from tidegate_engine.hub.errors import HubError

    return (*local, HubError)


def _inspect(arguments: argparse.Namespace) -> Inspected:
    """A pool of a model that can only be sized would deploy engines that end at once."""
    inspected = _read(arguments)
    if (reason := why_not_served(inspected.shape.architecture)) is not None:
        raise UnsupportedCheckpoint(f"{arguments.model}: {reason}")
    return inspected


def _read(arguments: argparse.Namespace) -> Inspected:
    if not arguments.model.startswith(SCHEME):
        return Inspected(read_shape(Path(arguments.model)))
    from tidegate_engine.hub.client import Hub
    from tidegate_engine.hub.skeleton import inspect

    return inspect(Hub(token=read_token(arguments.token_file)), arguments.model, arguments.revision)


def _table(inspected: Inspected) -> str:
    shape, snapshot = inspected.shape, inspected.snapshot
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
        *([] if snapshot is None else [("commit", snapshot.commit)]),
        *([] if snapshot is None else [("download", format_bytes(inspected.download_bytes))]),
    ]
    return "\n".join(f"{name:<14}{value}" for name, value in rows)
