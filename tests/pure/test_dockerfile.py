"""The Dockerfile fits what starts its images: user, interpreter, entry point, locks. No docker is needed for that.

The same locks and sources are built into images without docker by e2e/cluster/images.py, and run by every scenario.
"""

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from tidegate_core.telemetry import ADMIN_PORT, API_PORT
from tidegate_operator.manifests.pod import COMMAND, UID

ROOT = Path(__file__).parents[2]
LINES = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
STAGES = {name: [] for name in re.findall(r"^FROM \S+ AS (\S+)$", "\n".join(LINES), re.MULTILINE)}
for line in LINES:
    if line.startswith("FROM "):
        stage = STAGES[line.rpartition(" ")[2]]
    stage.append(line)


def instructions(stage: str, word: str) -> list[str]:
    return [line.removeprefix(f"{word} ") for line in STAGES[stage] if line.startswith(f"{word} ")]


@pytest.mark.parametrize("stage", ["operator", "engine"])
def test_an_image_runs_as_the_pods_user_with_the_pods_command(stage: str) -> None:
    assert instructions(stage, "USER") == [f"{UID}:{UID}"]
    assert json.loads(instructions(stage, "ENTRYPOINT")[0]) == list(COMMAND)
    chart = yaml.safe_load((ROOT / "charts" / "tidegate" / "values.yaml").read_text())
    assert chart["command"] == [*COMMAND, "operator"]
    assert f"COPY --from={stage}-packages /opt/venv /opt/venv" in STAGES[stage]
    assert "PATH=/opt/venv/bin:" in instructions(stage, "ENV")[0], "`python` of the pod's command is the environment's"


def test_every_base_is_a_plain_name_of_the_python_we_support() -> None:
    bases = {line.split()[1] for line in LINES if line.startswith("FROM ")}
    assert bases == {"python:3.11-slim"}


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [line.split()[1:-1] for line in LINES if line.startswith("COPY ") and "--from" not in line]
    names = {name for names in copied for name in names}
    assert names
    assert [name for name in names if not (ROOT / name).exists()] == []
    assert names == set(kept)


@pytest.mark.parametrize(("lock", "extras"), [("operator", ["operator"]), ("engine", ["engine", "gguf"])])
def test_a_lock_has_every_package_that_its_half_asks_for_with_hashes(lock: str, extras: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(each for extra in extras for each in project["optional-dependencies"][extra])]
    names = {re.split(r"[<>=;\[ ]", each)[0].lower() for each in asked}
    text = (ROOT / f"requirements-{lock}.lock").read_text()
    assert names - set(re.findall(r"^([a-z0-9-]+)==", text, re.MULTILINE)) == set()
    assert len(re.findall(r"^[a-z0-9-]+==\S+ .*\\$", text, re.MULTILINE)) == len(re.findall("==", text))
    everything = (ROOT / "requirements.lock").read_text()
    pinned = re.findall(r"^([a-z0-9-]+==[^ ;]+)", text, re.MULTILINE)
    untested = [each for each in pinned if f"{each} " not in everything]
    assert untested == [], "what is shipped is what is tested"


def test_the_engine_says_which_ports_it_opens() -> None:
    assert instructions("engine", "EXPOSE") == [f"{API_PORT} {ADMIN_PORT}"]
