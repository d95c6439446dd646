"""The operator's settings come from the environment; a wrong or misspelt variable stops the start with its name."""

import os
import subprocess
import sys

import pytest
from pydantic import ValidationError

from tidegate_operator.settings import EngineSettings, OperatorSettings, read_settings, variable_names

READ = """
import os
from tidegate_operator.settings import read_settings
print(read_settings(os.environ).model_dump_json())
"""


def read_in_process(**variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    return subprocess.run([sys.executable, "-c", READ], env=environment, capture_output=True, text=True, check=False)


def test_variables_reach_their_fields_and_groups_keep_their_other_defaults() -> None:
    result = read_in_process(
        TIDEGATE_ENGINE__IMAGE="engine:1",
        TIDEGATE_ENGINE__RUNNER="sim",
        TIDEGATE_ENGINE__POD_TEMPLATE_PATCH='{"spec": {"hostname": "x"}}',
        TIDEGATE_SCRAPE__TIMEOUT_SECONDS="1",
        TIDEGATE_NAMESPACES='["team-a", "team-b"]',
    )
    settings = OperatorSettings.model_validate_json(result.stdout)
    assert settings.engine.runner == "sim"
    assert settings.engine.pod_template_patch == {"spec": {"hostname": "x"}}
    assert settings.scrape.timeout_seconds == 1
    assert settings.scrape.interval_seconds == 5
    assert settings.namespaces == ("team-a", "team-b")
    assert not settings.is_cluster_wide


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        pytest.param({}, "TIDEGATE_ENGINE: Field required", id="no image"),
        pytest.param(
            {"TIDEGATE_ENGINE__IMAGE": "e", "TIDEGATE_ENGINE__IMGAE": "e"}, "TIDEGATE_ENGINE__IMGAE", id="a typo"
        ),
        pytest.param({"TIDEGATE_ENGINE__IMAGE": "e", "TIDEGATE_PORT": "x"}, "TIDEGATE_PORT: Input should", id="a word"),
    ],
)
def test_a_wrong_variable_is_named(variables: dict[str, str], complaint: str) -> None:
    result = read_in_process(**variables)
    assert result.returncode != 0
    assert complaint in result.stderr.splitlines()[-1]


def test_an_unknown_variable_is_refused_before_anything_is_read() -> None:
    with pytest.raises(Exception, match=r"unknown variables TIDEGATE_SCRAPE_SECONDS; known are .*TIDEGATE_SCRAPE__"):
        read_settings({"TIDEGATE_SCRAPE_SECONDS": "5"})


def test_settings_do_not_change() -> None:
    settings = OperatorSettings(engine=EngineSettings(image="e"))
    with pytest.raises(ValidationError):
        settings.port = 1  # type: ignore[misc]


def test_every_setting_has_one_variable() -> None:
    names = list(variable_names())
    assert len(names) == len(set(names))
    assert "TIDEGATE_ENGINE__POD_TEMPLATE_PATCH" in names
