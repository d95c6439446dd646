"""What this process may use: CPU and memory limits of its container (cgroup v2 or v1), else what the machine has left.

torch and glibc see the machine; a pod limited to half a core on a 64-core node must not start 64 threads, and its KV
pool has to fit its own memory limit.
"""

import os
from collections.abc import Iterator, MutableMapping
from math import ceil
from pathlib import Path, PurePosixPath

from tidegate_engine.process.process_memory import private_bytes

CGROUPS = Path("/sys/fs/cgroup")
PROCESS = Path("/proc/self")
MEMINFO = Path("/proc/meminfo")
BRIEF_SPINS = "5000"  # turns of libgomp's loop, about 20 ns each
_NO_LIMIT_BYTES = 1 << 60  # cgroup v1 writes a huge number where there is no limit


def share_cores(environment: MutableMapping[str, str]) -> None:
    """Lets idle threads sleep after a tenth of a millisecond; takes effect only before torch is first imported.

    A product ends when its slowest thread does. Where a neighbour has taken that thread's core, spinning ones keep the
    others busy for nothing: with 10 busy processes on 2 cores a step took 1,250 ms spinning, 200 ms sleeping. The next
    product mostly begins within microseconds, so threads that sleep at once cost a quarter of a step of int8 products.
    """
    if "OMP_WAIT_POLICY" not in environment:
        environment["OMP_WAIT_POLICY"] = "PASSIVE"
        environment.setdefault("GOMP_SPINCOUNT", BRIEF_SPINS)


def cpu_threads(root: Path = CGROUPS, process: Path = PROCESS) -> int:
    """The CPU limit rounded up, at most the cores this process may run on, at least 1."""
    available = len(os.sched_getaffinity(0))
    limits = [limit for folder in _folders(root, process, "cpu") if (limit := _cpu_limit(folder)) is not None]
    return max(1, min(available, ceil(min(limits, default=available))))


def usable_memory_bytes(root: Path = CGROUPS, process: Path = PROCESS, meminfo: Path = MEMINFO) -> int:
    """The smallest memory limit that applies. Without one, what other programs leave: a laptop's are to live on.

    In both cases with what this process holds already.
    """
    machine = _machine_memory(meminfo)
    folders = _folders(root, process, "memory")
    limits = [limit for folder in folders if (limit := _memory_limit(folder)) and limit < machine["MemTotal"]]
    if limits:
        return min(limits)
    status = (process / "status").read_text(encoding="utf-8")
    return min(machine["MemAvailable"] + private_bytes(status), machine["MemTotal"])


def _machine_memory(meminfo: Path) -> dict[str, int]:
    """Bytes by the kernel's names. https://docs.kernel.org/filesystems/proc.html"""
    lines = (line.split() for line in meminfo.read_text(encoding="ascii").splitlines())
    return {name.removesuffix(":"): int(value) * 1024 for name, value, *_ in lines}


def _folders(root: Path, process: Path, controller: str) -> Iterator[Path]:
    """The process's cgroup and all above it, since every level limits. In a container its own may be the root."""
    for line in (process / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base = root
        elif controller in controllers.split(","):
            base = root / controllers if (root / controllers).is_dir() else root / controller
        else:
            continue
        inner = PurePosixPath(path.lstrip("/"))
        yield from (base / part for part in (inner, *inner.parents) if (base / part).is_dir())


def _cpu_limit(folder: Path) -> float | None:
    """Cores; None: unlimited at this level."""
    if (text := _read(folder / "cpu.max")) is not None:
        quota, period = text.split()
        return None if quota == "max" else int(quota) / int(period)
    quota_v1, period_v1 = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
    if quota_v1 is None or period_v1 is None or int(quota_v1) <= 0:
        return None
    return int(quota_v1) / int(period_v1)


def _memory_limit(folder: Path) -> int | None:
    text = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")
    if text is None or text == "max" or int(text) >= _NO_LIMIT_BYTES:
        return None
    return int(text)


def _read(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        return None
