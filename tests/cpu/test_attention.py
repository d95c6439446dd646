"""The plain torch paged attention against a dense one that takes a row and a head at a time."""

import pytest
import torch

from paged_batches import BLOCK_SIZE, dense_attention, random_batch
from tidegate_core.errors import BadLaunch
from tidegate_core.launch import AttentionKind, Device
from tidegate_engine.attention.base import choose_attention
from tidegate_engine.attention.pages import KvPages
from tidegate_engine.attention.reference import PREFILL_QUERIES, SHORT_CONTEXT_BLOCKS, attend

LONG = (SHORT_CONTEXT_BLOCKS * 2 + 3) * BLOCK_SIZE + 5
RAGGED = {
    "one_decode": ((1, 1),),
    "decodes": ((1, 17), (1, 16), (1, 203), (1, 1)),
    "decodes_of_very_different_length": ((1, 40), (1, LONG), (1, LONG // 2), (1, 9)),
    "whole_prompt": ((37, 37),),
    "chunk_with_history": ((20, 90),),
    "chunk_longer_than_a_stretch": ((PREFILL_QUERIES + 40, PREFILL_QUERIES + 100),),
    "mixed": ((1, 33), (1, 200), (48, 48), (5, 130), (2, 2)),
    "decode_after_prefill": ((48, 48), (1, 20), (7, 9), (1, 90)),
}


@pytest.mark.parametrize("name", RAGGED)
@pytest.mark.parametrize("window", [None, 1, 16, 40])
def test_ragged_rows_equal_dense_attention(name, window):
    batch = random_batch(RAGGED[name], num_query_heads=4, num_kv_heads=2, head_dim=32)
    result = attend(batch.query, batch.pages, batch.inputs, scale=0.2, window=window)
    torch.testing.assert_close(result.double(), dense_attention(batch, scale=0.2, window=window), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(("num_query_heads", "num_kv_heads"), [(1, 1), (4, 4), (4, 1), (14, 2), (8, 1)])
@pytest.mark.parametrize("head_dim", [64, 80, 256])
def test_head_groups_and_sizes_equal_dense_attention(num_query_heads, num_kv_heads, head_dim):
    batch = random_batch(RAGGED["mixed"], num_query_heads=num_query_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
    scale = head_dim**-0.5
    result = attend(batch.query, batch.pages, batch.inputs, scale=scale, window=50)
    torch.testing.assert_close(result.double(), dense_attention(batch, scale=scale, window=50), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("window", [None, 24])
def test_softcap_equals_dense_attention(window):
    batch = random_batch(RAGGED["mixed"], num_query_heads=4, num_kv_heads=2, head_dim=32)
    result = attend(batch.query, batch.pages, batch.inputs, scale=1.0, window=window, softcap=5.0)
    expected = dense_attention(batch, scale=1.0, window=window, softcap=5.0)
    torch.testing.assert_close(result.double(), expected, atol=2e-5, rtol=1e-4)


def test_a_16_bit_cache_serves_fp32_queries():
    batch = random_batch(RAGGED["mixed"], num_query_heads=4, num_kv_heads=2, head_dim=32)
    rounded = batch.pages.data.bfloat16()
    result = attend(batch.query, KvPages(rounded), batch.inputs, scale=0.2)
    expected = attend(batch.query, KvPages(rounded.float()), batch.inputs, scale=0.2)
    torch.testing.assert_close(result, expected)


def test_stale_blocks_and_padding_do_not_influence_a_row():
    """Whatever stands behind a row's end in its last block, and in the block 0 that pads its table."""
    batch = random_batch(((1, 5), (1, 100)), num_query_heads=2, num_kv_heads=1, head_dim=16)
    before = attend(batch.query, batch.pages, batch.inputs, scale=0.3)
    last_block = int(batch.inputs.block_tables[0, 0])
    batch.pages.data[last_block, :, 5:] = 1e4
    after = attend(batch.query, batch.pages, batch.inputs, scale=0.3)
    torch.testing.assert_close(before[0], after[0])


def test_auto_takes_the_triton_kernel_on_cuda_and_what_there_is_on_cpu():
    assert choose_attention(AttentionKind.AUTO, Device.CUDA) is AttentionKind.TRITON
    assert choose_attention(AttentionKind.AUTO, Device.CPU) is AttentionKind.AUTO
    assert choose_attention(AttentionKind.REFERENCE, Device.CPU) is AttentionKind.REFERENCE
    assert choose_attention(AttentionKind.REFERENCE, Device.CUDA) is AttentionKind.REFERENCE
    with pytest.raises(BadLaunch, match="--device cuda"):
        choose_attention(AttentionKind.TRITON, Device.CPU)
