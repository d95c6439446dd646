"""Limits of a container, read from both generations of cgroups."""

import os

import pytest

from tidegate_engine.process.container import cpu_threads, share_cores, usable_memory_bytes

GIB = 2**30
CORES = len(os.sched_getaffinity(0))


def memory(folder, *, cgroup: str, files: dict[str, str]) -> int:
    """Of a process that holds 1 GiB, on a machine where 7 of 16 GiB are available."""
    root, process = tree(folder, cgroup=cgroup, files=files)
    (process / "status").write_text(f"Name:\tpython\nRssAnon:\t {2**20} kB\nRssFile:\t 12 kB\n")
    meminfo = folder / "meminfo"
    meminfo.write_text(f"MemTotal: {16 * 2**20} kB\nMemFree: 9 kB\nMemAvailable: {7 * 2**20} kB\nHugePages_Free: 0\n")
    return usable_memory_bytes(root, process, meminfo)


def tree(folder, *, cgroup: str, files: dict[str, str]):
    """A /sys/fs/cgroup and a /proc/self in `folder`."""
    process = folder / "proc"
    process.mkdir()
    (process / "cgroup").write_text(cgroup)
    for name, text in files.items():
        file = folder / "cgroups" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return folder / "cgroups", process


@pytest.mark.parametrize(("cpu_max", "threads"), [("50000 100000", 1), ("100000 100000", 1), ("max 100000", CORES)])
def test_v2_cpu_limits_are_rounded_up_to_threads(tmp_path, cpu_max, threads):
    where = tree(tmp_path, cgroup="0::/", files={"cpu.max": cpu_max})
    assert cpu_threads(*where) == threads


def test_threads_never_exceed_the_cores_this_process_may_use(tmp_path):
    where = tree(tmp_path, cgroup="0::/", files={"cpu.max": "100000000 100000"})
    assert cpu_threads(*where) == CORES


def test_v1_cpu_quota(tmp_path):
    files = {"cpu,cpuacct/pod/cpu.cfs_quota_us": "70000", "cpu,cpuacct/pod/cpu.cfs_period_us": "100000"}
    assert cpu_threads(*tree(tmp_path, cgroup="4:cpu,cpuacct:/pod\n0::/", files=files)) == 1


def test_v1_without_a_quota_means_all_cores(tmp_path):
    files = {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}
    assert cpu_threads(*tree(tmp_path, cgroup="1:cpu:/", files=files)) == CORES


def test_the_smallest_memory_limit_on_the_way_up_counts(tmp_path):
    files = {"memory.max": "max", "pod/memory.max": str(GIB), "pod/box/memory.max": str(2 * GIB)}
    assert memory(tmp_path, cgroup="0::/pod/box", files=files) == GIB


def test_a_path_that_is_not_mounted_in_the_container_falls_back_to_what_is(tmp_path):
    """Without a cgroup namespace the kernel names the host's path, while only the container's own part is mounted."""
    files = {"memory/memory.limit_in_bytes": str(GIB)}
    assert memory(tmp_path, cgroup="4:memory:/kubepods/pod1/box", files=files) == GIB


@pytest.mark.parametrize("limit", ["9223372036854771712", str(64 * GIB)])
def test_without_a_limit_below_the_machine_it_is_what_other_programs_leave(tmp_path, limit):
    """And what the process holds already, as in a limit."""
    files = {"memory/memory.limit_in_bytes": limit}
    assert memory(tmp_path, cgroup="4:memory:/", files=files) == 8 * GIB


def test_a_limit_is_the_pods_own_whatever_its_neighbours_have_taken(tmp_path):
    assert memory(tmp_path, cgroup="0::/", files={"memory.max": str(12 * GIB)}) == 12 * GIB


def test_this_machine_tells_its_memory():
    assert 0 < usable_memory_bytes() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_waiting_threads_soon_sleep_unless_the_user_says_otherwise():
    silent: dict[str, str] = {}
    share_cores(silent)
    assert silent == {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "5000"}
    chosen = {"OMP_WAIT_POLICY": "ACTIVE"}
    share_cores(chosen)
    assert chosen == {"OMP_WAIT_POLICY": "ACTIVE"}
