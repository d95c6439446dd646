"""Sizing: golden values of known models, and what must hold for every model, device and demand."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shapes import full_layers, mla_layers, shape_of, window_layers
from tidegate_core.accelerator import Device, find_accelerator
from tidegate_core.kv import kv_block_bytes, kv_bytes_per_token, kv_demand, kv_fixed_bytes_per_sequence
from tidegate_core.kv_demand import KvDemand
from tidegate_core.memory import free_after_load, loading_floor_bytes, weight_bytes
from tidegate_core.shape import AttentionGroup, ModelShape, TpRule, WeightGroup, WeightRole
from tidegate_core.sizing import (
    BLOCK_SIZE,
    WATERMARK,
    Constraint,
    Demand,
    Fit,
    RemedyKind,
    Target,
    plan_blocks,
    plan_fit,
)
from tidegate_core.solve import lay_out
from tidegate_core.storage import KV_8BIT, KvWidth, storage_of

KIB, MIB, GIB = 2**10, 2**20, 2**30
BITS_16 = KvWidth(2)
H100 = find_accelerator("H100")


def on_gpu(name: str, tensor_parallel: int = 1) -> Target:
    gpu = find_accelerator(name)
    return Target(Device.CUDA, gpu.memory_bytes, tensor_parallel=tensor_parallel, bandwidth=gpu.bandwidth)


def on_cpu(memory_bytes: int) -> Target:
    return Target(Device.CPU, memory_bytes)


def small_shape(**changes: object) -> ModelShape:
    """About Gemma 3 270M: fits a small pod."""
    return replace(
        shape_of(
            full_layers(3, 1, 256),
            window_layers(15, 1, 256, window=512),
            linear_elements=100_000_000,
            embedding_elements=168_000_000,
            has_tied_embeddings=True,
            max_context=32_768,
            num_attention_heads=4,
        ),
        hidden_size=640,
        intermediate_size=2048,
        vocab_size=262_144,
        **changes,
    )


# golden values


def test_36_layers_of_8_heads_of_128_take_144_kib_a_token_and_8192_tokens_1_gib_and_an_eighth() -> None:
    per_token = kv_bytes_per_token(shape_of(full_layers(36, 8, 128)), BITS_16)
    assert per_token == 147_456
    assert 8192 * per_token == 1_207_959_552


@pytest.mark.parametrize(
    ("model", "attention", "kib_per_token", "sequence_of_8k"),
    [
        ("Qwen2.5-0.5B", [full_layers(24, 2, 64)], 12, 96 * MIB),
        ("Qwen3-0.6B", [full_layers(28, 8, 128)], 112, 896 * MIB),
        ("Llama-3.2-1B", [full_layers(16, 8, 64)], 32, 256 * MIB),
        ("Llama-3.1-8B", [full_layers(32, 8, 128)], 128, GIB),
        ("Qwen2.5-7B", [full_layers(28, 4, 128)], 56, 448 * MIB),
        ("Qwen3-8B", [full_layers(36, 8, 128)], 144, 1_207_959_552),
        ("Qwen3-32B", [full_layers(64, 8, 128)], 256, 2 * GIB),
        ("Qwen3-30B-A3B", [full_layers(48, 4, 128)], 96, 768 * MIB),
        ("Llama-3.1-70B", [full_layers(80, 8, 128)], 320, 2.5 * GIB),
        ("Phi-3-mini, as many KV heads as heads", [full_layers(32, 32, 96)], 384, 3 * GIB),
        ("Phi-4", [full_layers(40, 10, 128)], 200, 1600 * MIB),
        ("DeepSeek-V3, one latent", [mla_layers(61, 512, 64)], 68.625, 549 * MIB),
        ("one KV head", [full_layers(32, 1, 128)], 16, 128 * MIB),
    ],
)
def test_kv_bytes_of_known_models(
    model: str, attention: list[AttentionGroup], kib_per_token: float, sequence_of_8k: float
) -> None:
    per_token = kv_bytes_per_token(shape_of(*attention), BITS_16)
    assert per_token == kib_per_token * KIB, model
    assert per_token * 8192 == sequence_of_8k, model


@pytest.mark.parametrize(
    ("model", "attention", "kib_per_token", "num_window_layers", "num_window_tokens"),
    [  # window layers fill whole groups of as many layers as there are full ones; a window of 1,024 touches 65 blocks
        ("Gemma-2-9B", [full_layers(21, 8, 256), window_layers(21, 8, 256, 4096)], 168, 21, 4096 + 16),
        ("Gemma-3-27B", [full_layers(10, 16, 128), window_layers(52, 16, 128, 1024)], 80, 60, 1024 + 16),
        ("gpt-oss-20b", [full_layers(12, 8, 64), window_layers(12, 8, 64, 128)], 24, 12, 128 + 16),
        ("gpt-oss-120b", [full_layers(18, 8, 64), window_layers(18, 8, 64, 128)], 36, 18, 128 + 16),
        ("Gemma-3-270M", [full_layers(3, 1, 256), window_layers(15, 1, 256, 512)], 3, 15, 512 + 16),
        ("Mistral-7B-v0.1, windows everywhere", [window_layers(32, 8, 128, 4096)], 0, 32, 4096 + 16),
    ],
)
def test_layers_with_a_window_take_a_fixed_amount_and_only_the_others_grow(
    model: str,
    attention: list[AttentionGroup],
    kib_per_token: float,
    num_window_layers: int,
    num_window_tokens: int,
) -> None:
    shape = shape_of(*attention)
    layer_bytes = 2 * attention[0].num_kv_heads * attention[0].head_dim * 2
    assert kv_bytes_per_token(shape, BITS_16) == kib_per_token * KIB, model
    assert kv_fixed_bytes_per_sequence(shape, BITS_16) == num_window_layers * num_window_tokens * layer_bytes, model


def test_a_long_sequence_of_gemma_3_27b_takes_a_fifth_of_what_full_layers_would() -> None:
    shape = shape_of(full_layers(10, 16, 128), window_layers(52, 16, 128, 1024), max_context=131_072)
    blocks, block_bytes = kv_demand(shape).decoding_blocks(131_072), kv_block_bytes(shape, BITS_16)
    assert blocks * block_bytes == 131_072 * 80 * KIB + kv_fixed_bytes_per_sequence(shape, BITS_16)
    assert 5 * blocks * block_bytes < 131_072 * 496 * KIB


@pytest.mark.parametrize(
    ("attention", "tensor_parallel", "kib_per_token"),
    [
        (full_layers(28, 4, 128), 2, 28),
        (full_layers(28, 4, 128), 4, 14),
        (full_layers(28, 4, 128), 8, 14),  # fewer heads than devices: replicated
        (full_layers(40, 10, 128), 4, 60),  # 10 heads on 4 devices: three each
        (full_layers(32, 1, 128), 8, 16),  # one head is on every device
        (mla_layers(61, 512, 64), 8, 68.625),  # a latent serves all heads
    ],
)
def test_tensor_parallelism_divides_heads_and_replicates_what_it_cannot(
    attention: AttentionGroup, tensor_parallel: int, kib_per_token: float
) -> None:
    assert kv_bytes_per_token(shape_of(attention), BITS_16, tensor_parallel) == kib_per_token * KIB


def test_projections_of_heads_that_several_devices_hold_are_counted_on_each() -> None:
    """2 KV heads of 128 in 36 layers on 4 devices: each holds one of them, not half of one."""
    few, many = (
        weight_bytes(shape, storage_of(shape), Device.CUDA, 4)
        for shape in (shape_of(full_layers(36, num_kv_heads, 128)) for num_kv_heads in (2, 4))
    )
    assert few - many == 2 * 36 * 128 * 4096 // 2 * 2


def test_heads_that_divide_no_devices_and_that_no_devices_divide_are_refused() -> None:
    fit = plan_fit(shape_of(full_layers(36, 6, 128), num_attention_heads=24), on_gpu("H100", 4), Demand())
    assert (fit.fits, fit.binding_constraint) == (False, Constraint.TENSOR_PARALLEL)


def test_8_bit_kv_halves_the_bytes_and_adds_a_scale_per_token_and_head() -> None:
    assert kv_bytes_per_token(shape_of(full_layers(36, 8, 128)), KV_8BIT) == 36 * 2 * 8 * (128 + 2)
    assert kv_bytes_per_token(shape_of(mla_layers(61, 512, 64)), KV_8BIT) == 61 * (576 + 2)


def test_a_float32_model_takes_twice_the_weights_and_twice_the_kv() -> None:
    half, single = shape_of(dtype="bf16"), shape_of(dtype="f32")
    demand = Demand(context_max=2048)
    wide, narrow = (plan_fit(shape, on_gpu("H100"), demand) for shape in (single, half))
    assert wide.weight_bytes == 2 * narrow.weight_bytes
    assert wide.kv_bytes_per_token == 2 * narrow.kv_bytes_per_token


# weights


def test_tied_embeddings_count_once_on_a_gpu() -> None:
    untied, tied = shape_of(), shape_of(has_tied_embeddings=True)
    of = lambda shape: weight_bytes(shape, storage_of(shape), Device.CUDA)  # noqa: E731 - short, used twice
    assert of(untied) - of(tied) == 2 * 622_000_000


def test_weights_count_as_the_engine_keeps_them_not_as_the_file_packs_them() -> None:
    packed = replace(
        shape_of(), weights=tuple(replace(g, dtype="q4_k", num_bytes=g.num_bytes // 4) for g in shape_of().weights)
    )
    assert weight_bytes(packed, storage_of(packed), Device.CUDA) == weight_bytes(
        shape_of(), storage_of(packed), Device.CUDA
    )


def test_a_cpu_packs_16_bit_matrices_without_padding_and_keeps_32_bits_as_they_are() -> None:
    narrow = WeightGroup(WeightRole.LINEAR, TpRule.SPLIT, "bf16", num_elements=640 * 1000, num_bytes=1, width=640)
    storage = storage_of(shape_of())
    assert storage.weight_bytes(narrow, Device.CPU) == storage.weight_bytes(narrow, Device.CUDA) == 640 * 1000 * 2
    assert storage_of(shape_of(dtype="f32")).weight_bytes(narrow, Device.CPU) == 640 * 1000 * 4


def test_on_cpu_embeddings_stay_in_the_mapped_file_and_a_tied_one_is_kept_as_the_head() -> None:
    embedding = WeightGroup(WeightRole.EMBEDDING, TpRule.SPLIT, "q8_0", num_elements=640 * 1000, num_bytes=1, width=640)
    storage, exact = storage_of(shape_of()), storage_of(shape_of(dtype="f32"))
    assert storage.weight_bytes(embedding, Device.CPU) == 0
    assert storage.weight_bytes(embedding, Device.CPU, is_tied=True) == 640 * 1000 * 2
    assert exact.weight_bytes(embedding, Device.CPU) == exact.weight_bytes(embedding, Device.CPU, is_tied=True) > 0


def test_split_weights_are_shared_and_replicated_ones_are_not() -> None:
    shape = shape_of()
    norms = 600_000
    whole, half = (weight_bytes(shape, storage_of(shape), Device.CUDA, tp) for tp in (1, 2))
    assert half - norms == (whole - norms) // 2


# the answer


def test_blocks_context_and_slots_follow_the_formulas() -> None:
    fit = plan_fit(shape_of(), on_gpu("H100"), Demand(context_max=8192, prompt_tokens=900, output_tokens=300))
    assert fit.fits
    assert fit.context == 8192
    assert fit.kv_blocks == (fit.usable_bytes - fit.weight_bytes) // (BLOCK_SIZE * 147_456)
    assert fit.kv_pool_bytes == fit.kv_blocks * BLOCK_SIZE * 147_456
    assert fit.slots == int(fit.kv_blocks * BLOCK_SIZE * (1 - WATERMARK) / 1200)
    assert fit.binding_constraint is Constraint.KV_MEMORY
    assert fit.remedies == ()


def test_context_shrinks_to_what_one_sequence_may_hold_and_says_so() -> None:
    fit = plan_fit(shape_of(), on_gpu("L4"), Demand(context_max=40_960, context_min=2048))
    assert fit.fits
    assert fit.context == fit.kv_blocks * BLOCK_SIZE < 40_960
    assert "shrunk from 40,960" in fit.statement
    assert {remedy.kind for remedy in fit.remedies} >= {RemedyKind.KV_8BIT, RemedyKind.LARGER_GPU}
    assert all(remedy.context > fit.context for remedy in fit.remedies)


def test_context_is_not_shrunk_below_the_minimum() -> None:
    fit = plan_fit(shape_of(), on_gpu("L4"), Demand(context_max=40_960, context_min=40_000))
    assert (fit.fits, fit.slots, fit.binding_constraint) == (False, 0, Constraint.KV_MEMORY)
    assert fit.context < 40_000
    smaller = next(remedy for remedy in fit.remedies if remedy.kind is RemedyKind.SMALLER_CONTEXT)
    assert smaller.context == fit.context
    assert (
        plan_fit(shape_of(), on_gpu("L4"), Demand(context_max=40_960, context_min=fit.context)).slots == smaller.slots
    )


def test_the_model_limits_the_context() -> None:
    assert plan_fit(shape_of(max_context=4096), on_gpu("H100"), Demand(context_max=100_000)).context == 4096
    refused = plan_fit(shape_of(max_context=4096), on_gpu("H100"), Demand(context_min=8192))
    assert refused.binding_constraint is Constraint.MODEL_CONTEXT
    assert "8,192" in refused.statement
    assert "4,096" in refused.statement
    assert [remedy.kind for remedy in refused.remedies] == [RemedyKind.SMALLER_CONTEXT]


def test_weights_that_do_not_fit_get_numbers_and_remedies_offered_ones_first() -> None:
    fit = plan_fit(shape_of(), on_gpu("T4"), Demand(context_max=8192))
    assert (fit.fits, fit.binding_constraint, fit.kv_blocks) == (False, Constraint.WEIGHTS, 0)
    assert "weights need 15.26 GiB, 11.89 GiB are usable" in fit.statement
    assert [remedy.kind for remedy in fit.remedies] == [
        RemedyKind.MORE_GPUS,
        RemedyKind.LARGER_GPU,
        RemedyKind.WEIGHTS_4BIT,
    ]
    assert [remedy.description.endswith(" (not offered by this version)") for remedy in fit.remedies] == [
        False,
        False,
        True,
    ]


def test_a_remedy_gives_what_it_promises() -> None:
    fit = plan_fit(shape_of(), on_gpu("T4"), Demand(context_max=8192))
    larger = next(remedy for remedy in fit.remedies if remedy.kind is RemedyKind.LARGER_GPU)
    tried = plan_fit(shape_of(), on_gpu(larger.description.split()[0]), Demand(context_max=8192))
    assert (tried.fits, tried.context, tried.slots) == (True, larger.context, larger.slots)


def test_a_pod_too_small_for_the_runtime_is_told_how_much_it_needs() -> None:
    fit = plan_fit(small_shape(), on_cpu(256 * MIB), Demand())
    assert (fit.fits, fit.binding_constraint) == (False, Constraint.OVERHEAD)
    assert fit.remedies[-1].kind is RemedyKind.MORE_MEMORY
    enough_mib = int(fit.remedies[0].description.split("Mi")[0])
    assert plan_fit(small_shape(), on_cpu(enough_mib * MIB), Demand()).fits
    assert not plan_fit(small_shape(), on_cpu((enough_mib - 256) * MIB), Demand()).fits


def test_devices_that_cannot_share_the_heads_are_refused() -> None:
    fit = plan_fit(shape_of(num_attention_heads=12), on_gpu("H100", tensor_parallel=8), Demand())
    assert (fit.fits, fit.binding_constraint) == (False, Constraint.TENSOR_PARALLEL)
    assert "between 8 devices" in fit.statement


def test_slots_asked_for_are_a_cap() -> None:
    fit = plan_fit(shape_of(), on_gpu("H100"), Demand(context_max=8192, max_slots=7))
    assert (fit.slots, fit.binding_constraint) == (7, Constraint.SLOTS)


def test_the_context_is_that_of_one_request_whatever_the_number_of_slots() -> None:
    for slots in (1, 7, 32):
        assert plan_fit(shape_of(), on_gpu("H100"), Demand(context_max=8192, max_slots=slots)).context == 8192


def test_windows_make_room_for_longer_and_for_more_sequences() -> None:
    demand = {"block_bytes": 1600, "wanted": 100_000, "smallest": 16, "p90_tokens": 4000}
    full = lay_out(10_000_000, kv=KvDemand((None,) * 4), **demand)
    windows = lay_out(10_000_000, kv=KvDemand((None, 512, 512, 512)), **demand)
    assert windows.num_blocks == full.num_blocks
    assert windows.context > 3 * full.context
    assert windows.slots > 2 * full.slots


def test_what_a_process_keeps_private_on_cpu_is_runtime_weights_and_pool() -> None:
    fit = plan_fit(small_shape(), on_cpu(2 * GIB), Demand())
    assert fit.resident_bytes == fit.runtime_bytes + fit.weight_bytes + fit.kv_pool_bytes
    assert fit.resident_bytes < 2 * GIB


def test_the_engine_comes_to_the_planned_blocks_from_the_planned_pool() -> None:
    shape, target, demand = small_shape(), on_cpu(2 * GIB), Demand(context_max=4096)
    fit = plan_fit(shape, target, demand)
    plan = plan_blocks(shape, target, demand, fit.kv_pool_bytes)
    assert (plan.num_blocks, plan.context, plan.slots) == (fit.kv_blocks, fit.context, fit.slots)


def test_the_engine_comes_to_the_planned_blocks_if_it_measures_what_was_estimated() -> None:
    for shape, target in ((small_shape(), on_cpu(2 * GIB)), (shape_of(), on_gpu("L4"))):
        fit = plan_fit(shape, target, Demand(context_max=4096))
        free_bytes = free_after_load(shape, target, fit.runtime_bytes + fit.weight_bytes)
        assert plan_blocks(shape, target, Demand(context_max=4096), free_bytes).num_blocks == fit.kv_blocks


def test_what_was_measured_above_the_estimate_is_taken_from_the_pool_and_never_below_nothing() -> None:
    shape, target = small_shape(), on_cpu(2 * GIB)
    fit = plan_fit(shape, target, Demand())
    estimated = fit.runtime_bytes + fit.weight_bytes
    free_bytes = free_after_load(shape, target, estimated)
    assert free_after_load(shape, target, estimated + MIB) == free_bytes - MIB
    assert free_after_load(shape, target, estimated - MIB) == free_bytes  # the rest of the process is still loading
    assert free_after_load(shape, target, 3 * GIB) == 0


def test_an_engine_that_finds_less_memory_than_planned_shrinks_its_context_and_serves() -> None:
    target, demand = on_gpu("L4"), Demand(context_max=16_384, context_min=2048)
    fit = plan_fit(shape_of(), target, demand)
    plan = plan_blocks(shape_of(), target, demand, fit.kv_pool_bytes // 4)
    assert fit.context == 16_384
    assert 2048 <= plan.context == plan.num_blocks * BLOCK_SIZE < 16_384
    assert plan.slots >= 1


# the load


def test_offered_load_is_users_times_their_share_of_time_in_generation() -> None:
    demand = Demand(users=20, generation_seconds=12, turn_seconds=90)
    assert plan_fit(shape_of(), on_gpu("H100"), demand).offered_requests == pytest.approx(2.67, abs=0.01)
    assert plan_fit(shape_of(), on_gpu("H100"), Demand()).offered_requests is None


def test_one_stream_reads_the_weights_for_every_token_and_slots_share_that() -> None:
    fit = plan_fit(shape_of(), on_gpu("H100"), Demand(context_max=8192))
    read_bytes = fit.weight_bytes - 2 * 622_000_000 + 1050 * 147_456  # embeddings are looked up, not read
    assert fit.stream_tokens_per_second_ceiling == pytest.approx(H100.bandwidth / read_bytes, rel=0.001)
    assert fit.tokens_per_second_ceiling is not None
    assert 10 * fit.stream_tokens_per_second_ceiling < fit.tokens_per_second_ceiling


def tiny_shape() -> ModelShape:
    """So small that getting it into memory takes more than serving it."""
    shape = shape_of(full_layers(2, 1, 64), linear_elements=10**7, embedding_elements=10**6, num_attention_heads=4)
    return replace(shape, hidden_size=256, intermediate_size=512, vocab_size=4000)


def test_what_could_serve_but_not_load_does_not_fit_and_says_what_would_be_enough() -> None:
    demand = Demand(context_max=64, prompt_tokens=16, output_tokens=16)
    fit = plan_fit(tiny_shape(), on_cpu(562 * MIB), demand)
    assert not fit.fits
    assert fit.binding_constraint is Constraint.LOADING
    assert fit.usable_bytes > fit.per_gpu_weight_bytes + fit.kv_pool_bytes > 0
    assert fit.statement.startswith("does not fit: loading takes up to ")
    assert fit.remedies[-1].kind is RemedyKind.MORE_MEMORY
    enough = fit.loading_floor_bytes + fit.reserve_bytes
    assert plan_fit(tiny_shape(), on_cpu(enough), demand).fits


def test_what_loading_takes_is_not_taken_from_the_pool() -> None:
    fit = plan_fit(small_shape(), on_cpu(4 * GIB), Demand())
    assert fit.loading_bytes > 0
    assert fit.usable_bytes - fit.weight_bytes - fit.kv_pool_bytes < BLOCK_SIZE * fit.kv_bytes_per_token
    assert fit.resident_bytes == fit.runtime_bytes + fit.weight_bytes + fit.kv_pool_bytes


def test_parts_are_made_on_the_host_of_a_gpu() -> None:
    assert plan_fit(shape_of(), on_gpu("H100"), Demand()).loading_bytes == 0


def test_no_token_rate_without_a_bandwidth() -> None:
    assert plan_fit(small_shape(), on_cpu(2 * GIB), Demand()).tokens_per_second_ceiling is None


# what must always hold

attention = st.one_of(
    st.builds(full_layers, st.integers(1, 80), st.integers(1, 32), st.sampled_from([64, 96, 128, 256])),
    st.builds(window_layers, st.integers(1, 40), st.integers(1, 16), st.just(128), st.integers(1, 4096)),
    st.builds(mla_layers, st.integers(1, 61), st.just(512), st.just(64)),
)
shapes = st.builds(
    lambda groups, **fields: shape_of(*groups, **fields),
    st.lists(attention, min_size=1, max_size=3),
    dtype=st.sampled_from(["bf16", "f32"]),
    linear_elements=st.sampled_from([10**7, 10**9, 8 * 10**9, 7 * 10**10]),
    embedding_elements=st.sampled_from([10**6, 10**8, 6 * 10**8]),
    has_tied_embeddings=st.booleans(),
    max_context=st.integers(16, 2**17),
    num_attention_heads=st.sampled_from([4, 14, 32, 64]),
)
targets = st.builds(
    Target,
    device=st.sampled_from(Device),
    memory_bytes=st.builds(
        int.__add__, st.sampled_from([0, GIB, 8 * GIB, 24 * GIB, 80 * GIB, 640 * GIB]), st.integers(0, GIB)
    ),
    utilisation=st.floats(0.5, 1.0),
    tensor_parallel=st.just(1),
    bandwidth=st.none() | st.integers(10**9, 10**13),
)
demands = st.builds(
    Demand,
    context_max=st.none() | st.integers(16, 2**20),
    context_min=st.none() | st.integers(16, 4096),
    prompt_tokens=st.integers(1, 2**17),
    output_tokens=st.integers(1, 2**15),
    max_slots=st.none() | st.integers(1, 1000),
)


def answer(fit: Fit) -> tuple[bool, int, int, int]:
    return fit.fits, fit.kv_blocks, fit.context, fit.slots


@given(shapes, targets, demands, st.integers(0, 2**37))
def test_more_memory_never_gives_less(shape: ModelShape, target: Target, demand: Demand, more_bytes: int) -> None:
    less = plan_fit(shape, target, demand)
    more = plan_fit(shape, replace(target, memory_bytes=target.memory_bytes + more_bytes), demand)
    assert all(after >= before for before, after in zip(answer(less), answer(more), strict=True))


@given(shapes, targets, demands)
def test_a_fit_stays_within_the_memory_and_can_hold_what_it_promises(
    shape: ModelShape, target: Target, demand: Demand
) -> None:
    fit = plan_fit(shape, target, demand)
    assume(fit.fits)
    taken = fit.overhead_bytes + fit.per_gpu_weight_bytes + fit.kv_pool_bytes
    assert taken <= target.memory_bytes
    block_bytes = kv_block_bytes(shape, storage_of(shape).kv_width, target.tensor_parallel)
    assert target.memory_bytes - taken < block_bytes  # and no block is given away
    assert fit.context_smallest <= fit.context <= fit.context_wanted <= shape.max_context
    kv = kv_demand(shape)
    assert kv.prefilling_blocks(fit.context) <= fit.kv_blocks
    p90_tokens = kv.slot_tokens(min(demand.prompt_tokens + demand.output_tokens, fit.context))
    assert fit.slots == 1 or fit.slots * p90_tokens <= fit.kv_blocks * BLOCK_SIZE * (1 - WATERMARK)


@given(shapes, targets, demands)
def test_what_fits_can_be_loaded_and_the_engine_agrees(shape: ModelShape, target: Target, demand: Demand) -> None:
    fit = plan_fit(shape, target, demand)
    assert fit.loading_floor_bytes == loading_floor_bytes(shape, target, storage_of(shape))
    assert not fit.fits or fit.loading_floor_bytes <= target.memory_bytes


@given(shapes, targets, demands)
def test_what_does_not_fit_gets_a_statement_with_a_number_and_a_way_out(
    shape: ModelShape, target: Target, demand: Demand
) -> None:
    fit = plan_fit(shape, target, demand)
    assume(not fit.fits)
    assert fit.slots == 0
    assert any(character.isdigit() for character in fit.statement)
    assert fit.remedies
    assert fit.remedies[-1].slots >= 1


@given(shapes, demands, st.integers(1, 8))
def test_more_devices_never_put_more_bytes_on_one(shape: ModelShape, demand: Demand, tensor_parallel: int) -> None:
    one, many = (plan_fit(shape, on_gpu("B200", tp), demand) for tp in (1, tensor_parallel))
    assert many.per_gpu_weight_bytes <= one.per_gpu_weight_bytes
    assert many.per_gpu_kv_bytes_per_token <= one.per_gpu_kv_bytes_per_token
    assert many.per_gpu_weight_bytes * tensor_parallel >= one.per_gpu_weight_bytes
    assert many.per_gpu_kv_bytes_per_token * tensor_parallel >= one.per_gpu_kv_bytes_per_token
    assert (many.weight_bytes, many.kv_bytes_per_token) == (one.weight_bytes, one.kv_bytes_per_token)


windows = st.lists(st.none() | st.integers(1, 3000), min_size=1, max_size=4).map(tuple)


@given(st.integers(0, 10**8), st.integers(16, 10**5), windows, st.integers(1, 5000))
def test_a_pool_holds_its_longest_sequence_and_its_slots(
    free_bytes: int, block_bytes: int, windows: tuple[int | None, ...], p90_tokens: int
) -> None:
    kv = KvDemand(windows)
    plan = lay_out(free_bytes, block_bytes=block_bytes, kv=kv, wanted=4096, smallest=16, p90_tokens=p90_tokens)
    assert plan.pool_bytes <= free_bytes
    assert plan.slots == 0 or kv.prefilling_blocks(plan.context) <= plan.num_blocks
    assert plan.context == 4096 or kv.prefilling_blocks(plan.context + 1) > plan.num_blocks
