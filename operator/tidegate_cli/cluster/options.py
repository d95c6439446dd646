"""How a cluster is named on the command line, spelled as kubectl does. Imports nothing heavy: help must be quick."""

import argparse


def add_access_arguments(parser: argparse.ArgumentParser, context_flag: str = "--context") -> None:
    """`context_flag`: `tidegate plan` has a --context of its own."""
    parser.add_argument("-n", "--namespace", help="absent: the context's")
    parser.add_argument(
        context_flag, dest="kube_context", metavar="NAME", help="a context of the kubeconfig; absent: the current one"
    )
    parser.add_argument("--kubeconfig", metavar="FILE", help="absent: KUBECONFIG, then ~/.kube/config")
