"""The Triton kernel against dense attention, interpreted on CPU (compiled where there is a GPU), and compiled ahead of
time for the cards it is meant for, which needs no GPU either."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from paged_batches import dense_attention, random_batch
from tidegate_engine.attention.triton import attend, tile_keys_for, tile_rows_for

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MIXED = ((1, 1), (1, 40), (5, 5), (9, 33), (1, 17), (20, 64))
DECODES = ((1, 3), (1, 16), (1, 50))


def _check(lengths, heads, head_dim, *, window=None, softcap=None, dtype=torch.float32):
    query_heads, kv_heads = heads
    batch = random_batch(
        lengths, num_query_heads=query_heads, num_kv_heads=kv_heads, head_dim=head_dim, dtype=dtype, device=DEVICE
    )
    got = attend(batch.query, batch.kv_cache, batch.inputs, scale=head_dim**-0.5, window=window, softcap=softcap)
    want = dense_attention(batch, scale=head_dim**-0.5, window=window, softcap=softcap)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("heads", [(2, 2), (4, 2), (4, 1), (7, 1), (8, 1), (32, 1)], ids=lambda h: f"{h[0]}q{h[1]}kv")
def test_prefill_chunks_and_decodes_in_one_launch_equal_dense_attention(heads, head_dim):
    _check(MIXED, heads, head_dim)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 256])
def test_a_batch_of_decodes_equals_dense_attention(head_dim):
    _check(DECODES, (8, 2), head_dim)


@pytest.mark.parametrize("window", [1, 7, 16, 33])
@pytest.mark.parametrize("lengths", [MIXED, DECODES], ids=["mixed", "decodes"])
def test_a_window_hides_older_keys(lengths, window):
    _check(lengths, (4, 2), 64, window=window)


def test_softcap_bends_the_scores():
    _check(MIXED, (4, 2), 64, softcap=5.0)


def test_sixteen_bit_inputs_accumulate_in_float32():
    _check(MIXED, (4, 2), 128, dtype=torch.float16)


def test_the_result_of_a_row_does_not_depend_on_its_neighbours():
    batch = random_batch(MIXED, num_query_heads=4, num_kv_heads=2, head_dim=64, device=DEVICE)
    changed = batch.kv_cache.clone()
    blocks_of_row_one = batch.inputs.block_tables[1, :3].long()
    others = torch.ones(changed.shape[0], dtype=torch.bool)
    others[blocks_of_row_one.cpu()] = False
    changed[others.to(DEVICE)] = 1e4
    outputs = [attend(batch.query, cache, batch.inputs, scale=0.125) for cache in (batch.kv_cache, changed)]
    assert torch.equal(outputs[0][1], outputs[1][1])


def test_tiles_hold_whole_groups():
    for group in (1, 2, 4, 5, 7, 8, 16, 32):
        for max_query in (1, 2, 500):
            for head_dim in (64, 128, 256):
                assert tile_rows_for(group, max_query, head_dim) >= group
                assert tile_keys_for(max_query, head_dim) >= 16


COMPILE = """
import itertools, json
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from tidegate_engine.attention.triton import tile_keys_for, tile_rows_for
from tidegate_engine.kernels.paged_attention import paged_attention

GROUP = 4
pointers = dict.fromkeys(("out_ptr", "query_ptr", "kv_cache_ptr"), "*bf16")
pointers |= dict.fromkeys(("query_start_ptr", "context_lens_ptr", "block_tables_ptr"), "*i32")
scalars = {"num_rows": "i32", "scale": "fp32", "softcap": "fp32", "window": "i32"}
scalars |= dict.fromkeys(
    ("token_stride", "block_stride", "value_stride", "slot_stride", "kv_head_stride", "table_stride"), "i32"
)
compiled = []
for capability, head_dim, max_query in itertools.product((80, 90), (64, 128, 256), (1, 64)):
    rows = tile_rows_for(GROUP, max_query, head_dim)
    constants = {
        "GROUP": GROUP, "HEAD_DIM": head_dim, "HEAD_PADDED": triton.next_power_of_2(head_dim), "BLOCK_SIZE": 16,
        "BLOCK_M": rows, "BLOCK_Q": rows // GROUP, "TILE_KEYS": tile_keys_for(max_query, head_dim),
        "HAS_SOFTCAP": True, "HAS_WINDOW": True,
    }
    signature = pointers | scalars | dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=paged_attention, signature=signature, constexprs=constants)
    binary = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4})
    compiled.append([capability, head_dim, max_query, len(binary.asm["cubin"]), binary.metadata.shared])
print(json.dumps(compiled))
"""
SHARED_MEMORY_BYTES = {80: 163 * 1024, 90: 227 * 1024}  # most a block may take, CUDA programming guide


def test_the_kernel_compiles_ahead_of_time_within_shared_memory(tmp_path):
    """In a process of its own: in this one Triton interprets."""
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPILE],
        capture_output=True,
        text=True,
        check=False,
        env={
            "PYTHONPATH": str(root / "engine"),
            "TRITON_CACHE_DIR": str(tmp_path),
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
        },
    )
    assert run.returncode == 0, run.stderr[-3000:]
    compiled = json.loads(run.stdout.splitlines()[-1])
    assert len(compiled) == 12
    for capability, head_dim, max_query, num_cubin_bytes, num_shared_bytes in compiled:
        assert num_cubin_bytes > 0
        assert num_shared_bytes <= SHARED_MEMORY_BYTES[capability], (capability, head_dim, max_query)
