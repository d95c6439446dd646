"""Names and answers that operator, command line and cache share: URIs, snapshots, an inspection's last words."""

import json

import pytest

from shapes import shape_of
from tidegate_core.errors import BadModelUri, UnsupportedShape
from tidegate_core.hub import HubSource, Snapshot, parse_name
from tidegate_core.inspected import Inspected
from tidegate_core.shape import MAX_JSON_BYTES, ModelShape

COMMIT = "a" * 40


@pytest.mark.parametrize("file", [None, "q8/model.gguf"])
def test_an_answer_about_a_hubs_model_survives_its_journey(file: str | None) -> None:
    answer = Inspected(shape_of(), Snapshot("org/name", COMMIT, file), 123)
    assert Inspected.from_json(answer.to_json()) == answer
    stored = {name: value for name, value in answer.hub_document().items() if value is not None}
    assert Inspected.from_json(json.dumps(json.loads(answer.to_json()) | {"hub": stored})) == answer
    assert len(answer.to_json().encode()) <= MAX_JSON_BYTES
    assert ModelShape.from_json(answer.to_json()) == answer.shape, "an older reader sees the shape"


def test_an_answer_about_a_local_model_is_its_shape_and_nothing_else() -> None:
    answer = Inspected(shape_of())
    assert answer.to_json() == shape_of().to_json()
    assert Inspected.from_json(shape_of().to_json()) == answer


def test_half_an_answer_is_none() -> None:
    document = json.loads(Inspected(shape_of(), Snapshot("org/name", COMMIT), 1).to_json())
    del document["hub"]["commit"]
    with pytest.raises(UnsupportedShape, match="not the description of a hub's model"):
        Inspected.from_json(json.dumps(document))


@pytest.mark.parametrize(
    ("uri", "source"),
    [
        ("hf://Qwen/Qwen3-8B", HubSource("Qwen/Qwen3-8B")),
        ("hf://unsloth/x-GGUF/UD/x-Q8_0.gguf", HubSource("unsloth/x-GGUF", "UD/x-Q8_0.gguf")),
    ],
)
def test_a_uri_names_a_repository_and_perhaps_a_file(uri: str, source: HubSource) -> None:
    assert HubSource.parse(uri) == source


@pytest.mark.parametrize("uri", ["hf://name", "hf://org/name/", "hf://org/../x", "hf://org/name/x.bin", "pvc://a/b"])
def test_anything_else_is_refused_with_the_two_forms(uri: str) -> None:
    with pytest.raises(BadModelUri, match=r"hf://ORG/NAME or hf://ORG/NAME/FILE\.gguf"):
        HubSource.parse(uri)


def test_a_snapshot_lies_where_the_hubs_own_client_looks_for_it() -> None:
    snapshot = Snapshot("Qwen/Qwen3-8B", COMMIT, "x.gguf")
    assert snapshot.path == f"models--Qwen--Qwen3-8B/snapshots/{COMMIT}/x.gguf"
    assert parse_name(snapshot.name) == Snapshot("Qwen/Qwen3-8B", COMMIT)
    with pytest.raises(BadModelUri):
        parse_name("Qwen/Qwen3-8B@main")
