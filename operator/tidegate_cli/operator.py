"""`tidegate operator`: the operator in the foreground, configured by TIDEGATE_* variables."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It has no options."""


def run(arguments: argparse.Namespace) -> int:  # noqa: ARG001 - settings come from the environment
    """Until a signal ends it."""
    from tidegate_operator.__main__ import main

    return main()
