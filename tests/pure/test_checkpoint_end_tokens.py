"""Tokens that end an answer: one id or several, in a file that need not be there, or a fault that is named."""

import json

import pytest

from tidegate_checkpoint.end_tokens import end_ids, generation_end_ids
from tidegate_checkpoint.errors import CorruptCheckpoint


@pytest.mark.parametrize(
    ("config", "ids"),
    [({"eos_token_id": 2}, {2}), ({"eos_token_id": [1, 106]}, {1, 106}), ({"eos_token_id": None}, set()), ({}, set())],
)
def test_one_several_or_none(tmp_path, config, ids):
    assert end_ids(config, "config.json") == ids
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    assert generation_end_ids(tmp_path) == ids


def test_a_directory_without_the_file_and_a_gguf_file_have_none(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert generation_end_ids(tmp_path) == generation_end_ids(tmp_path / "model.gguf") == frozenset()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"eos_token_id": ', "is not valid JSON"),
        ("[2]", "holds a JSON list, not an object"),
        ('{"eos_token_id": "</s>"}', "eos_token_id is '</s>', not token ids"),
        ('{"eos_token_id": [1, true]}', r"eos_token_id is \[1, True\], not token ids"),
    ],
)
def test_a_broken_file_is_named(tmp_path, text, fault):
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(CorruptCheckpoint, match=rf"generation_config\.json:? {fault}.*fetch"):
        generation_end_ids(tmp_path)
