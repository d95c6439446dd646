"""The checker of restricted pods refuses what the profile refuses, so that its silence means something."""

from typing import Any

import pytest

from restricted import violations


def pod(container: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A restricted pod with changes."""
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "main", "securityContext": security} | (container or {})],
        **fields,
    }


def context(**fields: Any) -> dict[str, Any]:
    return {"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}} | fields}


def test_a_restricted_pod_passes() -> None:
    assert violations(pod()) == []


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (pod(hostNetwork=True), "hostNetwork is true"),
        (pod(volumes=[{"name": "host", "hostPath": {"path": "/"}}]), "volume host is a hostPath"),
        (
            pod(securityContext={"seccompProfile": {"type": "RuntimeDefault"}}),
            "container main: runAsNonRoot is not true",
        ),
        (pod(securityContext={"runAsNonRoot": True}), "container main: seccompProfile is not RuntimeDefault"),
        (pod({"securityContext": {}}), "container main: capabilities are not all dropped"),
        (pod({"securityContext": {}}), "container main: allowPrivilegeEscalation is not false"),
        (pod(context(privileged=True)), "container main: privileged is true"),
        (pod(context(runAsUser=0)), "container main: runAsUser is 0"),
        (
            pod(context(capabilities={"drop": ["ALL"], "add": ["SYS_ADMIN"]})),
            "container main: capabilities SYS_ADMIN are added",
        ),
        (pod({"ports": [{"containerPort": 80, "hostPort": 80}]}), "container main: a hostPort is asked for"),
        (pod(initContainers=[{"name": "init"}]), "container init: capabilities are not all dropped"),
    ],
)
def test_what_the_profile_refuses_is_named(bad: dict[str, Any], complaint: str) -> None:
    assert complaint in violations(bad)
