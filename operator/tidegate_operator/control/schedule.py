"""When which key runs: the pure half of the work queue, on plain numbers.

           add                    take                     succeeded(after)
    idle ───────▶ waiting(due) ─────────▶ running ─────────────────────────▶ waiting(due) or idle
                    ▲   └─ add: due moves earlier │  ▲ add: remembered, one more run
                    └──────── failed: backoff ────┘

- a key never runs twice at the same time; adds while it waits merge, an add while it runs makes it run once more
- a short debounce lets a burst of events become one run
- a key that failed waits, longer each time and with jitter, whatever is added meanwhile: an event storm cannot turn a
  failing key into a busy loop

workqueue.py drives it; every time is an argument.
"""

import heapq
import random
from dataclasses import dataclass, field

from tidegate_operator.resources import Key


@dataclass(frozen=True)
class Timing:
    """All waiting times, in seconds."""

    debounce_seconds: float = 0.05
    resync_seconds: float = 300.0
    first_backoff_seconds: float = 0.2
    longest_backoff_seconds: float = 60.0
    jitter: float = 0.2


@dataclass
class Schedule:
    """Keys that wait, run or back off."""

    timing: Timing = field(default_factory=Timing)
    rng: random.Random = field(default_factory=random.Random)
    _due: dict[Key, float] = field(default_factory=dict, init=False)
    _heap: list[tuple[float, Key]] = field(default_factory=list, init=False)
    _running: set[Key] = field(default_factory=set, init=False)
    _added_while_running: set[Key] = field(default_factory=set, init=False)
    _num_failures: dict[Key, int] = field(default_factory=dict, init=False)

    def add(self, key: Key, now: float) -> None:
        """Run the key soon. One that runs will run again; one in backoff keeps its time."""
        if key in self._running:
            self._added_while_running.add(key)
        elif key not in self._num_failures:
            self._wait(key, now + self.timing.debounce_seconds)

    def next_due(self) -> float | None:
        """When the next key is due, None when none waits."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)  # superseded by an earlier time
        return self._heap[0][0] if self._heap else None

    def take(self, now: float) -> Key | None:
        """The key that is due longest, from now on running; None when none is due."""
        due = self.next_due()
        if due is None or due > now:
            return None
        _, key = heapq.heappop(self._heap)
        del self._due[key]
        self._running.add(key)
        return key

    def succeeded(self, key: Key, now: float, after_seconds: float | None) -> None:
        """The run ended well; the next is wanted after some seconds, or never (None), and due by the resync."""
        self._num_failures.pop(key, None)
        self._running.discard(key)
        if key in self._added_while_running:
            self._added_while_running.discard(key)
            self._wait(key, now + self.timing.debounce_seconds)
        elif after_seconds is not None:
            self._wait(key, now + min(after_seconds, self._jittered(self.timing.resync_seconds)))

    def failed(self, key: Key, now: float, at_least_seconds: float = 0.0) -> float:
        """The run failed; returns the seconds until the next try, never fewer than whoever refused it asks for."""
        count = self._num_failures[key] = self._num_failures.get(key, 0) + 1
        self._running.discard(key)
        self._added_while_running.discard(key)
        backoff = self.timing.first_backoff_seconds * 2 ** min(count - 1, 30)
        after_seconds = max(at_least_seconds, self._jittered(min(backoff, self.timing.longest_backoff_seconds)))
        self._wait(key, now + after_seconds)
        return after_seconds

    def num_due(self, now: float) -> int:
        """Keys that run or could run now."""
        return len(self._running) + sum(due <= now for due in self._due.values())

    def _wait(self, key: Key, due: float) -> None:
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            heapq.heappush(self._heap, (due, key))

    def _jittered(self, seconds: float) -> float:
        return seconds * self.rng.uniform(1 - self.timing.jitter, 1 + self.timing.jitter)
