"""The cache's memory: zeros everywhere, taken from the system as blocks are written."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tidegate_engine.attention.pages import quantised, sides_of
from tidegate_engine.compute.kv_cache import KvLayout
from tidegate_engine.process.process_memory import private_bytes

LAYOUT = KvLayout(num_layers=4, block_size=16, num_kv_heads=2, head_dim=64, dtype=torch.float16)
NUM_BLOCKS = 2**30 // LAYOUT.block_bytes
CPU = torch.device("cpu")


def test_a_large_cache_takes_memory_only_for_the_blocks_that_are_written():
    before = private_bytes()
    cache = LAYOUT.allocate(NUM_BLOCKS, CPU)
    assert cache.num_bytes == cache.pending_bytes == 2**30
    assert private_bytes() - before < 2**24
    num_written = NUM_BLOCKS // 16
    for layer in cache.layers:
        layer.data[:num_written] = 1
    assert 2**26 <= private_bytes() - before < 2**26 + 2**24


def test_blocks_nobody_wrote_are_zeros_also_where_memory_was_used_before():
    """Masked reads multiply them by 0, which makes NaN of garbage."""
    used = [torch.full((2**18,), float("nan")) for _ in range(16)]
    del used
    assert all(not layer.data.any() for layer in LAYOUT.allocate(8, CPU).layers)


def test_the_layers_do_not_share_memory():
    cache = LAYOUT.allocate(2, CPU)
    cache.layers[0].data.fill_(1)
    assert not cache.layers[1].data.any()


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_8_bit_blocks_have_a_scale_per_token_and_head_and_are_counted_whole(dtype):
    layout = replace(LAYOUT, dtype=dtype)
    assert layout.block_bytes == 4 * 2 * 16 * 2 * (64 + 2)
    cache = layout.allocate(8, CPU)
    assert cache.num_bytes == cache.num_blocks * layout.block_bytes
    assert all(pages.scales is not None and not pages.scales.any() for pages in cache.layers)


ERRORS = {torch.int8: 0.5 / 127 + 1e-3, torch.float8_e4m3fn: 2**-4}  # of a vector's largest element


@pytest.mark.parametrize("dtype", ERRORS)
@given(
    seed=st.integers(0, 2**32),
    magnitudes=st.lists(st.sampled_from([0.0, 1e-3, 1.0, 30.0, 6e4]), min_size=3, max_size=3),
)
def test_what_is_read_differs_from_what_was_written_by_at_most_half_a_step(dtype, seed, magnitudes):
    """Vectors of any size side by side: none spoils its neighbour, and zeros stay zeros."""
    pages = replace(LAYOUT, num_layers=1, dtype=dtype).allocate(2, CPU).layers[0]
    vectors = torch.randn(3, 2, 64, generator=torch.Generator().manual_seed(seed))
    vectors *= torch.tensor(magnitudes).view(3, 1, 1)
    pages.write(torch.tensor([3, 17, 40]), vectors)  # rows of [2 blocks, keys and values, 16]
    read = pages.gathered(sides_of(torch.arange(2)), torch.float32)  # keys, then values
    for place, written in zip((3, 32 + 1, 16 + 8), vectors, strict=True):
        error = (read.flatten(0, 1)[place] - written).abs().amax(-1)
        assert (error <= ERRORS[dtype] * written.abs().amax(-1)).all()


@pytest.mark.parametrize("dtype", ERRORS)
def test_a_vector_is_kept_alike_whatever_is_written_beside_it(dtype):
    vectors = torch.randn(4, 2, 64, generator=torch.Generator().manual_seed(1))
    alone = quantised(vectors[1:2], dtype)
    beside = quantised(torch.cat([vectors[:2], vectors[2:] * 1e4]), dtype)
    assert torch.equal(alone[0].view(torch.uint8), beside[0][1:2].view(torch.uint8))
    assert torch.equal(alone[1], beside[1][1:2])


def test_more_than_the_system_can_ever_give_is_a_memory_error():
    with pytest.raises(MemoryError, match="TiB for KV blocks"):
        LAYOUT.allocate(2**50 // LAYOUT.block_bytes, CPU)
