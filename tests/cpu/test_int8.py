"""int8 products are exact in integers: nothing is cut off, and a row's result is the same beside any others.

FBGEMM's, and those without any kernel: tests/cpu/test_cpu_kernels.py has our own.
"""

import pytest
import torch
import torch.nn.functional as F

from running import answers, greedy_params
from tidegate_core.errors import BadLaunch
from tidegate_core.launch import Device, EngineLaunch, Quantization
from tidegate_core.memory import PART_ELEMENTS
from tidegate_engine.compute.int8 import MOST, Int8Linear, WidenedInt8Linear, multiplies_int8, weight_scales
from tidegate_engine.compute.linear_choice import LinearChoice
from tidegate_engine.compute.matrix import DenseMatrix
from tidegate_engine.compute.torch_runner import TorchRunner
from tiny_models import greedy, save_tiny_model

SHAPES = [(96, 64), (200, 640), (24, 1026), (8, 33), (3, 1)]
KINDS = [Int8Linear, WidenedInt8Linear]


@pytest.fixture(scope="module", autouse=True)
def _warned_once() -> None:
    assert multiplies_int8()


def case(shape, rows, *, has_bias=True):
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(shape, generator=generator) * 0.05
    bias = torch.randn(shape[0], generator=generator) if has_bias else None
    return torch.randn(rows, shape[1], generator=generator), weight, bias


def in_integers(x, weight, bias):
    """What the product should be, to the last bit of fp64."""
    scales, largest = weight_scales(weight).double(), x.abs().amax(1, keepdim=True)
    product = (x / largest * MOST).round().double() @ (weight / scales[:, None]).round().T
    return product * scales * largest / MOST + (0 if bias is None else bias)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 7, 64])
@pytest.mark.parametrize("has_bias", [True, False])
def test_the_product_is_that_of_the_rounded_integers_and_close_to_the_exact_one(kind, shape, rows, has_bias):
    x, weight, bias = case(shape, rows, has_bias=has_bias)
    result = kind(DenseMatrix(weight), bias)(x)
    assert result.dtype is torch.float32
    expected, exact = in_integers(x, weight, bias).float(), F.linear(x, weight, bias)
    # a value in the middle of two integers may go either way
    assert (result - expected).norm() <= 2e-3 * expected.norm()
    assert (result - exact).norm() <= 0.025 * exact.norm()


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_cut_off_where_all_weights_and_activations_are_as_large_as_can_be(kind):
    """A kernel that adds two products in 16 bits would lose half of it."""
    signs = torch.ones(4, 1026)
    signs[1] = -1
    signs[2, ::2] = -1
    signs[3, ::4] = signs[3, 1::4] = -1
    result = kind(DenseMatrix(signs), None)(signs)
    torch.testing.assert_close(result, signs @ signs.T, atol=0.02, rtol=0)  # rounding alone moves 1 to 64 / 63.9995


def test_scales_leave_two_neighbours_of_one_sign_128_between_them():
    weight = torch.distributions.StudentT(2.0).sample((50, 641))
    rounded = (weight / weight_scales(weight)[:, None]).round()
    pairs = rounded[:, :640].unflatten(1, (320, 2))
    assert rounded.abs().max() <= MOST
    assert pairs.clamp(min=0).sum(-1).max() <= 128
    assert pairs.clamp(max=0).sum(-1).min() >= -128
    assert rounded.abs().amax(1).median() > 64  # as much as halving the range would leave


@pytest.mark.parametrize("rows", [2, 8, 33, 100])
def test_an_int8_row_is_the_same_to_the_bit_beside_any_neighbours(rows):
    x, weight, bias = case((200, 896), rows)
    x[1:] *= 50
    layer = Int8Linear(DenseMatrix(weight), bias)
    alone = torch.cat([layer(row[None]) for row in x])
    assert torch.equal(layer(x), alone)
    assert torch.equal(layer(x.flip(0)), alone.flip(0))


def test_rows_and_outputs_of_zeros_give_the_bias_and_what_is_no_number_stays_none():
    x, weight, bias = case((16, 64), 3)
    x[0], x[1, 5], weight[3] = 0, float("nan"), 0
    result = Int8Linear(DenseMatrix(weight), bias)(x)
    assert torch.equal(result[0], bias)
    assert result[1].isnan().all()
    assert result[2, 3] == bias[3]


def test_a_large_matrix_is_packed_in_parts_that_join_seamlessly():
    x, weight, bias = case((PART_ELEMENTS // 1024 * 2 + 3, 1024), 2)
    layer = Int8Linear(DenseMatrix(weight), bias)
    assert len(layer._parts) == 3
    assert (layer(x) - F.linear(x, weight, bias)).norm() <= 0.02 * F.linear(x, weight, bias).norm()


def test_the_kernel_is_right_here_and_without_it_the_same_numbers_come_from_widened_weights():
    x, weight, bias = case((96, 64), 5)
    matrix = DenseMatrix(weight)
    assert isinstance(LinearChoice(lambda: 0.0, own_int8=lambda: None).quantised(matrix, bias), Int8Linear)
    choice = LinearChoice(lambda: 0.0, own_int8=lambda: None, can_multiply_int8=lambda: False)
    other = choice.quantised(matrix, bias)
    assert isinstance(other, WidenedInt8Linear)
    torch.testing.assert_close(other(x), Int8Linear(matrix, bias)(x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["qwen2_bias", "llama_llama3_rope_tied", "gemma3"])
def test_a_model_with_int8_weights_answers_much_as_it_does_without_and_the_same_in_any_batch(name, dtype, tmp_path):
    model = save_tiny_model(name, tmp_path, dtype).float()
    launch = EngineLaunch(model=str(tmp_path), quantization=Quantization.INT8, kv_memory=2**21, context=256, threads=2)
    runner = TorchRunner.load(launch, tmp_path)
    prompts = [torch.randint(1, 211, (length,), generator=torch.Generator().manual_seed(length)) for length in (5, 33)]
    prompts = [prompt.tolist() for prompt in prompts]
    alone = [answers(runner, [prompt], [greedy_params(8)])[0] for prompt in prompts]
    assert answers(runner, prompts, [greedy_params(8)] * 2) == alone
    expected = [greedy(model, prompt, 8) for prompt in prompts]
    pairs = [pair for ours, theirs in zip(alone, expected, strict=True) for pair in zip(ours, theirs, strict=True)]
    assert sum(ours == theirs for ours, theirs in pairs) >= len(pairs) // 2


def test_int8_weights_are_refused_on_a_gpu_with_what_to_do(tmp_path):
    launch = EngineLaunch(model=str(tmp_path), quantization=Quantization.INT8, device=Device.CUDA)
    with pytest.raises(BadLaunch, match=r"--quantization int8 is for --device cpu: leave it out on a GPU"):
        TorchRunner.load(launch, tmp_path)
