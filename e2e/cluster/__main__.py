"""`python -m e2e.cluster`: a cluster for development that lives until it is taken down.

prepare                       install what is missing (as root) and compile the Kubernetes components
up [--nodes N] [--gpus N]     start a cluster; prints its name and kubeconfig
list                          the clusters that are up
kubectl ARGUMENTS...          kubectl on it, and on nothing else
logs [COMPONENT]              the end of its components' logs
down                          remove it; with several up, --cluster NAME says which, here and above
"""

import argparse
import os
import sys

from e2e.cluster import detached
from e2e.cluster.access import ApiAccess
from e2e.cluster.binary import kube_binary
from e2e.cluster.cluster import Cluster
from e2e.cluster.components import tail
from e2e.cluster.diagnostics import component_logs
from e2e.cluster.environment import clean_environment
from e2e.cluster.errors import ClusterError
from e2e.cluster.images import ImageBuilder
from e2e.cluster.node import NodeSpec
from e2e.cluster.paths import run_home
from e2e.cluster.requirements import FOR_API_SERVER, FOR_MONITORING, FOR_NODES, require
from e2e.cluster.spec import ClusterSpec


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def prepare(_: argparse.Namespace) -> None:
    is_root = os.geteuid() == 0  # without root there will be no nodes, and their programs are not needed
    require((*FOR_NODES, *FOR_MONITORING) if is_root else FOR_API_SERVER)
    print(kube_binary())


def up(options: argparse.Namespace) -> None:
    images = ImageBuilder.default()
    nodes = [NodeSpec(num_gpus=options.gpus)] * options.nodes
    cluster = Cluster.start(nodes, [images.python, images.engine, images.operator], is_detached=True)
    print(f"{cluster.spec.name} is up: {cluster.url}")
    print(f"  export KUBECONFIG={cluster.kubeconfig}")
    print(f"  operator image {images.operator.name}, engine image {images.engine.name}")


def list_clusters(_: argparse.Namespace) -> None:
    for spec in detached.detached_clusters(run_home()):
        print(f"{spec.name}\t{spec.url}\t{spec.kubeconfig('admin')}")


def kubectl(options: argparse.Namespace) -> None:
    spec = _chosen(options)
    program = spec.folder / "bin" / "kubectl"
    environment = clean_environment(os.environ) | {"HOME": str(spec.folder)}
    os.execve(program, [str(program), "--kubeconfig", str(ApiAccess(spec).kubeconfig), *options.arguments], environment)


def logs(options: argparse.Namespace) -> None:
    spec = _chosen(options)
    found = list(component_logs(spec, options.component))
    if not found:
        names = sorted({log.stem for log in component_logs(spec, "*")})
        raise ClusterError(f"{spec.name} has no component {options.component}; it has {', '.join(names)}")
    for log in found:
        print(f"--- {log}{tail(log)}")


def down(options: argparse.Namespace) -> None:
    if detached.detached_clusters(run_home()):
        spec = _chosen(options)
        Cluster(spec).stop()
        print(f"{spec.name} is gone")


def _chosen(options: argparse.Namespace) -> ClusterSpec:
    specs = [spec for spec in detached.detached_clusters(run_home()) if options.cluster in (None, spec.name)]
    if len(specs) == 1:
        return specs[0]
    if specs:
        ways = " or ".join(f"`python -m e2e.cluster --cluster {spec.name} ...`" for spec in specs)
        raise ClusterError(f"several clusters are up, say which: {ways}")
    raise ClusterError(
        f"no cluster {options.cluster or ''} is up: `python -m e2e.cluster up` starts one, `list` names those there are"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m e2e.cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cluster", metavar="NAME", help="which, where several are up")
    commands = parser.add_subparsers(required=True, metavar="command")
    commands.add_parser("prepare").set_defaults(run=prepare)
    start = commands.add_parser("up")
    start.add_argument("--nodes", type=int, default=1, choices=range(1, 10), metavar="1-9", help="how many (1)")
    start.add_argument("--gpus", type=int, default=0, help="fake GPUs on each node")
    start.set_defaults(run=up)
    commands.add_parser("list").set_defaults(run=list_clusters)
    ask = commands.add_parser("kubectl", prefix_chars="\0")  # all options that follow are kubectl's
    ask.add_argument("arguments", nargs=argparse.REMAINDER)
    ask.set_defaults(run=kubectl)
    show = commands.add_parser("logs")
    show.add_argument("component", nargs="?", default="*")
    show.set_defaults(run=logs)
    commands.add_parser("down").set_defaults(run=down)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
