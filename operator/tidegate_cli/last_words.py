"""How `inspect` and `download` end: an error becomes an exit code, a line for people and a termination message."""

import argparse
import sys
from pathlib import Path

from tidegate_checkpoint.errors import CorruptCheckpoint, MissingCheckpoint
from tidegate_cli.hub_token import BadToken
from tidegate_core.termination import TERMINATION_MESSAGE_PATH, ExitCode, TerminationMessage


def add_termination_message(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--termination-message",
        nargs="?",
        type=Path,
        const=Path(TERMINATION_MESSAGE_PATH),
        metavar="FILE",
        help=f"also write the answer, or the error, to FILE (without FILE: {TERMINATION_MESSAGE_PATH})",
    )


def end_well(arguments: argparse.Namespace, document: str) -> ExitCode:
    _leave(arguments.termination_message, document)
    return ExitCode.OK


def end_with(command: str, arguments: argparse.Namespace, error: Exception) -> ExitCode:
    """A hub's error brings its own words; of the others the class decides."""
    code, words = _classify(error)
    print(f"tidegate {command}: {words.message}", file=sys.stderr)
    _leave(arguments.termination_message, words.encode())
    return code


def _classify(error: Exception) -> tuple[ExitCode, TerminationMessage]:
    def ended(code: ExitCode, reason: str) -> tuple[ExitCode, TerminationMessage]:
        return code, TerminationMessage(reason=reason, message=str(error))

    match error:
        case BadToken():
            return ended(ExitCode.ACCESS_DENIED, "TokenInvalid")
        case MissingCheckpoint() | OSError():
            return ended(ExitCode.MODEL_UNREACHABLE, "ModelNotFound")
        case CorruptCheckpoint():
            return ended(ExitCode.MODEL_UNSUPPORTED, "ModelCorrupt")
    if "tidegate_engine.hub.errors" in sys.modules:  # nobody has asked a hub before it is imported
        from tidegate_engine.hub.errors import HubError

        if isinstance(error, HubError):
            return error.code, error.last_words()
    return ended(ExitCode.MODEL_UNSUPPORTED, "ModelUnsupported")


def _leave(path: Path | None, text: str) -> None:
    if path is not None:
        path.write_text(text)
