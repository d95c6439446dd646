import json

import pytest

from checkpoint_files import safetensors_bytes
from tidegate_checkpoint.errors import CorruptCheckpoint, MissingCheckpoint, UnsupportedCheckpoint
from tidegate_checkpoint.safetensors import read_safetensors

SHAPES = {"a": (4, 8), "b": (3,), "scalar": ()}


def shards(directory, contents, weight_map):
    for name, data in contents.items():
        (directory / name).write_bytes(data)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return directory


def test_a_single_file_reads_back(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(SHAPES))

    tensors = read_safetensors(tmp_path)

    assert {tensor.name: (tensor.shape, tensor.dtype, tensor.num_bytes) for tensor in tensors} == {
        "a": ((4, 8), "bf16", 64),
        "b": ((3,), "bf16", 6),
        "scalar": ((), "bf16", 2),
    }


def test_shards_are_joined_by_their_index(tmp_path):
    contents = {"one.safetensors": safetensors_bytes({"a": (2,)}), "two.safetensors": safetensors_bytes({"b": (3,)})}

    tensors = read_safetensors(shards(tmp_path, contents, {"a": "one.safetensors", "b": "two.safetensors"}))

    assert [(tensor.name, tensor.file.name) for tensor in tensors] == [
        ("a", "one.safetensors"),
        ("b", "two.safetensors"),
    ]


def test_a_missing_shard_is_named_and_counted(tmp_path):
    contents = {"one.safetensors": safetensors_bytes({"a": (2,)})}
    directory = shards(tmp_path, contents, {"a": "one.safetensors", "b": "two.safetensors"})

    with pytest.raises(MissingCheckpoint, match=r"lacks 1 of 2 weight files \(two\.safetensors\)"):
        read_safetensors(directory)


def test_a_tensor_that_no_shard_has_is_named(tmp_path):
    contents = {"one.safetensors": safetensors_bytes({"a": (2,)})}
    directory = shards(tmp_path, contents, {"a": "one.safetensors", "b": "one.safetensors"})

    with pytest.raises(CorruptCheckpoint, match="'b'"):
        read_safetensors(directory)


def test_an_index_that_points_outside_its_directory_is_refused(tmp_path):
    with pytest.raises(CorruptCheckpoint, match=r"\.\./secret"):
        read_safetensors(shards(tmp_path, {}, {"a": "../secret"}))


def test_several_files_without_an_index_are_refused(tmp_path):
    for name in ("x.safetensors", "y.safetensors"):
        (tmp_path / name).write_bytes(safetensors_bytes(SHAPES))

    with pytest.raises(MissingCheckpoint, match=r"x\.safetensors, y\.safetensors"):
        read_safetensors(tmp_path)


def test_a_file_cut_anywhere_is_refused_with_both_sizes(tmp_path):
    whole = safetensors_bytes(SHAPES)
    file = tmp_path / "model.safetensors"
    for length in (0, 5, 8, 30, len(whole) - 80, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(CorruptCheckpoint, match=f"{length} ") as caught:
            read_safetensors(tmp_path)
        assert "model.safetensors" in str(caught.value)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"not json", "valid JSON"),
        (b"[1, 2]", "JSON list"),
        (b'{"a": {"dtype": "F32"}}', "entry of tensor 'a' is malformed"),
        (b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}', "spans 4 bytes, its shape needs 8"),
    ],
)
def test_a_corrupt_header_is_refused(tmp_path, header, words):
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))

    with pytest.raises(CorruptCheckpoint, match=words):
        read_safetensors(tmp_path)


def test_an_unknown_dtype_is_named(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes({"a": (2,)}, dtype="F4", size=1))

    with pytest.raises(UnsupportedCheckpoint, match="dtype F4"):
        read_safetensors(tmp_path)


def test_bytes_beyond_what_the_header_describes_are_refused(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(SHAPES) + b"more")

    with pytest.raises(CorruptCheckpoint, match="its header describes"):
        read_safetensors(tmp_path)
