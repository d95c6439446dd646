"""`tidegate crd`: the CustomResourceDefinition, for `tidegate crd | kubectl apply --server-side -f -`."""

import argparse

from tidegate_operator.api.crd import crd_yaml


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It has no options."""


def run(arguments: argparse.Namespace) -> int:  # noqa: ARG001 - every command has one
    """Prints YAML."""
    print(crd_yaml(), end="")
    return 0
