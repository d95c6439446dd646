"""Runs a step so that a row which makes the runner raise fails alone.

On an exception the batch is halved until the guilty rows are found; rows computed again give the same result. The
number of extra runs is bounded: when it is used up the fault is hardly one request's, and what is left fails together.
A runner that says it is beyond help (EngineFailed) is not asked again.
"""

from collections.abc import Sequence

from tidegate_engine.errors import EngineFailed
from tidegate_engine.runner import RowOutput, RowResult, Runner, ScheduledRow, StepBatch


def run_isolated(runner: Runner, rows: tuple[ScheduledRow, ...]) -> list[RowResult]:
    """An output, None or the exception it failed with for each row, in order."""
    runs_left = 4 * len(rows).bit_length() + 4  # two guilty rows are found in any batch

    def attempt(part: Sequence[ScheduledRow]) -> list[RowResult]:
        nonlocal runs_left
        runs_left -= 1
        try:
            return list(_run_checked(runner, part))
        except EngineFailed:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a model raises must not end the other requests
            if len(part) == 1 or runs_left <= 0:
                return [error] * len(part)
        middle = len(part) // 2
        return attempt(part[:middle]) + attempt(part[middle:])

    return attempt(rows)


def _run_checked(runner: Runner, rows: Sequence[ScheduledRow]) -> tuple[RowResult, ...]:
    results = runner.run(StepBatch(tuple(rows)))
    if len(results) != len(rows):
        raise ValueError(f"the runner returned {len(results)} results for {len(rows)} rows")
    has_token = [type(result) is RowOutput and result.token_id is not None for result in results]
    if has_token != [row.sampling is not None for row in rows] and any(map(_is_unasked, results, rows)):
        raise ValueError("the runner sampled in the middle of a prompt, or did not sample where it should")
    return results


def _is_unasked(result: RowResult, row: ScheduledRow) -> bool:
    """Whether a token is there where none is wanted, or missing where one is."""
    if isinstance(result, RowOutput):
        return (result.token_id is None) is not (row.sampling is None)
    return result is None and row.sampling is not None
