"""How long this process has existed, interpreter and imports included; serve.py reports starts by it.

Linux only, like the containers it runs in. https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html (starttime)
"""

import os
import time
from pathlib import Path

STARTTIME = 21  # field 22 of the line, of which the first two are cut off with the command's name


def process_age_seconds(stat: str | None = None, uptime_seconds: float | None = None) -> float:
    """Since the kernel started this process. The command's name in `stat` may hold anything but a last bracket."""
    line = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace") if stat is None else stat
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME) if uptime_seconds is None else uptime_seconds
    started = int(line.rpartition(")")[2].split()[STARTTIME - 2]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, uptime - started)
