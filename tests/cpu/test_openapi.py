"""The HTTP API does what its OpenAPI document says, whatever is sent: fuzzed over real sockets, and nothing is a 5xx.

Fuzzing is seeded and bounded. Not asked for: that every body which the schema allows is served. Rules between fields
(`stream_options` needs `stream`) and limits of the model are not in a schema, and are answered with a 400 that says so.
"""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from in_process import MODEL, running_app
from tidegate_engine.server.callers import Access
from tidegate_engine.server.key_file import KeyFile
from tidegate_engine.server.keys import key_line
from tidegate_engine.server.listening import HttpServer, bind, port_of
from tidegate_engine.server.openapi import OPERATIONS

KEY = "tg-of-the-fuzzer"
TIMEOUT_SECONDS = 20
HEALTH = list(HealthCheck)
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]


@contextmanager
def listening(access: Access) -> Iterator[str]:
    """The app on a port, in a thread and an event loop of its own: the fuzzer is a blocking client."""
    started: list[str] = []
    is_up = threading.Event()
    loop = asyncio.new_event_loop()
    is_over = asyncio.Event()

    async def serve() -> None:
        async with running_app(access=access) as served:
            bound = bind("127.0.0.1", 0)
            server = HttpServer(served.exchanges, bound)
            await server.start()
            started.append(f"http://127.0.0.1:{port_of(bound)}")
            is_up.set()
            await is_over.wait()
            await served.eventually_idle()
            await server.stop()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert is_up.wait(TIMEOUT_SECONDS)
        yield started[0]
    finally:
        loop.call_soon_threadsafe(is_over.set)
        thread.join(TIMEOUT_SECONDS)
        loop.close()


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> Iterator[str]:
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text(key_line(KEY))
    with listening(Access(KeyFile(file))) as address:
        yield address


@pytest.fixture(scope="module")
def document(url):
    return httpx.get(f"{url}/openapi.json").json()


@pytest.fixture(scope="module")
def api(document, url):
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=url)
    return schema


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["as documented", "otherwise"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.id)
def test_whatever_is_sent_gets_a_documented_answer(api, document, operation, mode):
    described = api[operation.path][operation.method]
    if mode is GenerationMode.NEGATIVE and not (operation.body or "{" in operation.path):
        return  # there is nothing that could be otherwise

    @seed(7)
    @settings(max_examples=40, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=HEALTH)
    @given(case=described.as_strategy(generation_mode=mode))
    def fuzz(case):
        headers = {"Authorization": f"Bearer {KEY}"}
        # A null that became a text is taken for a violation, also where the field may be a text.
        checks = [check for check in CHECKS if check is not negative_data_rejection or not is_as_documented(case.body)]
        case.call_and_validate(headers=headers, timeout=TIMEOUT_SECONDS, checks=checks)

    def is_as_documented(body):
        if operation.body is None or not isinstance(body, dict):
            return False
        schema = {"$ref": f"#/components/schemas/{operation.body.__name__}", "components": document["components"]}
        return jsonschema_rs.Draft202012Validator(schema).is_valid(body)

    fuzz()


def test_the_document_needs_no_key_and_names_the_served_model(document):
    schemas = document["components"]["schemas"]
    assert schemas["ChatRequest"]["properties"]["model"]["enum"][0] == MODEL
    assert document["components"]["securitySchemes"] == {"apiKey": {"type": "http", "scheme": "bearer"}}
    assert "401" in document["paths"]["/v1/models"]["get"]["responses"]
    assert "401" not in document["paths"]["/metrics"]["get"]["responses"]


def test_every_route_is_in_the_document(document):
    from tidegate_engine.server.routes import router

    routes = {(route.path.replace(":path", ""), method.lower()) for route in router.routes for method in route.methods}
    listed = {(path, method) for path, methods in document["paths"].items() for method in methods}
    assert {route for route in routes if route[1] != "head"} | {("/metrics", "get")} == listed


def test_references_of_the_document_lead_somewhere(document):
    names = set(document["components"]["schemas"])
    text = json.dumps(document)
    used = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert used <= names
