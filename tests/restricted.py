"""Does a pod meet the `restricted` Pod Security Standard? For rendered charts and generated pods alike.

https://kubernetes.io/docs/concepts/security/pod-security-standards/ ; Linux pods, no ephemeral containers.
"""

from collections.abc import Iterator, Mapping
from typing import Any

PodSpec = Mapping[str, Any]  # as the API spells it

_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
_SECCOMP = ("RuntimeDefault", "Localhost")
_SAFE_SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
}


def violations(pod: PodSpec) -> list[str]:
    """What the profile would refuse, in words; empty for a restricted pod."""
    found = [*_of_pod(pod)]
    for kind in ("initContainers", "containers"):
        for container in pod.get(kind, ()):
            found += [f"container {container['name']}: {what}" for what in _of_container(container, pod)]
    return found


def _of_pod(pod: PodSpec) -> Iterator[str]:
    for namespace in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(namespace):
            yield f"{namespace} is true"
    for volume in pod.get("volumes", ()):
        if kinds := volume.keys() - {"name"} - _VOLUMES:
            yield f"volume {volume['name']} is a {', '.join(sorted(kinds))}"
    context = pod.get("securityContext", {})
    if context.get("runAsUser") == 0:
        yield "runAsUser is 0"
    for sysctl in context.get("sysctls", ()):
        if sysctl["name"] not in _SAFE_SYSCTLS:
            yield f"sysctl {sysctl['name']}"


def _of_container(container: Mapping[str, Any], pod: PodSpec) -> Iterator[str]:
    own, shared = container.get("securityContext", {}), pod.get("securityContext", {})
    if own.get("privileged"):
        yield "privileged is true"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation is not false"
    if "ALL" not in own.get("capabilities", {}).get("drop", ()):
        yield "capabilities are not all dropped"
    if extra := set(own.get("capabilities", {}).get("add", ())) - {"NET_BIND_SERVICE"}:
        yield f"capabilities {', '.join(sorted(extra))} are added"
    if own.get("runAsNonRoot", shared.get("runAsNonRoot")) is not True:
        yield "runAsNonRoot is not true"
    if own.get("runAsUser") == 0:
        yield "runAsUser is 0"
    if own.get("seccompProfile", shared.get("seccompProfile", {})).get("type") not in _SECCOMP:
        yield "seccompProfile is not RuntimeDefault"
    if own.get("procMount", "Default") != "Default":
        yield "procMount is not Default"
    if any("hostPort" in port for port in container.get("ports", ())):
        yield "a hostPort is asked for"
