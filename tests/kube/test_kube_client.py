"""The seam to the API server: a class for every HTTP status, whole lists, deletes that hit what was meant."""

import asyncio
import datetime as dt
import json
import threading
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import ApiClient, Configuration
from kubernetes.config.incluster_config import InClusterConfigLoader

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


def test_any_text_is_applied_as_it_is(kube: ApiServer, namespace: str) -> None:
    text = "{{ '\U0001f30a' }}\\ud83c \x01\x7f\x85\u2028\ufeff\ufffe\U0010ffff \n\ttide: #'\""
    assert run(kube.apply(config_map(namespace, a=text)))["data"] == {"a": text}


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


def configured(bearer: str) -> ApiServer:
    configuration = Configuration()
    configuration.host = "https://10.0.0.1:443"
    configuration.api_key["BearerToken"] = bearer
    return ApiServer(ApiClient(configuration))


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_watches_log_in_with_the_token_alone_however_its_scheme_is_spelt(scheme: str) -> None:
    assert configured(f"{scheme} the-token").connection().token == "the-token"


def test_a_pod_logs_in_with_its_service_account_and_follows_its_rotation(tmp_path: Path) -> None:
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("first")
    authority.write_text("a certificate")
    address = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    loader = InClusterConfigLoader(str(token), str(authority), environ=address)
    configuration = Configuration()
    loader.load_and_set(configuration)
    kube = ApiServer(ApiClient(configuration))
    known = kube.connection()
    assert (known.server, known.token, known.ca_file) == ("https://10.0.0.1:443", "first", str(authority))
    assert (known.certificate_file, known.key_file) == (None, None)
    token.write_text("second")
    loader.token_expires_at = dt.datetime.min  # noqa: DTZ901 - the loader compares naive times
    assert kube.connection().token == "second"


def test_a_proxys_page_instead_of_json_is_no_answer() -> None:
    with answering(b"<html>please log in") as address:
        configuration = Configuration()
        configuration.host = address
        kube = ApiServer(ApiClient(configuration))
        with pytest.raises(errors.Unreachable, match="not JSON"):
            run(kube.list(POD, "x"))
        kube.close()


def test_what_a_field_selects_is_asked_of_the_api_servers_own_cache_which_has_an_index() -> None:
    empty = json.dumps({"metadata": {"resourceVersion": "1"}, "items": []}).encode()
    asked: list[str] = []
    with answering(empty, asked) as address:
        configuration = Configuration()
        configuration.host = address
        kube = ApiServer(ApiClient(configuration))
        run(kube.list(POD, None, fields="spec.nodeName=a"))
        run(kube.list(POD, None, labels="a=b"))
        kube.close()
    assert asked == [
        "/api/v1/pods?resourceVersion=0&fieldSelector=spec.nodeName%3Da", "/api/v1/pods?limit=100&labelSelector=a%3Db",
    ]  # fmt: skip


@contextmanager
def answering(body: bytes, asked: list[str] | None = None) -> Iterator[str]:
    """Address of a server that gives this body to every GET, and writes down what was asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if asked is not None:
                asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing on the terminal."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(10)
