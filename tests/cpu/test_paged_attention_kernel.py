"""The Triton kernels against dense attention, interpreted on CPU (compiled where there is a GPU), and compiled ahead of
time for the cards they are meant for, which needs no GPU either."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from e2e.cluster.paths import cache_home
from paged_batches import dense_attention, random_batch
from tidegate_engine.attention.pages import KvPages
from tidegate_engine.attention.reference import attend
from tidegate_engine.attention.tiles import LEAST_SPLIT_KEYS, MAX_SPLIT_QUERIES, splits_for, tiles_for
from tidegate_engine.attention.triton import TritonAttention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MIXED = ((1, 1), (1, 40), (5, 5), (9, 33), (1, 17), (20, 64))
DECODES = ((1, 3), (1, 16), (1, 50))
LONG_DECODES = ((1, 3), (1, LEAST_SPLIT_KEYS * 3 + 5), (1, LEAST_SPLIT_KEYS), (1, LEAST_SPLIT_KEYS + 1))
LONG_DRAFTS = ((4, LEAST_SPLIT_KEYS * 2 + 3), (8, 8), (1, 1), (5, LEAST_SPLIT_KEYS + 2))
BATCHES = {"mixed": MIXED, "decodes": DECODES, "long_decodes": LONG_DECODES, "long_drafts": LONG_DRAFTS}
WHOLE = TritonAttention(num_processors=0)  # too few processors for splits
SPLIT = TritonAttention(num_processors=1000)
KV_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


def _check(lengths, heads, head_dim, *, window=None, softcap=None, dtype=torch.float32, kv_dtype=None, kernel=SPLIT):
    query_heads, kv_heads = heads
    batch = random_batch(
        lengths,
        num_query_heads=query_heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        dtype=dtype,
        kv_dtype=kv_dtype,
        device=DEVICE,
    )
    options = {"scale": head_dim**-0.5, "window": window, "softcap": softcap}
    got = kernel(batch.query, batch.pages, batch.inputs, **options)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got.double(), dense_attention(batch, **options), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("heads", [(2, 2), (4, 2), (4, 1), (7, 1), (8, 1), (32, 1)], ids=lambda h: f"{h[0]}q{h[1]}kv")
def test_prefill_chunks_and_decodes_in_one_launch_equal_dense_attention(heads, head_dim):
    _check(MIXED, heads, head_dim)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 256])
def test_a_batch_of_decodes_equals_dense_attention(head_dim):
    _check(DECODES, (8, 2), head_dim)


@pytest.mark.parametrize(("heads", "head_dim"), [((2, 2), 64), ((4, 1), 80), ((7, 1), 128)])
@pytest.mark.parametrize("lengths", [LONG_DECODES, LONG_DRAFTS], ids=["decodes", "drafts"])
def test_splits_of_long_contexts_put_together_equal_dense_attention(lengths, heads, head_dim):
    _check(lengths, heads, head_dim)


@pytest.mark.parametrize("window", [1, 16, 33, LEAST_SPLIT_KEYS + 40])
@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
def test_a_window_hides_older_keys(lengths, window):
    _check(lengths, (4, 2), 64, window=window)


@pytest.mark.parametrize("lengths", [MIXED, LONG_DRAFTS], ids=["mixed", "long_drafts"])
def test_softcap_bends_the_scores(lengths):
    _check(lengths, (4, 2), 64, softcap=5.0)


@pytest.mark.parametrize("lengths", [MIXED, LONG_DECODES], ids=["mixed", "long_decodes"])
def test_sixteen_bit_inputs_accumulate_in_float32(lengths):
    _check(lengths, (4, 2), 128, dtype=torch.float16)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES.values(), ids=KV_DTYPES)
@pytest.mark.parametrize(("heads", "head_dim"), [((2, 2), 80), ((4, 2), 64), ((7, 1), 128), ((8, 1), 256)])
def test_an_8_bit_cache_is_read_as_what_it_holds(heads, head_dim, kv_dtype):
    """Dense attention over elements times scales: the kernel adds no error of its own."""
    _check(MIXED, heads, head_dim, kv_dtype=kv_dtype)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES.values(), ids=KV_DTYPES)
@pytest.mark.parametrize("lengths", [MIXED, LONG_DRAFTS], ids=["mixed", "long_drafts"])
def test_an_8_bit_cache_behind_a_window_and_a_softcap_is_read_as_what_it_holds(lengths, kv_dtype):
    _check(lengths, (4, 2), 64, window=33, softcap=5.0, kv_dtype=kv_dtype)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES.values(), ids=KV_DTYPES)
def test_over_an_8_bit_cache_kernel_and_reference_agree_in_16_bits(kv_dtype):
    batch = random_batch(
        MIXED, num_query_heads=4, num_kv_heads=2, head_dim=64, dtype=torch.float16, kv_dtype=kv_dtype, device=DEVICE
    )
    got, want = (each(batch.query, batch.pages, batch.inputs, scale=0.125) for each in (WHOLE, attend))
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("kernel", [WHOLE, SPLIT], ids=["whole", "split"])
def test_the_result_of_a_row_does_not_depend_on_its_neighbours(kernel):
    batch = random_batch(LONG_DECODES, num_query_heads=4, num_kv_heads=2, head_dim=64, device=DEVICE)
    changed = batch.pages.data.clone()
    blocks_of_row_one = batch.inputs.block_tables[1].long()
    others = torch.ones(changed.shape[0], dtype=torch.bool)
    others[blocks_of_row_one.cpu()] = False
    changed[others.to(DEVICE)] = 1e4
    caches = (batch.pages, KvPages(changed))
    outputs = [kernel(batch.query, cache, batch.inputs, scale=0.125) for cache in caches]
    assert torch.equal(outputs[0][1], outputs[1][1])


def test_tiles_hold_whole_groups():
    for group in (1, 2, 4, 5, 7, 8, 16, 32):
        for is_decode in (True, False):
            for head_dim in (64, 128, 256):
                tiles = tiles_for(group, head_dim, 2, is_decode=is_decode)
                assert tiles.queries * group <= tiles.rows < (tiles.queries + 1) * group
                assert tiles.queries >= 1
                assert tiles.keys >= 16


def test_contexts_are_split_by_their_length_and_by_the_processors_that_would_idle():
    def splits(lengths, num_programs, window=None, num_processors=132):
        inputs = random_batch(lengths, num_query_heads=1, num_kv_heads=1, head_dim=16).inputs
        return splits_for(inputs, window, num_programs, num_processors)

    assert splits(((1, 16_000),), 8) == 33  # 2 x 132 / 8
    assert splits(((1, 16_000),) * 2, 16) == 17
    assert splits(((1, 1000),), 8) == 4  # of at least 256 keys
    assert splits(((1, 200),), 8) == 1
    assert splits(((1, 16_000),), 300) == 1  # enough programs as they are
    assert splits(((1, 16_000),), 8, window=512) == 3
    assert splits(((MAX_SPLIT_QUERIES, 16_000),), 8) == 33
    assert splits(((MAX_SPLIT_QUERIES + 1, 16_000),), 8) == 1


COMPILE = """
import json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from tidegate_engine.attention.tiles import LEAST_SPLIT_KEYS, tiles_for
from tidegate_engine.kernels.paged_attention import paged_attention
from tidegate_engine.kernels.split_attention import join_splits, split_attention

GROUP = 4
BYTES = {"bf16": 2, "fp32": 4}
FLOATS = dict.fromkeys(("scale", "softcap"), "fp32") | dict.fromkeys(("parts_ptr", "maxima_ptr", "sums_ptr"), "*fp32")
INTEGERS = dict.fromkeys(("query_start_ptr", "context_lens_ptr", "block_tables_ptr"), "*i32")
UNALIGNED = {"num_rows", "num_splits", "window", "num_query_heads", "scales_slot_stride", "scale", "softcap"}


def compiled(kernel, capability, query, kv, tiles, constants):
    types = FLOATS | INTEGERS | {"out_ptr": "*" + query, "query_ptr": "*" + query, "kv_ptr": "*" + kv}
    types |= {"scales_ptr": "*fp16"} | dict.fromkeys(constants, "constexpr")
    names = kernel.arg_names
    constants = {name: value for name, value in constants.items() if name in names}
    signature = {name: types.get(name, "i32") for name in names}
    # As at run time: aligned addresses and strides are what makes loads wide and lets them be pipelined.
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(names)
        if signature[name] != "constexpr" and name not in UNALIGNED
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    options = {"num_warps": tiles.num_warps, "num_stages": tiles.num_stages}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


for line in sys.stdin:
    capability, head_dim, is_decode, query, kv = json.loads(line)
    tiles = tiles_for(GROUP, head_dim, BYTES[query], is_decode=is_decode)
    constants = {
        "GROUP": GROUP, "HEAD_DIM": head_dim, "HEAD_PADDED": triton.next_power_of_2(head_dim), "BLOCK_SIZE": 16,
        "BLOCK_M": tiles.rows, "BLOCK_Q": tiles.queries, "TILE_KEYS": tiles.keys, "HAS_SCALES": kv != query,
        "HAS_SOFTCAP": True, "HAS_WINDOW": True, "LEAST_KEYS": LEAST_SPLIT_KEYS, "SPLITS_PADDED": 32,
    }
    for kernel in (split_attention, join_splits) if is_decode else (paged_attention,):
        binary = compiled(kernel, capability, query, kv, tiles, constants)
        print(json.dumps([len(binary.asm["cubin"]), binary.metadata.shared]))
"""
SHARED_MEMORY_BYTES = {80: 163 * 1024, 86: 99 * 1024, 89: 99 * 1024, 90: 227 * 1024}  # most a block may take
COMPILED = [  # compute capability, head dim, decode or prefill, query, cache: widest tiles, each cache, oldest cards
    (86, 256, False, "bf16", "bf16"),
    (86, 128, True, "bf16", "i8"),
    (89, 128, True, "bf16", "fp8e4nv"),
    (80, 256, False, "fp32", "fp32"),
    (90, 128, False, "bf16", "i8"),
]


def test_the_kernels_compile_ahead_of_time_within_shared_memory(tmp_path):
    """In a process of its own: in this one Triton interprets. Triton keeps what it compiled by all it was made of."""
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPILE],
        input="\n".join(map(json.dumps, COMPILED)),
        capture_output=True,
        text=True,
        check=False,
        env={
            "PYTHONPATH": str(root / "engine"),
            "TRITON_CACHE_DIR": str(cache_home() / "triton"),
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
        },
    )
    assert run.returncode == 0, run.stderr[-3000:]
    binaries = list(map(json.loads, run.stdout.splitlines()))
    launched = [case for case in COMPILED for _ in range(2 if case[2] else 1)]
    for case, (num_cubin_bytes, num_shared_bytes) in zip(launched, binaries, strict=True):
        assert num_cubin_bytes > 0
        assert num_shared_bytes <= SHARED_MEMORY_BYTES[case[0]], case
