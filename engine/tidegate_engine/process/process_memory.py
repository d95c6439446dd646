"""Private memory of this process, to compare with what sizing predicted, and a way to give back what is free of it.

Linux only, like the containers it runs in.

https://docs.kernel.org/filesystems/proc.html (RssAnon: resident anonymous memory, without mapped files).
"""

import ctypes
import re
from pathlib import Path


def private_bytes(status: str | None = None) -> int:
    """RssAnon of /proc/self/status; 0 where the kernel does not tell."""
    text = Path("/proc/self/status").read_text(encoding="ascii") if status is None else status
    found = re.search(r"^RssAnon:\s+(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def return_free_memory() -> None:
    """Glibc keeps freed pieces of the arenas that threads used; other C libraries have no such call."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
