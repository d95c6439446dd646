"""Every way to multiply gives the product it should, and the choice between them falls back."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from tidegate_core.memory import PART_ELEMENTS
from tidegate_engine.compute.int8 import multiplies_int8
from tidegate_engine.compute.linear import Order, PackedLinear, PlainLinear, WidenedLinear, multiply
from tidegate_engine.compute.linear_choice import MEASURED_ROWS, LinearChoice
from tidegate_engine.compute.matrix import DenseMatrix
from tidegate_engine.cpu_kernels import catalog
from tidegate_engine.cpu_kernels.half_product import HalfKernelLinear

SHAPES = [(96, 64), (200, 640), (1, 33)]
ROWS = [1, 2, 7, 64]


def case(shape, rows, *, has_bias=True):
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(shape, generator=generator) * 0.05
    bias = torch.randn(shape[0], generator=generator) if has_bias else None
    return torch.randn(rows, shape[1], generator=generator), weight, bias


def ticking(costs):
    """A clock that advances by the next cost at every second call: as if each timed run took that long."""
    now, calls = 0.0, itertools.count()

    def clock():
        nonlocal now
        now += next(costs) if next(calls) % 2 else 0.0
        return now

    return clock


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("has_bias", [True, False])
def test_both_exact_orders_equal_the_plain_product(shape, rows, has_bias):
    x, weight, bias = case(shape, rows, has_bias=has_bias)
    for order in Order:
        result = multiply(x, weight, bias, order)
        torch.testing.assert_close(result, F.linear(x, weight, bias), atol=1e-5, rtol=1e-5)
        assert result.is_contiguous()


@pytest.mark.parametrize("kind", [PackedLinear, WidenedLinear])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("has_bias", [True, False])
def test_16_bit_ways_round_weights_to_fp16_and_nothing_else(kind, shape, rows, has_bias):
    x, weight, bias = case(shape, rows, has_bias=has_bias)
    result = kind(DenseMatrix(weight.half()), bias)(x)
    torch.testing.assert_close(result, F.linear(x, weight.half().float(), bias), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", [PackedLinear, WidenedLinear])
def test_a_row_does_not_depend_on_its_neighbours(kind):
    x, weight, _ = case((200, 640), 9)
    x[1:] *= 50
    layer = kind(DenseMatrix(weight.half()), None)
    torch.testing.assert_close(layer(x)[0], layer(x[:1])[0], atol=1e-5, rtol=1e-5)


def test_a_large_matrix_is_packed_in_parts_that_join_seamlessly():
    x, weight, bias = case((PART_ELEMENTS // 1024 * 2 + 3, 1024), 2)
    layer = PackedLinear(DenseMatrix(weight.half()), bias)
    assert len(layer._parts) == 3
    torch.testing.assert_close(layer(x), F.linear(x, weight.half().float(), bias), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("fastest", list(Order))
def test_the_faster_order_is_chosen_for_every_number_of_rows(fastest):
    _, weight, _ = case((512, 256), 1)
    seconds = [0.001 if order is fastest else 0.002 for order in Order]
    per_order = ([cost] * 4 for _ in MEASURED_ROWS for cost in seconds)
    layer = LinearChoice(ticking(itertools.chain.from_iterable(per_order)), budget_seconds=60.0).exact(weight, None)
    assert isinstance(layer, PlainLinear)
    assert [layer._order_for(rows) for rows in (1, 3, 16, 17, 5000)] == [fastest] * 5


def test_nothing_is_measured_once_the_budget_is_spent():
    calls = 0

    def clock():
        nonlocal calls
        calls += 1
        return 0.0

    _, weight, _ = case((512, 256), 1)
    layer = LinearChoice(clock, budget_seconds=0.0).exact(weight, None)
    assert calls == 0
    assert layer._order_for(1) is Order.ROWS_FIRST
    assert layer._order_for(8) is Order.WEIGHT_FIRST


@pytest.mark.parametrize("cost_seconds", [0.0, 1000.0])
def test_what_is_kept_does_not_depend_on_how_fast_anything_was(cost_seconds):
    """Memory was promised before: a busy neighbour at start must not change it."""
    matrix = DenseMatrix(torch.ones(512, 256))
    clock = ticking(itertools.repeat(cost_seconds))
    assert isinstance(LinearChoice(clock).rounded(matrix, None), HalfKernelLinear)
    assert isinstance(LinearChoice(clock, own_half=lambda: None).rounded(matrix, None), PackedLinear)


@pytest.mark.parametrize("pack", ["missing", "wrong"])
def test_packing_that_is_missing_or_wrong_here_is_not_used(pack):
    pack = {"missing": _refuse, "wrong": _forget_the_last_column}[pack]
    choice = LinearChoice(lambda: 0.0, pack=pack, own_half=lambda: None)
    assert isinstance(choice.rounded(DenseMatrix(torch.zeros(64, 64)), None), WidenedLinear)


def _forget_the_last_column(matrix, bias):
    packed = PackedLinear(matrix, bias)
    return lambda x: packed(torch.cat((x[:, :-1], torch.zeros(x.shape[0], 1)), 1))


def _refuse(matrix, bias):
    raise RuntimeError("Didn't find engine for operation quantized::linear_prepack_fp16")


ROUNDED = ["rounded", "rounded, FBGEMM", "rounded, not packed"]
KINDS = ["exact", *ROUNDED, "quantised", "quantised, FBGEMM", "quantised, not packed"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(200, 896), (96, 33), (64, 1500)])
def test_deterministic_layers_give_a_row_the_same_bits_in_any_batch(kind, shape):
    x, weight, bias = case(shape, 100)
    can_pack = "not packed" not in kind
    choice = LinearChoice(
        _no_clock,
        pack=PackedLinear if can_pack else _refuse,
        own_half=lambda: catalog.half_linear() if kind == "rounded" else None,
        own_int8=lambda: catalog.int8_linear() if kind == "quantised" else None,
        can_multiply_int8=lambda: can_pack and multiplies_int8(),
        deterministic=True,
    )
    made = {"exact": lambda: choice.exact(weight, bias), "rounded": lambda: choice.rounded(DenseMatrix(weight), bias)}
    layer = made.get(kind.partition(",")[0], lambda: choice.quantised(DenseMatrix(weight), bias))()
    expected = torch.cat([layer(row[None]) for row in x])
    for rows in (1, 2, 8, 33, 100):
        for batch, where in ((x[:rows], slice(rows)), (x[-rows:], slice(-rows, None))):
            assert torch.equal(layer(batch.clone()), expected[where])
    atol = 0.2 if "quantised" in kind else 5e-3
    torch.testing.assert_close(expected, F.linear(x, weight, bias), atol=atol, rtol=0.01)


def _no_clock():
    raise AssertionError("deterministic layers are not chosen by speed")
