"""Last words of an engine process: which exit code and termination message an error becomes.

The operator reads both to tell a volume that is not there from a model that does not fit (tidegate_core.launch).
"""

from dataclasses import dataclass
from pathlib import Path

from tidegate_checkpoint.errors import CheckpointError, CorruptCheckpoint, MissingCheckpoint
from tidegate_core.errors import BadLaunch
from tidegate_core.termination import ExitCode, TerminationMessage
from tidegate_engine.errors import EngineError, EngineFailed


class StartError(EngineError):
    """An engine that cannot start for a reason its operator can change."""


class BindFailed(StartError):
    """An address or port that is not ours to listen on."""


class DoesNotFit(StartError):
    """Not even one sequence has room beside the weights."""


class EngineStuck(EngineError):
    """The engine loop has made no step for far longer than any step takes."""


@dataclass(frozen=True)
class Exit:
    """How a process ends; no message when nothing went wrong."""

    code: ExitCode
    message: TerminationMessage | None = None


def exit_of(error: BaseException) -> Exit:
    """Never raises: an error nobody foresaw is INTERNAL."""
    code, reason = _classify(error)
    text = str(error) or type(error).__name__
    return Exit(
        code, TerminationMessage(reason=reason, message=text if code is not ExitCode.INTERNAL else _named(error))
    )


def _classify(error: BaseException) -> tuple[ExitCode, str]:
    match error:
        case MissingCheckpoint():
            return ExitCode.MODEL_UNREACHABLE, "ModelUnreachable"
        case CorruptCheckpoint():
            return ExitCode.MODEL_UNSUPPORTED, "ModelCorrupt"
        case CheckpointError():
            return ExitCode.MODEL_UNSUPPORTED, "ModelUnsupported"
        case DoesNotFit() | MemoryError():
            return ExitCode.DOES_NOT_FIT, "DoesNotFit"
        case BadLaunch() | BindFailed():
            return ExitCode.BAD_ARGUMENTS, "BadArguments"
        case EngineStuck():
            return ExitCode.ENGINE_STUCK, "EngineStuck"
        case EngineFailed():
            return ExitCode.INTERNAL, "EngineFailed"
        case _:
            return ExitCode.INTERNAL, "InternalError"


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def write_termination_message(message: TerminationMessage, path: Path) -> None:
    """Only into the file that the kubelet has made: outside a container nothing is left behind."""
    if path.is_file():
        path.write_text(message.encode())
