"""Matrices read part by part are those of the checkpoint, whatever the cuts."""

import pytest
import torch
from safetensors.torch import save_file

from checkpoint_files import TINY_LLAMA, write_config
from tidegate_core.memory import PART_ELEMENTS, PARTS_IN_FLIGHT
from tidegate_engine.compute.matrix import GRAIN_ROWS, DenseMatrix, StoredMatrix, Workshop, kept_whole, parts_of
from tidegate_engine.compute.weights import open_weights

COLUMNS = PART_ELEMENTS // 4
QUERY, KEY = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight"
WHOLE = {QUERY: slice(0, 7), KEY: slice(0, 2)}


@pytest.fixture
def workshop():
    workshop = Workshop(torch.float32)
    yield workshop
    workshop.close()


@pytest.fixture
def stored(tmp_path) -> dict[str, torch.Tensor]:
    """Two matrices of odd heights: parts of four rows reach over from one into the other."""
    tensors = {name: torch.randn(rows, COLUMNS).bfloat16() for name, rows in ((QUERY, 7), (KEY, 2))}
    save_file(tensors, write_config(tmp_path, TINY_LLAMA) / "model.safetensors")
    return tensors


def test_several_matrices_are_read_as_one_whatever_the_cuts(tmp_path, stored, workshop):
    matrix = StoredMatrix(open_weights(tmp_path), WHOLE, workshop)
    assert matrix.shape == (9, COLUMNS)
    assert torch.equal(kept_whole(matrix, torch.bfloat16), torch.cat([stored[QUERY], stored[KEY]]))


def test_some_of_the_rows_and_columns_of_each_are_read_as_one(tmp_path, stored, workshop):
    columns = slice(5, COLUMNS - 1)
    matrix = StoredMatrix(open_weights(tmp_path), {QUERY: slice(1, 6), KEY: slice(1, 2)}, workshop, columns)
    assert matrix.shape == (6, COLUMNS - 6)
    expected = torch.cat([stored[QUERY][1:6, columns], stored[KEY][1:2, columns]])
    assert torch.equal(kept_whole(matrix, torch.bfloat16), expected)


def test_parts_come_in_order_and_no_thread_has_memory_for_two(tmp_path, stored, workshop):
    matrix = StoredMatrix(open_weights(tmp_path), WHOLE, workshop)
    seen = matrix.map_parts(lambda rows, part: (part.start, part.stop, rows.data_ptr()))
    assert [(start, stop) for start, stop, _ in seen] == [(0, 4), (4, 8), (8, 9)]
    assert len({address for _, _, address in seen}) <= workshop.num_threads <= PARTS_IN_FLIGHT


@pytest.mark.parametrize(
    "shape", [(1, 7), (64, 640), (262_144, 640), (3, 2 * PART_ELEMENTS), (1000, PART_ELEMENTS // 65)]
)
def test_parts_cover_every_row_once_and_are_small(shape):
    parts = list(parts_of(shape))
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == shape[0]
    assert all((part.stop - part.start) * shape[1] <= max(PART_ELEMENTS, shape[1]) for part in parts)
    assert len(parts) == 1 or parts[0].stop < GRAIN_ROWS or parts[0].stop % GRAIN_ROWS == 0


def test_whoever_works_on_a_part_may_change_it_without_changing_the_matrix():
    rows = torch.ones(3, 2)
    DenseMatrix(rows).map_parts(lambda part, _: part.zero_())
    assert torch.equal(rows, torch.ones(3, 2))
