"""What a person wants to see of a cluster when a test has failed: one text."""

from pathlib import Path

from e2e.cluster.access import ApiAccess
from e2e.cluster.components import tail
from e2e.cluster.errors import KubectlFailed
from e2e.cluster.spec import ClusterSpec

LOG_LINES = 80
OVERVIEW = (
    ("get", "nodes", "-o", "wide"),
    ("get", "pods", "--all-namespaces", "-o", "wide"),
    ("get", "inferencepools.tidegate.dev", "--all-namespaces", "-o", "yaml"),
    ("get", "events", "--all-namespaces", "--sort-by=.metadata.creationTimestamp"),
)


def describe(access: ApiAccess) -> str:
    """Nodes, pods, pools, events, each pod's logs and the end of the cluster's own. Never raises for a sick cluster."""
    parts = [_ask(access, *arguments) for arguments in OVERVIEW]
    parts += [_pod_logs(access, *line.split()) for line in _pods(access)]
    parts += [f"--- {log}{tail(log)}" for log in component_logs(access.spec)]
    return "\n".join(parts)


def component_logs(spec: ClusterSpec, component: str = "*") -> list[Path]:
    """Of the control plane and of each node; those of pods are kubectl's business."""
    logs = [*spec.logs.glob(f"{component}.log"), *spec.logs.glob(f"node[0-9]/{component}.log")]
    return sorted(log for log in logs if log.stat().st_size)


def _pods(access: ApiAccess) -> list[str]:
    names = '{range .items[*]}{.metadata.namespace} {.metadata.name}{"\\n"}{end}'
    return access.kubectl("get", "pods", "--all-namespaces", "-o", f"jsonpath={names}", check=False).splitlines()


def _pod_logs(access: ApiAccess, namespace: str, pod: str) -> str:
    logs = ("logs", "--namespace", namespace, pod, "--all-containers", "--prefix", f"--tail={LOG_LINES}")
    before = access.kubectl(*logs, "--previous", check=False)
    return _ask(access, *logs) + (f"\nbefore its restart:\n{before}" if before else "")


def _ask(access: ApiAccess, *arguments: str) -> str:
    try:
        answer = access.kubectl(*arguments, timeout_seconds=20)
    except KubectlFailed as error:
        answer = str(error)
    return f"--- kubectl {' '.join(arguments)}\n{answer}"
