"""Kernels compiled at start equal what they stand in for, over every kind of shape, and never feel neighbours."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from paged_batches import BLOCK_SIZE, PagedBatch, dense_attention, random_batch
from tidegate_core.memory import PART_ELEMENTS
from tidegate_engine.attention import decodes
from tidegate_engine.attention.base import AttentionInputs
from tidegate_engine.attention.pages import KvPages
from tidegate_engine.compute import layers
from tidegate_engine.compute.heads import plain_placed
from tidegate_engine.compute.kv_cache import KvLayout
from tidegate_engine.compute.matrix import DenseMatrix
from tidegate_engine.compute.rope import Rotation, inverse_frequencies, rotation_at
from tidegate_engine.cpu_kernels import catalog
from tidegate_engine.cpu_kernels.team import loaded_libgomp

SHAPES = [(96, 64), (200, 640), (37, 1026), (8, 33), (3, 1), (31, 4864)]
LONG = 1000
RAGGED = {
    "one_decode": ((1, 1),),
    "decodes": ((1, 17), (1, 16), (1, 203), (1, 1), (1, LONG)),
    "whole_prompt": ((37, 37),),
    "mixed": ((1, 33), (1, 200), (48, 48), (5, 130), (2, 2), (1, 9)),
}
CACHES = {"fp32": torch.float32, "fp16": torch.float16, "int8": torch.int8}


def int8_case(shape, rows):
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(shape, generator=generator) * 0.05
    return torch.randn(rows, shape[1], generator=generator), weight, torch.randn(shape[0], generator=generator)


def int8_layer(weight, bias=None):
    make = catalog.int8_linear()
    assert make is not None
    return make(DenseMatrix(weight), bias)


def in_integers(x, weight, bias):
    """With activations of as many steps as 32 bits have room for, in fp64."""
    most = min(2**15 - 1, (2**31 - 1) // (127 * x.shape[1]))
    scales, largest = weight.abs().amax(1).double() / 127, x.abs().amax(1, keepdim=True).double()
    product = (x / largest * most).round() @ (weight / scales[:, None]).round().T
    return product * scales * largest / most + bias


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 64, 200])
def test_an_int8_product_is_that_of_the_rounded_integers(shape, rows):
    x, weight, bias = int8_case(shape, rows)
    result, expected = int8_layer(weight, bias)(x), in_integers(x, weight, bias)
    # a value in the middle of two integers may go either way
    assert (result - expected).norm() <= 2e-4 * expected.norm()
    assert (result - F.linear(x, weight, bias)).norm() <= 0.012 * expected.norm()


@pytest.mark.parametrize("columns", [2, 896, 4864, 1 << 17])
def test_no_sum_overflows_where_all_weights_and_activations_are_as_large_as_can_be(columns):
    signs = torch.ones(3, columns)
    signs[1] = -1
    signs[2, ::2] = -1
    torch.testing.assert_close(int8_layer(signs)(signs), signs @ signs.T, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("rows", [2, 8, 33, 200])
def test_an_int8_row_is_the_same_to_the_bit_beside_any_neighbours(rows):
    x, weight, bias = int8_case((200, 896), rows)
    x[1:] *= 50
    layer = int8_layer(weight, bias)
    alone = torch.cat([layer(row[None]) for row in x])
    assert torch.equal(layer(x), alone)
    assert torch.equal(layer(x.flip(0)), alone.flip(0))
    assert torch.equal(layer(torch.cat((x, x), 1)[:, : x.shape[1]]), alone)  # rows that lie apart


def test_int8_rows_and_outputs_of_zeros_give_the_bias_and_what_is_no_number_stays_none():
    x, weight, bias = int8_case((16, 64), 4)
    x[0], x[1, 5], x[2, 6], weight[3] = 0, float("nan"), float("-inf"), 0
    result = int8_layer(weight, bias)(x)
    assert torch.equal(result[0], bias)
    assert result[1:3].isnan().all()
    assert result[3, 3] == bias[3]


def test_a_large_int8_matrix_is_packed_in_parts_that_join_seamlessly():
    x, weight, bias = int8_case((PART_ELEMENTS // 1024 * 2 + 3, 1024), 2)
    assert (int8_layer(weight, bias)(x) - in_integers(x, weight, bias)).abs().max() <= 0.01  # ties again


def over_cache(batch: PagedBatch, dtype: torch.dtype) -> PagedBatch:
    pages = batch.pages if dtype is torch.int8 else KvPages(batch.pages.data.to(dtype))
    return PagedBatch(batch.query, pages, batch.inputs, batch.lengths)


def check_attention(lengths, heads, head_dim, cache, **options):
    query_heads, kv_heads = heads
    batch = random_batch(
        lengths,
        num_query_heads=query_heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        kv_dtype=torch.int8 if cache == "int8" else None,
    )
    batch = over_cache(batch, CACHES[cache])
    options = {"scale": head_dim**-0.5, "window": None, "softcap": None} | options
    kernel = catalog.decode_attention(batch.pages.data.dtype)
    assert kernel is not None
    assert kernel.serves(batch.query, batch.pages)
    result = decodes.attend(batch.query, batch.pages, batch.inputs, **options)
    torch.testing.assert_close(result.double(), dense_attention(batch, **options), atol=3e-5, rtol=1e-4)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", RAGGED)
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (1, None), (16, None), (40, 5.0), (300, None)])
def test_decodes_and_prompts_together_equal_dense_attention(name, cache, window, softcap):
    check_attention(RAGGED[name], (4, 2), 32, cache, window=window, softcap=softcap)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("heads", [(1, 1), (4, 4), (14, 2), (8, 1), (32, 1)], ids=lambda h: f"{h[0]}q{h[1]}kv")
@pytest.mark.parametrize("head_dim", [64, 80, 256])
def test_head_groups_and_sizes_equal_dense_attention(cache, heads, head_dim):
    check_attention(RAGGED["decodes"], heads, head_dim, cache, window=50)


def test_heads_that_no_tile_fits_are_served_by_the_reference():
    batch = random_batch(RAGGED["mixed"], num_query_heads=4, num_kv_heads=2, head_dim=24)
    result = decodes.attend(batch.query, batch.pages, batch.inputs, scale=0.2)
    torch.testing.assert_close(result.double(), dense_attention(batch, scale=0.2), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("window", [None, 9])
def test_a_decode_is_the_same_to_the_bit_whatever_stands_in_others_blocks_and_behind_its_end(window):
    batch = random_batch(((1, 5), (1, 100), (1, 37)), num_query_heads=6, num_kv_heads=2, head_dim=16)
    before = decodes.attend(batch.query, batch.pages, batch.inputs, scale=0.3, window=window)
    own = batch.inputs.block_tables[1].long()
    others = torch.ones(batch.pages.num_blocks, dtype=torch.bool)
    others[own] = False
    batch.pages.data[others] = float("nan")
    batch.pages.data[own[-1], :, 100 % BLOCK_SIZE :] = float("nan")
    after = decodes.attend(batch.query, batch.pages, batch.inputs, scale=0.3, window=window)
    assert torch.equal(after[1], before[1])
    assert after[0].isnan().all()


def heads_to_place(tokens, heads, head_dim):
    query_heads, kv_heads = heads
    generator = torch.Generator().manual_seed(6)
    projected = torch.randn(tokens, query_heads + 2 * kv_heads, head_dim, generator=generator)
    return projected[:, :-kv_heads], projected[:, -kv_heads:], torch.randperm(64, generator=generator)[:tokens]


def place(place_heads, dtype, case, rotation):
    heads, values, slots = case
    layout = KvLayout(1, BLOCK_SIZE, values.shape[1], heads.shape[2], dtype)
    (pages,) = layout.allocate(4, torch.device("cpu")).layers
    nothing = torch.zeros(0)
    return place_heads(heads, values, rotation, pages, AttentionInputs(nothing, nothing, nothing, slots, 1, 1)), pages


def kernel_placed(heads, values, rotation, pages, inputs):
    kernel = catalog.head_placement(pages.data.dtype)
    assert kernel is not None
    assert kernel.serves(heads, values)
    return kernel(heads, values, rotation, inputs.slot_mapping, pages)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize(("heads", "head_dim"), [((14, 2), 64), ((1, 1), 16), ((4, 4), 80), ((2, 1), 256)])
@pytest.mark.parametrize("tokens", [1, 7, 60])
def test_heads_are_rotated_and_stored_as_in_plain_steps(cache, heads, head_dim, tokens):
    case, dtype = heads_to_place(tokens, heads, head_dim), CACHES[cache]
    rotation = rotation_at(torch.arange(tokens) * 37, inverse_frequencies(head_dim, 1e4), torch.float32)
    (queries, pages), (expected, expected_pages) = (
        place(each, dtype, case, rotation) for each in (kernel_placed, plain_placed)
    )
    torch.testing.assert_close(queries, expected, rtol=1e-5, atol=1e-6)
    stored, plain = (each.gathered(torch.arange(8), torch.float32) for each in (pages, expected_pages))
    steps = {"fp32": 1e-6, "fp16": 2**-10, "int8": 1 / 127}[cache]  # sums round differently, so a step either way
    assert ((stored - plain).abs() <= steps * plain.abs().amax(-1, keepdim=True)).all()


@pytest.mark.parametrize("cache", CACHES)
def test_what_needs_no_rotation_is_stored_equal_to_the_bit_also_where_it_is_no_number(cache):
    heads, values, slots = heads_to_place(9, (3, 2), 32)
    values[1, 0], values[2, 0, 3], values[3, 1, 4], values[4, 1] = 0, float("nan"), float("-inf"), 1e-9
    values[5] *= 1e4
    ones = torch.ones(9, 1, 32)
    (queries, pages), (expected, expected_pages) = (
        place(each, CACHES[cache], (heads, values, slots), Rotation(ones, 0 * ones))
        for each in (kernel_placed, plain_placed)
    )
    assert torch.equal(queries, expected)
    stored, plain = (each.gathered(torch.arange(8), torch.float32) for each in (pages, expected_pages))
    assert torch.equal(stored.isnan(), plain.isnan())
    assert torch.equal(stored.nan_to_num(), plain.nan_to_num())


@pytest.mark.parametrize("shape", [(1, 896), (3, 33), (300, 896), (5, 4, 64), (2, 3, 1)])
def test_rms_norm_equals_its_plain_steps_and_a_row_never_feels_its_neighbours(shape):
    kernel = catalog.rms_norm()
    assert kernel is not None
    x, weight = torch.randn(shape, generator=torch.Generator().manual_seed(4)), torch.rand(shape[1:])
    result = kernel(x, weight, 1e-6)
    torch.testing.assert_close(result, layers.plain_rms_norm(x, weight, 1e-6), rtol=1e-5, atol=1e-6)
    assert torch.equal(result, torch.cat([kernel(row[None], weight, 1e-6) for row in x]))


def test_rms_norm_reads_heads_out_of_wider_rows():
    projected, weight = torch.randn(7, 10, 32), torch.rand(6, 32)
    result = layers.rms_norm(projected[:, :6], weight, 1e-6)
    torch.testing.assert_close(result, layers.plain_rms_norm(projected[:, :6], weight, 1e-6), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize(
    ("kernel", "plain"),
    [(catalog.gated_silu, layers.plain_gated_silu), (catalog.gated_gelu, layers.plain_gated_gelu)],
    ids=["silu", "gelu"],
)
def test_gates_equal_their_plain_steps_from_very_small_to_very_large(kernel, plain, rows):
    gated = kernel()
    assert gated is not None
    x = torch.cat((torch.linspace(-200, 200, rows * 1501).view(rows, -1), torch.randn(rows, 1501)), 1)
    x[0, 0] = float("nan")
    expected = plain(x.clone())
    torch.testing.assert_close(gated(x), expected, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert expected[0, 0].isnan()


def test_where_there_can_be_no_kernels_it_says_why():
    here, instructions = Path("libgomp.so"), ("sse2", "avx2", "f16c", "fma")
    assert catalog.why_none(here, instructions) is None
    assert catalog.why_none(here, None) == "numba is not installed"
    assert catalog.why_none(here, ("sse2", "avx2")) == "this CPU lacks f16c, fma"
    assert catalog.why_none(None, instructions) == "torch's threads are not those of one libgomp"


def test_there_are_no_kernels_where_torch_has_other_threads_than_libgomp(tmp_path):
    maps = tmp_path / "maps"
    assert loaded_libgomp(maps) is None
    maps.write_text("7f00-7f01 r-xp 00000000 08:01 42 /usr/lib/libomp.so\n")
    assert loaded_libgomp(maps) is None
    maps.write_text(
        "7f00-7f01 r-xp 00000000 08:01 42 /a/libgomp.so.1\n7f02-7f03 r-xp 00000000 08:01 43 /b/libgomp.so.1\n"
    )
    assert loaded_libgomp(maps) is None  # nobody knows which of them is torch's
