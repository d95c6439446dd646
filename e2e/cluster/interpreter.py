"""The running Python interpreter as an image layer: binary, standard library and shared libraries at their own paths.

Their own paths, because an interpreter does not relocate reliably. A virtual environment made from it, mounted anywhere
in a pod, then finds it where its links point to.
"""

import hashlib
import os
import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.environment import clean_environment
from e2e.cluster.errors import MissingTool
from e2e.cluster.oci import LayerWriter, open_layer

# What compiled wheels (torch, numpy) link to and do not carry themselves.
WHEEL_LIBRARIES = (
    "libstdc++.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libutil.so.1", "libm.so.6",
    "libresolv.so.2",
)  # fmt: skip
# For people who look into a pod, and for `sh -c`.
TOOLS = ("sh", "ls", "cat", "env", "sleep", "kill", "head", "tail")
LEFT_OUT = re.compile(
    r"(^|/)(site-packages|dist-packages|test|tests|idlelib|ensurepip|tkinter|turtledemo)(/|$)"
    r"|/(_tkinter|_test|_xxtestfuzz|xxlimited)"  # tkinter alone would bring twenty libraries of X11
    r"|\.a$|\.opt-[12]\.pyc$"  # bytecode of `python -O`
)
TOP_LEVEL = ("bin", "sbin", "lib", "lib64")  # links into /usr on today's systems
USERS = "root:x:0:0:root:/root:/bin/sh\ntidegate:x:10001:10001:tidegate:/tmp:/bin/sh\n"
GROUPS = "root:x:0:\ntidegate:x:10001:\n"


@dataclass(frozen=True)
class Interpreter:
    """Where the machine keeps the interpreter behind the virtual environment that runs us."""

    executable: Path
    aliases: tuple[Path, ...]  # names under which virtual environments link to it
    standard_library: Path

    @classmethod
    def current(cls) -> "Interpreter":
        executable = Path(sys.executable).resolve()
        linked = Path(sys.executable)
        folders = {executable.parent, *(Path(os.path.abspath(hop)).parent for hop in _hops(linked))}  # noqa: PTH100 - links stay
        aliases = [alias for folder in sorted(folders) for alias in sorted(folder.glob("python*"))]
        return cls(
            executable,
            tuple(a for a in aliases if a != executable and a.resolve() == executable),
            Path(sysconfig.get_path("stdlib")),
        )

    def fingerprint(self) -> str:
        """Changes with the interpreter's files, the machine's libraries and what this module takes of them."""
        files = [self.executable, *sorted(self.standard_library.glob("*.py")), *self._libraries()]
        facts = [f"{file} {file.stat().st_size} {int(file.stat().st_mtime)}" for file in files]
        facts += [sys.version, Path(__file__).read_text()]
        return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]

    def write_layer(self, path: Path) -> None:
        with open_layer(path) as layer:
            for name in TOP_LEVEL:
                if Path("/", name).is_symlink():
                    layer.link(name, str(Path("/", name).readlink()))
            for name in ("dev", "etc", "opt", "proc", "run", "sys", "usr", "usr/bin", "usr/local/bin", "var"):
                layer.folder(name)
            layer.folder("tmp", 0o1777)
            layer.text("etc/passwd", USERS)
            layer.text("etc/group", GROUPS)
            layer.text("etc/nsswitch.conf", "hosts: files dns\n")
            layer.copy(Path("/etc/ld.so.cache"), "etc/ld.so.cache")
            self._write_files(layer)

    def _write_files(self, layer: LayerWriter) -> None:
        for file in (self.executable, *self._tools(), *self._libraries()):
            _copy_to_own_path(layer, file)
        for alias in self.aliases:
            layer.folder(str(alias.parent.resolve()))
            layer.link(str(alias.parent.resolve() / alias.name), str(self.executable))
        for name in ("python", "python3"):
            layer.link(f"usr/local/bin/{name}", str(self.executable))
        library = str(self.standard_library)
        layer.folder(library)
        layer.tree(self.standard_library, library, _is_wanted, keep_times=True)

    def _tools(self) -> list[Path]:
        return [tool for name in TOOLS if (tool := Path("/usr/bin", name)).exists()]

    def _libraries(self) -> list[Path]:
        extensions = [path for path in sorted(self.standard_library.glob("lib-dynload/*.so")) if _is_wanted(str(path))]
        named = _named_libraries(WHEEL_LIBRARIES)
        needed = _linked_libraries([self.executable, *extensions, *self._tools(), *named])
        return sorted({*named, *needed})


def _is_wanted(name: str) -> bool:
    return not LEFT_OUT.search(name)


def _hops(link: Path) -> list[Path]:
    """The files that a chain of symbolic links leads through, the last one being no link."""
    hops = []
    while link.is_symlink():
        link = link.parent / link.readlink()
        hops.append(link)
    return hops


def _copy_to_own_path(layer: LayerWriter, file: Path) -> None:
    """The content under the file's own name; only the folder's links are resolved, because the image has them too."""
    folder = file.parent.resolve()
    layer.folder(str(folder))
    layer.copy(file, str(folder / file.name))


def _linked_libraries(files: list[Path]) -> set[Path]:
    output = _run("ldd", *map(str, files))
    return {Path(path) for path in re.findall(r"^\s(?:\S+ => )?(/\S+) \(0x", output, re.MULTILINE)}


def _named_libraries(names: tuple[str, ...]) -> list[Path]:
    known: dict[str, Path] = {}
    for name, path in re.findall(
        r"^\s(\S+) \(libc6,(?:x86-64|AArch64)[^)]*\) => (\S+)$", _run("ldconfig", "-p"), re.MULTILINE
    ):
        known.setdefault(name, Path(path))
    if missing := [name for name in names if name not in known]:
        raise MissingTool(f"shared libraries are missing: {', '.join(missing)}; apt-get install libstdc++6 libc6")
    return [known[name] for name in names]


def _run(*command: str) -> str:
    environment = clean_environment(os.environ)
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout
