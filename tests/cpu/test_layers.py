"""What model files are built from, beside the matrices."""

import pytest
import torch
import torch.nn.functional as F

from tidegate_engine.compute.layers import gated_gelu, gated_silu

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
