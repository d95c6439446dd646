"""What model files are built from, beside the matrices."""

import pytest
import torch
import torch.nn.functional as F

from tidegate_engine.compute.layers import STRETCH_ROWS, gated_gelu, gated_silu, in_stretches

GATED = {
    "silu": (gated_silu, F.silu),
    "gelu": (gated_gelu, lambda gate: F.gelu(gate, approximate="tanh")),
}


@pytest.mark.parametrize(("gated", "plain"), GATED.values(), ids=GATED)
def test_gate_and_up_are_joined_in_the_memory_of_the_gate(gated, plain):
    """The widest rows of a step: a copy of them would raise its peak by half."""
    rows = torch.randn(5, 2 * 96, generator=torch.Generator().manual_seed(0))
    gate, up = rows.clone().chunk(2, -1)
    joined = gated(rows)
    assert joined.data_ptr() == rows.data_ptr()
    torch.testing.assert_close(joined, plain(gate) * up)


@pytest.mark.parametrize("num_rows", [1, STRETCH_ROWS, STRETCH_ROWS + 1, 2 * STRETCH_ROWS + 5])
def test_rows_are_fed_forward_in_stretches_and_stay_in_order(num_rows):
    rows = torch.arange(3.0 * num_rows).view(num_rows, 3)
    lengths = []

    def doubled(x: torch.Tensor) -> torch.Tensor:
        lengths.append(len(x))
        return 2 * x

    torch.testing.assert_close(in_stretches(doubled, rows), 2 * rows)
    assert max(lengths) <= STRETCH_ROWS
