"""`tidegate operator` hands its arguments on and its exit code back."""

import os
import subprocess
import sys


def test_wrong_settings_are_refused_with_2_before_anything_is_connected() -> None:
    command = [sys.executable, "-m", "tidegate_cli", "operator", "--kubeconfig", "/nowhere"]
    environment = os.environ | {"PYTHONPATH": ":".join(sys.path), "TIDEGATE_DRAIN_TOKEN_FILE": "/nowhere/token"}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ended.returncode == 2, ended.stderr
    assert "TIDEGATE_" in ended.stderr
