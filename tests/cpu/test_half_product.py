"""Our kernel for 16-bit weights: right within what fp32 sums can differ by, and a row never feels its neighbours."""

import pytest
import torch

from tidegate_core.memory import PART_ELEMENTS
from tidegate_engine.compute.matrix import DenseMatrix
from tidegate_engine.cpu_kernels import catalog

SHAPES = [(96, 64), (200, 640), (37, 1026), (8, 33), (3, 1), (16, 128), (31, 4864)]
ROUNDING = 2.0**-24  # of fp32, relative


def case(shape, rows):
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(shape, generator=generator) * 0.05
    return torch.randn(rows, shape[1], generator=generator), weight, torch.randn(shape[0], generator=generator)


def half_layer(weight, bias=None):
    make = catalog.half_linear()
    assert make is not None
    return make(DenseMatrix(weight), bias)


def check(result, x, weight, bias):
    """A sum of n products and the bias rounds n times, each time by no more than all terms together are large."""
    x, weight, bias = x.double(), weight.half().double(), bias.double()
    most = (x.abs() @ weight.abs().T + bias.abs()) * (x.shape[1] + 1) * ROUNDING
    assert ((result - (x @ weight.T + bias)).abs() <= most).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_of_any_number_of_rows_is_that_of_the_fp16_weights(shape):
    x, weight, bias = case(shape, 33)
    layer = half_layer(weight, bias)
    for rows in range(34):
        check(layer(x[:rows]), x[:rows], weight, bias)
    without = half_layer(weight)
    check(without(x), x, weight, torch.zeros(shape[0]))


@pytest.mark.parametrize("rows", [2, 6, 7, 20, 128, 131, 300])
def test_a_row_is_the_same_to_the_bit_beside_any_neighbours(rows):
    x, weight, bias = case((200, 896), rows)
    x[1:] *= 50
    layer = half_layer(weight, bias)
    alone = torch.cat([layer(row[None]) for row in x])
    check(alone, x, weight, bias)
    assert torch.equal(layer(x), alone)
    assert torch.equal(layer(x.flip(0)), alone.flip(0))
    assert torch.equal(layer(torch.cat((x, x), 1)[:, : x.shape[1]]), alone)  # rows that lie apart
    assert torch.equal(layer(x.T.contiguous().T), alone)


def test_weights_that_fp16_has_no_room_for_are_the_largest_it_has_and_what_is_no_number_stays_none():
    x, weight, _ = case((20, 64), 3)
    weight[2, 5], weight[3, 6], x[1, 7], x[2, 8] = 1e6, -1e6, float("nan"), float("inf")
    result = half_layer(weight)(x)
    kept = weight.clamp(-65504, 65504)
    check(result[:1], x[:1], kept, torch.zeros(20))
    assert result[1].isnan().all()
    assert torch.equal(result[2].sign(), weight[:, 8].sign())
    assert result[2].isinf().all()


def test_a_large_matrix_is_packed_in_parts_that_join_seamlessly():
    x, weight, bias = case((PART_ELEMENTS // 1024 * 2 + 3, 1024), 2)
    check(half_layer(weight, bias)(x), x, weight, bias)
