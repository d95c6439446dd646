"""docs/operations.md tells who is on call what each condition and reason means; none is forgotten."""

from pathlib import Path

import pytest

from tidegate_operator.api.conditions import ConditionType
from tidegate_operator.api.reasons import Reason

PAGE = (Path(__file__).parents[2] / "docs/operations.md").read_text()


@pytest.mark.parametrize("condition", ConditionType)
def test_every_condition_is_explained(condition: ConditionType) -> None:
    assert f"\n| `{condition}` |" in PAGE, f"docs/operations.md needs a row for {condition} under Conditions of a pool"


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_explained_with_what_to_do(reason: Reason) -> None:
    assert f"`{reason}`" in PAGE, f"docs/operations.md needs a row for {reason}: {reason.doc}"
