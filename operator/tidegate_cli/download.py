"""`tidegate download hf://ORG/NAME --to DIR`: a hub's model into a cache of the hub's own layout.

What a pool's download Job runs on its claim, and a pod without a claim before its engine starts. Only what an engine
needs is fetched; what an earlier try left is continued.
"""

import argparse
import os
import signal
from pathlib import Path

from huggingface_hub.utils import disable_progress_bars

from tidegate_checkpoint.errors import CheckpointError
from tidegate_cli.hub_token import BadToken, add_token_file, read_token
from tidegate_cli.last_words import add_termination_message, end_well, end_with
from tidegate_core.errors import CoreError
from tidegate_core.hub import DEFAULT_REVISION, HubSource, Snapshot, parse_name
from tidegate_core.launch import MODELS_PATH
from tidegate_engine.hub.cache import HubCache
from tidegate_engine.hub.client import Hub
from tidegate_engine.hub.download import Patience, download
from tidegate_engine.hub.errors import HubError
from tidegate_engine.hub.selection import select
from tidegate_engine.process.lifecycle import log_event

_TERMINATED = 128 + signal.SIGTERM  # what a shell says of such a process


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model first: --termination-message takes an optional file."""
    parser.add_argument("model", help="hf://ORG/NAME[/FILE.gguf]")
    parser.add_argument("--revision", default=DEFAULT_REVISION, help="branch, tag or commit (default: main)")
    parser.add_argument(
        "--to", type=Path, default=Path(MODELS_PATH), metavar="DIR", help=f"the cache (default: {MODELS_PATH})"
    )
    parser.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="ORG/NAME@COMMIT",
        help="first remove every snapshot but this one (repeatable) and the one to fetch; absent: nothing is removed",
    )
    add_token_file(parser)
    add_termination_message(parser)


def run(arguments: argparse.Namespace) -> int:
    """0 and what was fetched as last words, or the ExitCode that the operator reads."""
    _end_when_told()
    disable_progress_bars()  # lines without end in a pod's log
    try:
        snapshot = _download(arguments)
    except (CheckpointError, CoreError, HubError, BadToken, OSError) as error:
        return end_with("download", arguments, error)
    return end_well(arguments, snapshot.name)


def _end_when_told() -> None:
    """The first process of a container ignores signals it has no handler for, so that its pod would wait to be killed.

    What has arrived is on the disk; the next try goes on.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(_TERMINATED))


def _download(arguments: argparse.Namespace) -> Snapshot:
    hub, cache = Hub(token=read_token(arguments.token_file)), HubCache(arguments.to)
    selection = select(hub, HubSource.parse(arguments.model), arguments.revision)
    if arguments.keep:
        for gone in cache.prune({selection.snapshot, *map(parse_name, arguments.keep)}):
            log_event("removed", snapshot=gone)
    log_event("downloading", model=selection.snapshot.name, bytes=selection.num_bytes)
    path = download(hub, selection, cache, Patience(), on_file=lambda name: log_event("fetched", file=name))
    log_event("downloaded", path=str(path))
    return selection.snapshot
