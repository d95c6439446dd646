"""The seam to the API server: a class for every HTTP status, whole lists, deletes that hit what was meant."""

import asyncio
import json
from collections.abc import Awaitable, Iterator
from typing import Any

import pytest

from e2e.cluster.api_server import ApiServer as Cluster
from tidegate_operator import errors
from tidegate_operator.kube import ApiServer, error_of
from tidegate_operator.resources import CONFIG_MAP, DEPLOYMENT, POD, SERVICE, Manifest, Resource


@pytest.fixture
def kube(api_server: Cluster) -> Iterator[ApiServer]:
    connected = ApiServer.connect(str(api_server.admin_kubeconfig))
    yield connected
    connected.close()


def run(coroutine: Awaitable[Any]) -> Any:
    async def wait() -> Any:
        return await coroutine

    return asyncio.run(wait())


def config_map(namespace: str, name: str = "x", **data: str) -> Manifest:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.BadRequest), (401, errors.Unauthorized), (403, errors.Forbidden), (404, errors.NotFound),
        (405, errors.KubeError), (409, errors.Conflict), (410, errors.Gone), (413, errors.BadRequest),
        (415, errors.BadRequest), (422, errors.Invalid), (429, errors.TooManyRequests), (500, errors.ServerFault),
        (503, errors.ServerFault),
    ],
)  # fmt: skip
def test_every_status_has_its_class(status: int, kind: type[errors.KubeError]) -> None:
    body = json.dumps({"kind": "Status", "message": "no", "reason": "Because"}).encode()
    error = error_of("GET", "/api/v1/pods", status, body)
    assert type(error) is kind
    assert str(error) == f"GET /api/v1/pods: HTTP {status}: no"
    assert (error.status, error.reason) == (status, "Because")


def test_every_class_of_the_tree_is_reachable() -> None:
    reached = {type(error_of("GET", "/", status, b"{}")) for status in range(300, 600)}
    declared = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.KubeError)}
    assert declared - reached == {errors.Unreachable}


def test_a_proxys_page_is_not_repeated_and_long_messages_are_clipped() -> None:
    assert "secret" not in str(error_of("GET", "/", 502, b"<html>secret"))
    assert len(str(error_of("GET", "/", 422, json.dumps({"message": "x" * 10_000}).encode()))) < 1000


def test_no_answer_is_unreachable() -> None:
    from kubernetes.client import ApiClient, Configuration

    nowhere = Configuration()
    nowhere.host = "http://127.0.0.1:9"
    nowhere.retries = False
    kube = ApiServer(ApiClient(nowhere))
    with pytest.raises(errors.Unreachable, match="no answer"):
        run(kube.get(POD, "x", "y"))
    kube.close()


def test_applying_twice_moves_nothing_and_keeps_fields_of_others(kube: ApiServer, namespace: str) -> None:
    first = run(kube.apply(config_map(namespace, a="1")))
    again = run(kube.apply(config_map(namespace, a="1")))
    assert first["metadata"]["resourceVersion"] == again["metadata"]["resourceVersion"]
    run(kube.patch(CONFIG_MAP, namespace, "x", {"metadata": {"labels": {"theirs": "1"}}}))
    assert run(kube.apply(config_map(namespace, b="2")))["data"] == {"b": "2"}
    assert run(kube.get(CONFIG_MAP, namespace, "x"))["metadata"]["labels"] == {"theirs": "1"}


@pytest.mark.parametrize("resource", [POD, DEPLOYMENT, SERVICE])
def test_what_is_not_there_is_none_or_empty(kube: ApiServer, namespace: str, resource: Resource) -> None:
    assert run(kube.get(resource, namespace, "nothing")) is None
    assert run(kube.list(resource, namespace)) == ()


def test_lists_are_complete_over_pages_and_know_their_kind(
    kube: ApiServer, api_server: Cluster, namespace: str
) -> None:
    items = [config_map(namespace, f"m{number:03}") for number in range(520)]
    api_server.kubectl("create", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    found = [each for each in run(kube.list(CONFIG_MAP, namespace)) if each["metadata"]["name"].startswith("m")]
    assert len({each["metadata"]["name"] for each in found}) == 520
    assert {(each["apiVersion"], each["kind"]) for each in found} == {("v1", "ConfigMap")}


def test_labels_select(kube: ApiServer, namespace: str) -> None:
    labelled = config_map(namespace)
    run(kube.apply({**labelled, "metadata": {**labelled["metadata"], "labels": {"a": "b"}}}))
    assert [each["metadata"]["name"] for each in run(kube.list(CONFIG_MAP, namespace, labels="a=b"))] == ["x"]
    assert run(kube.list(CONFIG_MAP, namespace, labels="a=c")) == ()


def test_deleting_what_was_replaced_or_is_gone_does_nothing(kube: ApiServer, namespace: str) -> None:
    uid = run(kube.apply(config_map(namespace)))["metadata"]["uid"]
    run(kube.delete(CONFIG_MAP, namespace, "x", "00000000-0000-0000-0000-000000000000"))
    assert run(kube.get(CONFIG_MAP, namespace, "x")) is not None
    run(kube.delete(CONFIG_MAP, namespace, "x", uid))
    run(kube.delete(CONFIG_MAP, namespace, "x", uid))
    assert run(kube.get(CONFIG_MAP, namespace, "x")) is None


def test_a_patch_meant_for_another_object_is_invalid(kube: ApiServer, namespace: str) -> None:
    run(kube.apply(config_map(namespace)))
    patch = {"metadata": {"uid": "00000000-0000-0000-0000-000000000000", "labels": {"a": "b"}}}
    with pytest.raises(errors.Invalid, match=r"metadata\.uid"):
        run(kube.patch(CONFIG_MAP, namespace, "x", patch))


def test_what_the_schema_refuses_is_invalid(kube: ApiServer, namespace: str) -> None:
    bad = config_map(namespace, "Not_A_Name")
    with pytest.raises(errors.Invalid, match="Not_A_Name"):
        run(kube.apply(bad))
