"""The cache's memory: zeros everywhere, taken from the system as blocks are written."""

import pytest
import torch

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


def test_more_than_the_system_can_ever_give_is_a_memory_error():
    with pytest.raises(MemoryError, match="TiB for KV blocks"):
        LAYOUT.allocate(2**50 // LAYOUT.block_bytes, CPU)
