"""The rendered chart on a real API server: every object is valid to the letter, and the operator's pod is admitted."""

import json

import pytest

from e2e.cluster.api_server import ApiServer
from e2e.cluster.fixtures import fresh_namespace
from e2e.installation.chart import render_chart
from tidegate_operator.api.crd import crd_yaml

SEVERAL = {
    "replicas": 2,
    "networkPolicy": {
        "monitoring": [{"namespaceSelector": {}}],
        "apiServer": [{"cidr": "10.0.0.1/32", "port": 6443}],
    },
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
}


@pytest.mark.parametrize("is_namespaced", [False, True], ids=["one for the whole cluster", "several for a namespace"])
def test_the_server_accepts_every_object_and_the_restricted_profile_warns_of_nothing(
    api_server: ApiServer, *, is_namespaced: bool
) -> None:
    api_server.kubectl("apply", "--server-side", "-f", "-", input=crd_yaml())
    with fresh_namespace(api_server, {"pod-security.kubernetes.io/enforce": "restricted"}) as namespace:
        values = SEVERAL | {"watchNamespaces": [namespace]} if is_namespaced else {}
        manifests = render_chart(values, namespace=namespace)
        document = json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})
        answer = api_server.kubectl(
            "apply",
            "--server-side",
            "--force-conflicts",
            "--dry-run=server",
            "--validate=strict",
            "-f",
            "-",
            input=document,
        )
        assert len(answer.splitlines()) == len(manifests)
        (deployment,) = (each for each in manifests if each["kind"] == "Deployment")
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "operator"},
            "spec": deployment["spec"]["template"]["spec"] | {"serviceAccountName": "default"},
        }
        admitted = api_server.kubectl("create", "-n", namespace, "--dry-run=server", "-f", "-", input=json.dumps(pod))
        assert "created" in admitted
