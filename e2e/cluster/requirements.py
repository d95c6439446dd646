"""Programs that clusters call: found, installed as root, or named with the command that installs them.

Called before a build, before an API server starts and before a node starts; `python -m e2e.cluster prepare`
does the same for `make`.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.environment import clean_environment
from e2e.cluster.errors import MissingTool

CNI_FOLDER = Path("/usr/lib/cni")


@dataclass(frozen=True)
class Tool:
    """A program, or a file where `command` is a path, and the Debian package that brings it."""

    command: str
    package: str

    def is_present(self) -> bool:
        return Path(self.command).exists() if self.command.startswith("/") else find(self.command) is not None


FOR_API_SERVER = (Tool("openssl", "openssl"),)
FOR_NODES = (
    *FOR_API_SERVER,
    Tool("unshare", "util-linux"),
    Tool("mount", "mount"),
    Tool("ip", "iproute2"),
    Tool("nft", "nftables"),
    Tool("conntrack", "conntrack"),
    Tool("containerd", "containerd"),
    Tool("ctr", "containerd"),
    Tool("runc", "runc"),
    Tool(str(CNI_FOLDER / "ptp"), "containernetworking-plugins"),
)


FOR_MONITORING = (Tool("prometheus", "prometheus"), Tool("promtool", "prometheus"))  # tests of rules and dashboard


def find(command: str) -> str | None:
    """Full path of a command on PATH or in the system's folders."""
    return shutil.which(command, path=clean_environment(os.environ)["PATH"])


def require(tools: tuple[Tool, ...], *, may_install: bool | None = None) -> None:
    """Makes sure that all are there: installed by apt where we may (as root), else MissingTool names the command."""
    packages = sorted({tool.package for tool in tools if not tool.is_present()})
    if not packages:
        return
    install = f"apt-get install --no-install-recommends -y {' '.join(packages)}"
    if may_install is None:
        may_install = os.geteuid() == 0
    if not may_install or not find("apt-get"):
        raise MissingTool(f"missing on this machine: {', '.join(packages)}; install as root: {install}")
    print(f"installing {', '.join(packages)}", file=sys.stderr, flush=True)
    environment = clean_environment(os.environ) | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in ("apt-get update -q", install):
        done = subprocess.run(command.split(), env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise MissingTool(f"`{command}` failed, run it by hand: {done.stderr.strip()[-500:]}")
    if missing := [tool.command for tool in tools if not tool.is_present()]:
        raise MissingTool(f"still missing after `{install}`: {', '.join(missing)}")
