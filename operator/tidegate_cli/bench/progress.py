"""The progress bar: how many requests have ended and how, on a terminal's stderr; nothing where that is a file."""

import sys
from collections import Counter
from types import TracebackType
from typing import Self

from tqdm import tqdm

from tidegate_cli.bench.outcome import Outcome


class Progress:
    """A context manager; saw() is called with each outcome."""

    def __init__(self, num_requests: int) -> None:
        self._bar = tqdm(total=num_requests, unit="req", file=sys.stderr, disable=None, dynamic_ncols=True)
        self._endings: Counter[str] = Counter()

    def saw(self, outcome: Outcome) -> None:
        self._endings[outcome.ending.value] += 1
        self._bar.set_postfix(self._endings, refresh=False)
        self._bar.update()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()
