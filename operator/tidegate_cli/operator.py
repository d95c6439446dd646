"""`tidegate operator`: the operator in the foreground, configured by TIDEGATE_* variables."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Everything else is a setting."""
    parser.add_argument("--kubeconfig", metavar="FILE", help="absent: the pod's ServiceAccount")


def run(arguments: argparse.Namespace) -> int:
    """Until a signal ends it."""
    from tidegate_operator.__main__ import main

    return main([] if arguments.kubeconfig is None else ["--kubeconfig", arguments.kubeconfig])
