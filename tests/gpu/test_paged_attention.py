"""The compiled kernel on a real card, at sizes that interpretation is too slow for."""

import pytest
import torch

from paged_batches import dense_attention, random_batch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

LONG = ((1, 4097), (1, 16), (300, 1500), (64, 64), (1, 2048), (17, 8000))


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("heads", [(32, 8), (16, 1), (8, 8)], ids=lambda h: f"{h[0]}q{h[1]}kv")
@pytest.mark.parametrize("window", [None, 512])
def test_long_ragged_batches_equal_dense_attention(heads, head_dim, window):
    from tidegate_engine.attention.triton import attend

    batch = random_batch(
        LONG,
        num_query_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=head_dim,
        dtype=torch.bfloat16,
        device="cuda",
    )
    got = attend(batch.query, batch.kv_cache, batch.inputs, scale=head_dim**-0.5, window=window)
    want = dense_attention(batch, scale=head_dim**-0.5, window=window)
    torch.testing.assert_close(got.double(), want, rtol=2e-2, atol=2e-2)
