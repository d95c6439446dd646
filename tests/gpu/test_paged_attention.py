"""The compiled kernels on a real card, at sizes that interpretation is too slow for."""

import pytest
import torch

from paged_batches import dense_attention, random_batch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

LONG = ((1, 4097), (1, 16), (300, 1500), (64, 64), (1, 2048), (17, 8000))
DECODES = ((1, 4097), (1, 16), (1, 8000), (1, 2048))
DRAFTS = ((8, 4097), (1, 16), (3, 8000), (8, 8))
KV_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


def check(lengths, heads, head_dim, *, window=None, kv_dtype=None):
    from tidegate_engine.attention.triton import TritonAttention

    batch = random_batch(
        lengths,
        num_query_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=head_dim,
        dtype=torch.bfloat16,
        kv_dtype=kv_dtype,
        device="cuda",
    )
    kernel = TritonAttention(torch.cuda.get_device_properties(0).multi_processor_count)
    got = kernel(batch.query, batch.pages, batch.inputs, scale=head_dim**-0.5, window=window)
    want = dense_attention(batch, scale=head_dim**-0.5, window=window)
    torch.testing.assert_close(got.double(), want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("heads", [(32, 8), (16, 1), (8, 8)], ids=lambda h: f"{h[0]}q{h[1]}kv")
@pytest.mark.parametrize("window", [None, 512])
def test_long_ragged_batches_equal_dense_attention(heads, head_dim, window):
    check(LONG, heads, head_dim, window=window)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("lengths", [DECODES, DRAFTS], ids=["decodes", "drafts"])
@pytest.mark.parametrize("window", [None, 512])
def test_contexts_in_splits_equal_dense_attention(lengths, head_dim, window):
    check(lengths, (32, 8), head_dim, window=window)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES.values(), ids=KV_DTYPES)
@pytest.mark.parametrize("lengths", [LONG, DECODES], ids=["mixed", "decodes"])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_an_8_bit_cache_is_read_as_what_it_holds(lengths, head_dim, kv_dtype):
    if kv_dtype is torch.float8_e4m3fn and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("needs compute capability 8.9")
    check(lengths, (32, 8), head_dim, kv_dtype=kv_dtype)
