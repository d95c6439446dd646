"""Which exit code and words an engine process ends with: the operator tells causes apart by them."""

import json

import pytest

from tidegate_checkpoint.errors import CorruptCheckpoint, MissingCheckpoint, UnsupportedCheckpoint
from tidegate_core.errors import BadLaunch
from tidegate_core.termination import ExitCode
from tidegate_engine.errors import EngineFailed
from tidegate_engine.process.exits import BindFailed, DoesNotFit, EngineStuck, exit_of, write_termination_message


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (MissingCheckpoint("x"), ExitCode.MODEL_UNREACHABLE, "ModelUnreachable"),
        (CorruptCheckpoint("x"), ExitCode.MODEL_UNSUPPORTED, "ModelCorrupt"),
        (UnsupportedCheckpoint("x"), ExitCode.MODEL_UNSUPPORTED, "ModelUnsupported"),
        (DoesNotFit("x"), ExitCode.DOES_NOT_FIT, "DoesNotFit"),
        (MemoryError("x"), ExitCode.DOES_NOT_FIT, "DoesNotFit"),
        (BadLaunch("x"), ExitCode.BAD_ARGUMENTS, "BadArguments"),
        (BindFailed("x"), ExitCode.BAD_ARGUMENTS, "BadArguments"),
        (EngineStuck("x"), ExitCode.ENGINE_STUCK, "EngineStuck"),
        (EngineFailed("x"), ExitCode.INTERNAL, "EngineFailed"),
        (ZeroDivisionError("x"), ExitCode.INTERNAL, "InternalError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_each_cause_has_its_exit_code_and_reason(error, code, reason):
    ended = exit_of(error)
    assert ended.code is code
    assert ended.message.reason == reason
    assert "x" in ended.message.message


def test_an_error_nobody_foresaw_is_told_with_its_class():
    assert exit_of(KeyError("layers")).message.message == "KeyError: 'layers'"


def test_an_error_without_words_is_told_by_its_class():
    assert exit_of(MemoryError()).message.message == "MemoryError"


def test_the_termination_message_is_written_only_into_a_file_that_is_there(tmp_path):
    message = exit_of(DoesNotFit("no room")).message
    write_termination_message(message, tmp_path / "absent")
    (tmp_path / "log").touch()
    write_termination_message(message, tmp_path / "log")
    assert not (tmp_path / "absent").exists()
    assert json.loads((tmp_path / "log").read_text()) == {"reason": "DoesNotFit", "message": "no room"}
