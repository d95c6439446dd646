"""`tidegate serve MODEL`: one engine process, as a pool's pods start it. The options are the launch contract's."""

import argparse
import sys

from tidegate_core.errors import BadLaunch
from tidegate_core.launch import EngineLaunch
from tidegate_core.termination import ExitCode
from tidegate_engine.process.lifecycle import exit_on_signals


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One option per field of the contract."""
    EngineLaunch.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Until a signal ends it; ExitCode tells the operator why."""
    try:
        launch = EngineLaunch.from_namespace(arguments)
    except BadLaunch as error:
        print(f"tidegate serve: {error}", file=sys.stderr)
        return ExitCode.BAD_ARGUMENTS
    exit_on_signals()
    from tidegate_engine.serve import serve

    return serve(launch)
