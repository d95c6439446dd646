import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint_files import gguf_bytes, tiny_gguf
from real_model import gemma_gguf
from tidegate_checkpoint.errors import CheckpointError, CorruptCheckpoint, MissingCheckpoint, UnsupportedCheckpoint
from tidegate_checkpoint.gguf import read_gguf

METADATA = {
    "general.architecture": "llama",
    "number": 7,
    "ratio": 0.5,
    "switch": True,
    "words": ["a", "", "ü▁"],
    "scores": [-1.0, 2.5],
    "kinds": [1, 3],
}


@pytest.fixture
def write(tmp_path):
    def write(data):
        path = tmp_path / "model.gguf"
        path.write_bytes(data)
        return path

    return write


def test_every_metadata_type_reads_back(write):
    file = read_gguf(write(gguf_bytes(METADATA)))

    assert list(file.metadata) == list(METADATA)
    assert file.architecture == "llama"
    assert (file.integer("number"), file.real("ratio"), file.integer("switch")) == (7, 0.5, True)
    assert file.strings("words") == METADATA["words"]
    assert file.numbers("scores") == METADATA["scores"]
    assert file.numbers("kinds") == METADATA["kinds"]


@pytest.mark.parametrize("version", [2, 3])
def test_tensor_shapes_are_row_major_and_offsets_count_from_the_start_of_the_file(write, version):
    data = gguf_bytes(METADATA, [("first", (3, 32), 8, 102), ("second", (5,), 0, 20)], version=version)

    first, second = read_gguf(write(data)).tensors

    assert (first.shape, first.type.name, first.num_elements, first.num_bytes) == ((3, 32), "q8_0", 96, 102)
    assert second.num_bytes == 20
    assert second.offset_bytes - first.offset_bytes == 128
    assert second.offset_bytes + 32 == len(data)


def test_accessors_name_the_file_and_the_key(write):
    file = read_gguf(write(gguf_bytes(METADATA)))

    with pytest.raises(CorruptCheckpoint, match=r"model\.gguf.*no 'absent'"):
        file.text("absent")
    with pytest.raises(CorruptCheckpoint, match=r"'number' is int, not text"):
        file.text("number")
    with pytest.raises(CorruptCheckpoint, match=r"'scores' is an array, not a list of strings"):
        file.strings("scores")
    with pytest.raises(CorruptCheckpoint, match=r"'words' is an array, not a list of numbers"):
        file.numbers("words")
    with pytest.raises(CorruptCheckpoint, match=r"'words' is an array, not an integer"):
        file.integer("words")


def test_a_file_cut_anywhere_is_refused_with_its_size(write):
    whole = tiny_gguf()

    for length in [4, 7, 8, 20, *range(24, len(whole), 97), len(whole) - 1]:
        with pytest.raises(CorruptCheckpoint, match=f"is cut short: it has {length} bytes"):
            read_gguf(write(whole[:length]))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_bytes_raise_only_checkpoint_errors(tmp_path_factory, data):
    whole = bytearray(gguf_bytes(METADATA, [("first", (3, 32), 8, 102)]))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(whole)
    with suppress(CheckpointError):
        file = read_gguf(path)
        file.strings("words")
        file.numbers("scores")


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (b"", CorruptCheckpoint, "is empty"),
        (b"PK\x03\x04" + bytes(40), CorruptCheckpoint, "not a GGUF file"),
        (gguf_bytes({}, version=1), UnsupportedCheckpoint, "version 1"),
        (b"GGUF" + (3).to_bytes(4, "big") + bytes(16), UnsupportedCheckpoint, "big-endian"),
        (gguf_bytes({}, [("odd", (3, 31), 8, 32)]), CorruptCheckpoint, "rows of 31"),
        (gguf_bytes({}, [("new", (32,), 250, 32)]), UnsupportedCheckpoint, "storage type 250"),
        (gguf_bytes({"general.alignment": 0}), CorruptCheckpoint, "alignment"),
        (gguf_bytes({}, [("deep", (1, 1, 1, 1, 1), 0, 4)]), CorruptCheckpoint, "5 dimensions"),
    ],
)
def test_what_is_no_served_gguf_is_named(write, data, error, words):
    with pytest.raises(error, match=words):
        read_gguf(write(data))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(MissingCheckpoint, match=r"absent\.gguf does not exist"):
        read_gguf(tmp_path / "absent.gguf")


def test_a_vocabulary_of_262144_tokens_reads_within_two_seconds():
    path = gemma_gguf()
    start = time.process_time()

    file = read_gguf(path)

    assert time.process_time() - start < 2
    assert len(file.strings("tokenizer.ggml.tokens")) == 262_144
    assert len(file.numbers("tokenizer.ggml.scores")) == 262_144
    assert len(file.tensors) == 236
