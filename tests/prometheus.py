"""A real Prometheus for tests: scrapes what it is told every second, evaluates rules, answers queries, always ends."""

import json
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.requirements import FOR_MONITORING, find, require
from waiting import eventually


@dataclass(frozen=True)
class Target:
    """Something with /metrics, and the labels that its series get."""

    job: str
    address: str
    labels: Mapping[str, str]


@dataclass(frozen=True)
class Prometheus:
    url: str

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Series of an instant query, as Prometheus sends them. Raises on an expression it cannot evaluate."""
        return self._get("query", query=expr)["result"]

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def _get(self, path: str, **parameters: str) -> Any:
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=10) as it:
            return json.load(it)["data"]


@contextmanager
def prometheus(folder: Path, targets: tuple[Target, ...], rules: Path) -> Iterator[Prometheus]:
    """Ready when it is handed out. `folder` takes its configuration, data and log."""
    require(FOR_MONITORING)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    config = folder / "prometheus.yaml"
    config.write_text(yaml.safe_dump(_configuration(targets, rules)))
    command = [
        str(find("prometheus")), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}", "--log.level=warn",
    ]  # fmt: skip
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        eventually(lambda: _is_ready(address), timeout_seconds=60, what=f"Prometheus is ready; log: {folder}")
        yield Prometheus(f"http://{address}")
    finally:
        process.terminate()
        process.wait(20)


def check_rules(*paths: Path) -> str:
    """What promtool says of rule files; an assertion where one is wrong."""
    return _promtool("check", "rules", *map(str, paths))


def run_rule_tests(path: Path) -> str:
    """promtool's unit tests of rules; an assertion with the difference."""
    return _promtool("test", "rules", str(path))


def _promtool(*arguments: str) -> str:
    require(FOR_MONITORING)
    done = subprocess.run([str(find("promtool")), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _configuration(targets: tuple[Target, ...], rules: Path) -> dict[str, Any]:
    jobs = [
        {"job_name": each.job, "static_configs": [{"targets": [each.address], "labels": dict(each.labels)}]}
        for each in targets
    ]
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": jobs,
    }


def _is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/-/ready", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
