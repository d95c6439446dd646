"""The Kubernetes components: one binary, compiled once from Go modules and kept by what it is made of.

The first build compiles some 2,700 packages: about 13 minutes on two cores. Everything that starts a cluster asks here.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.environment import clean_environment
from e2e.cluster.errors import BuildFailed
from e2e.cluster.go_toolchain import go
from e2e.cluster.paths import SOURCE, cache_home

KUBERNETES_VERSION = "1.37.2"
COMPONENTS = (
    "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl",
    "fake-gpu",
)  # fmt: skip
PROGRESS_SECONDS = 5.0


def kube_binary() -> Path:
    """The compiled binary; builds it first where no build of the same sources and Go version is cached."""
    compiler = go()
    home = cache_home() / f"kube-{fingerprint(compiler)}"
    binary = home / "tidegate-kube"
    if binary.exists():
        return binary
    with _lock(home):
        if not binary.exists():  # another builder may have finished while we waited
            _build(compiler, binary)
    return binary


def fingerprint(compiler: str) -> str:
    """Hash of go.mod, go.sum, our Go files and the toolchain's version."""
    environment = clean_environment(os.environ)
    version = subprocess.run([compiler, "version"], cwd=SOURCE, env=environment, capture_output=True, check=True).stdout
    digest = hashlib.sha256(version)
    for source in (SOURCE / "go.mod", SOURCE / "go.sum", *sorted(SOURCE.glob("*.go"))):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def _lock(home: Path) -> Iterator[None]:
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(compiler: str, binary: Path) -> None:
    prefix = "-X k8s.io/component-base/version"
    major, minor, _ = KUBERNETES_VERSION.split(".")
    flags = f"-s -w {prefix}.gitVersion=v{KUBERNETES_VERSION} {prefix}.gitMajor={major} {prefix}.gitMinor={minor}"
    unfinished = binary.with_suffix(".unfinished")
    command = [compiler, "build", "-v", "-buildvcs=false", "-ldflags", flags, "-o", str(unfinished), "."]
    _say(f"compiling Kubernetes {KUBERNETES_VERSION} into {binary}: about 13 minutes on two cores the first time")
    started = time.monotonic()
    environment = clean_environment(os.environ)
    with subprocess.Popen(command, cwd=SOURCE, env=environment, stderr=subprocess.PIPE, text=True) as build:
        assert build.stderr is not None
        last_lines = _show_progress(build.stderr, started)
    if build.returncode:
        raise BuildFailed(f"`go build` in {SOURCE} ended with {build.returncode}:\n" + "\n".join(last_lines))
    os.replace(unfinished, binary)  # noqa: PTH105 - a rename that is atomic and replaces
    _say(f"compiled in {_minutes(time.monotonic() - started)}")


def _show_progress(lines: Iterator[str], started: float) -> list[str]:
    """Counts what `go build -v` names; returns its last lines for an error message."""
    last_lines: list[str] = []
    num_packages = num_downloads = 0
    shown = started
    for line in lines:
        last_lines = [*last_lines[-30:], line.rstrip()]
        is_download = line.startswith("go: ")
        num_downloads += is_download
        num_packages += not is_download
        if time.monotonic() - shown >= PROGRESS_SECONDS:
            shown = time.monotonic()
            counts = f"{num_downloads} modules fetched, {num_packages} packages compiled"
            _say(f"{_minutes(shown - started)}  {counts}, now {line.strip().removeprefix('go: ')}")
    return last_lines


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
