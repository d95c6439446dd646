"""What the demo says: numbered steps with the time since the start, details indented below them."""

import sys
import time
from collections.abc import Callable


class Narrator:
    """Writes to standard output at once, so that a person sees progress and a log keeps its order."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()
        self._num_steps = 0

    def step(self, title: str) -> None:
        self._num_steps += 1
        print(f"\n[{self.seconds:5.0f} s] {self._num_steps}. {title}", flush=True)

    def detail(self, text: str) -> None:
        for line in text.rstrip().splitlines():
            print(f"          {line}", flush=True)

    def piece(self, text: str) -> None:
        """Part of a line, as a stream brings it."""
        sys.stdout.write(text)
        sys.stdout.flush()

    @property
    def seconds(self) -> float:
        return self._clock() - self._start
