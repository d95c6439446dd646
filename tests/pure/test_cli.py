"""The command itself: finds its subcommands, imports one half at most, and refuses what it does not know."""

import os
import subprocess
import sys

import pytest
import yaml

from tidegate_cli.__main__ import COMMANDS, main


def test_an_unknown_command_is_answered_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["plna"])
    refusal = capsys.readouterr().err
    assert "plna" in refusal
    assert all(command in refusal for command in COMMANDS)


def test_no_command_at_all_is_answered_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    help_text = capsys.readouterr().err
    assert all(f"  {command} " in help_text for command in COMMANDS)


@pytest.mark.parametrize("buffering", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_reader_that_leaves_early_ends_it_quietly(buffering: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "tidegate_cli", "crd"], stdout=writer, stderr=subprocess.PIPE, check=False,
            env={**_environment(), "PYTHONUNBUFFERED": buffering},
        )  # fmt: skip
    finally:
        os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, b"")


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["plan", "--help"], ["inspect", "-h"], ["serve", "-h"]])
def test_help_and_version_are_no_errors(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(argv)
    assert "tidegate" in capsys.readouterr().out


def test_the_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["-h"])
    assert all(
        f"  {command} " in capsys_line for command, capsys_line in zip(COMMANDS, _command_lines(capsys), strict=True)
    )


def test_crd_prints_the_resource_definition(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crd"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["kind"] == "CustomResourceDefinition"


@pytest.mark.parametrize(
    ("argv", "flag"),
    [
        (["serve", "/m", "--port=eighty"], "--port"),
        (["serve", "/m", "--kv-memory=lots"], "--kv-memory"),
        (["serve", "/m", "--device=tpu"], "--device"),
    ],
)
def test_serve_names_a_wrong_argument_before_it_loads_anything(
    argv: list[str], flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    assert flag in capsys.readouterr().err


def test_planning_imports_neither_half_nor_pydantic() -> None:
    heavy = ["pydantic", "torch", "kopf", "kubernetes", "yaml", "tidegate_engine", "tidegate_operator"]
    script = (
        "import sys; from tidegate_cli.__main__ import main; code = main(['plan', '--model', '/nowhere']); "
        f"print(code, [name for name in {heavy} if name in sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=_environment()
    )
    assert ended.stdout == "3 []\n"


def _environment() -> dict[str, str]:
    return {"PYTHONPATH": ":".join(sys.path)}


def _command_lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.partition("commands:\n")[2].splitlines()
