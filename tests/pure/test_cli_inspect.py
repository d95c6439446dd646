"""`tidegate inspect`: the shape on standard output and as a termination message, errors as the operator reads them."""

from pathlib import Path

import pytest

from configs import config_directory
from tidegate_cli.__main__ import main
from tidegate_core.shape import ModelShape
from tidegate_core.termination import ExitCode, TerminationMessage


def test_the_shape_is_written_to_output_and_termination_message_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, words = config_directory(tmp_path / "model"), tmp_path / "words"
    assert main(["inspect", str(model), "--termination-message", str(words)]) == 0
    shape = ModelShape.from_json(capsys.readouterr().out)
    assert shape.num_parameters == 8_190_735_360
    assert ModelShape.from_json(words.read_text()) == shape
    assert words.stat().st_size <= 4096


def test_people_may_have_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(config_directory(tmp_path)), "-o", "table"]) == 0
    assert "36 x full, 8 KV heads of 128" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "code", "reason"),
    [
        (None, ExitCode.MODEL_UNREACHABLE, "ModelNotFound"),
        ({"model_type": "perceptron", "architectures": ["P"]}, ExitCode.MODEL_UNSUPPORTED, "ModelUnsupported"),
        ({"model_type": "mixtral"}, ExitCode.MODEL_UNSUPPORTED, "ModelUnsupported"),
        ({"hidden_size": "wide"}, ExitCode.MODEL_UNSUPPORTED, "ModelCorrupt"),
    ],
)
def test_a_model_that_cannot_be_read_leaves_a_reason(
    changes: dict[str, object] | None,
    code: ExitCode,
    reason: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, words = tmp_path / "model", tmp_path / "words"
    if changes is not None:
        config_directory(model, **changes)
    assert main(["inspect", str(model), "--termination-message", str(words)]) == code
    left = TerminationMessage.model_validate_json(words.read_text())
    assert left.reason == reason
    assert left.message in capsys.readouterr().err
