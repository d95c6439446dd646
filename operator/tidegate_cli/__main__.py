"""`tidegate`: one command for users, pods and the people who develop it. Each half is imported only when it is used.

Installed a second time as `kubectl-tidegate`, so that `kubectl tidegate` finds it: the same commands, the same options.
A command is a module with `add_arguments(parser)` and `run(arguments) -> exit code`; nothing else knows its options.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple


class Command(NamedTuple):
    """Where a command lives, what it does, and the extra that has what it imports."""

    module: str
    help: str
    extra: str


COMMANDS = {
    "plan": Command("tidegate_cli.plan", "what a model takes and serves on a device, without a cluster", "engine"),
    "serve": Command("tidegate_cli.serve", "run the engine (what a pool's pods do)", "engine"),
    "bench": Command("tidegate_cli.bench.command", "put load on an OpenAI-compatible server and measure it", "bench"),
    "inspect": Command(
        "tidegate_cli.inspect", "read a model's shape from its files (what a pool's inspection Job does)", "engine"
    ),
    "download": Command("tidegate_cli.download", "fetch a hub's model into a cache (what a pool's Job does)", "engine"),
    "status": Command("tidegate_cli.cluster.status", "what a pool is, whether it is well, its replicas", "operator"),
    "explain": Command("tidegate_cli.cluster.explain", "why a pool has this many replicas", "operator"),
    "top": Command("tidegate_cli.cluster.top", "the load of pools, or of a pool's replicas", "operator"),
    "drain": Command("tidegate_cli.cluster.drain", "let replicas leave without losing a request", "operator"),
    "api-key": Command("tidegate_cli.api_key", "make an API key and its line for a key file", "engine"),
    "crd": Command("tidegate_cli.crd", "print the CustomResourceDefinition", "operator"),
    "operator": Command("tidegate_cli.operator", "run the operator", "operator"),
}
PLUGIN = "kubectl-tidegate"
_SERVERS = {"serve", "operator"}  # a pipe that breaks there is not the terminal's
_READER_LEFT = 128 + 13  # what a shell says of a process that SIGPIPE ended


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code; argparse itself exits with 2 on arguments that make no sense."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments:
        print(_parser().format_help(), end="", file=sys.stderr)
        return 2
    name = _parser().parse_args(arguments[:1]).command
    parser = argparse.ArgumentParser(prog=f"{_program()} {name}", description=COMMANDS[name].help, allow_abbrev=False)
    try:
        command = importlib.import_module(COMMANDS[name].module)
        command.add_arguments(parser)
        code: int = command.run(parser.parse_args(arguments[1:]))
        sys.stdout.flush()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("tidegate"):
            raise
        return _missing_extra(name, error.name)
    except BrokenPipeError:
        if name in _SERVERS:
            raise
        return _end_quietly()
    return code


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    parser = argparse.ArgumentParser(
        prog=_program(),
        description="Sized and autoscaled LLM inference pools for Kubernetes.",
        epilog="commands:\n" + "\n".join(f"  {name:<{width}}  {command.help}" for name, command in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tidegate {version('tidegate')}")
    parser.add_argument("command", choices=COMMANDS, metavar="command", help="one of the commands below")
    return parser


def _program() -> str:
    """As it was called: help and errors can be typed again as they stand."""
    return "kubectl tidegate" if Path(sys.argv[0]).name == PLUGIN else "tidegate"


def _end_quietly() -> int:
    """The reader has seen enough, as `head` has; what Python still flushes when it exits goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _READER_LEFT


def _missing_extra(name: str, module: str) -> int:
    print(
        f"tidegate {name}: Python module '{module}' is not installed; pip install 'tidegate[{COMMANDS[name].extra}]'",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
