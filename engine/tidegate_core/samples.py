"""What the scaler has seen: load reports of replicas, round by round, as plain values.

The operator and the simulator fill a History; `load.py` condenses it, `scaling.py` decides. Counters are cumulative
since a replica's boot: a new boot id or a counter that fell means a restart, and then the new value is the increase.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from tidegate_core.telemetry import LoadReport

KEEP_SECONDS = 120.0  # longer than any window a decision looks at


@dataclass(frozen=True)
class Counters:
    """Requests since a replica's boot, or the increase of these over some time."""

    arrivals: int = 0
    rejects: int = 0
    completions: int = 0
    preemptions: int = 0

    def __add__(self, other: Self) -> "Counters":
        return Counters(
            self.arrivals + other.arrivals,
            self.rejects + other.rejects,
            self.completions + other.completions,
            self.preemptions + other.preemptions,
        )

    def since(self, earlier: Self) -> "Counters":
        """The increase; all of it where a counter fell."""
        increase = Counters(
            self.arrivals - earlier.arrivals,
            self.rejects - earlier.rejects,
            self.completions - earlier.completions,
            self.preemptions - earlier.preemptions,
        )
        fell = min(increase.arrivals, increase.rejects, increase.completions, increase.preemptions) < 0
        return self if fell else increase


@dataclass(frozen=True)
class Sample:
    """One replica at one moment."""

    boot_id: str
    counters: Counters
    running: int
    waiting: int
    kv_blocks_used: int
    kv_blocks_total: int
    eta_seconds: float

    @classmethod
    def of(cls, report: LoadReport) -> Self:
        """From the body of GET /load."""
        return cls(
            boot_id=report.boot_id,
            counters=Counters(report.arrivals, report.rejects, report.completions, report.preemptions),
            running=report.running,
            waiting=report.waiting,
            kv_blocks_used=report.kv_blocks_used,
            kv_blocks_total=report.kv_blocks_total,
            eta_seconds=report.eta_seconds,
        )

    def increase_since(self, earlier: Self) -> Counters:
        """What happened on this replica in between."""
        return self.counters if self.boot_id != earlier.boot_id else self.counters.since(earlier.counters)


@dataclass(frozen=True)
class Round:
    """All replicas at one moment."""

    time: float  # seconds since the epoch
    ready: frozenset[str]  # replicas that serve: ready and not draining
    samples: Mapping[str, Sample]  # of those that answered; others are missing, never zero
    num_unschedulable: int = 0  # replicas no node has room for
    is_rolling_out: bool = False  # replicas of two templates exist
    failures: Mapping[str, str] = field(default_factory=dict)  # what the others answered instead

    @property
    def scale_up_factor(self) -> float:
        """Missing replicas count like the average of the others."""
        return len(self.ready) / len(self.samples) if self.samples else 0.0


@dataclass(frozen=True)
class Step:
    """What happened on one replica between two of its samples."""

    replica: str
    start: float
    end: float
    increase: Counters


@dataclass(frozen=True)
class Memory:
    """What the scaler carries from one decision to the next.

    `desired`, the times of changes, panic and strain survive a restart in the pool's status. `peaks` does
    not, on purpose: without it the first decision after a restart starts a new hold.
    """

    desired: int
    last_scale_up: float | None = None
    last_scale_down: float | None = None
    panic_until: float | None = None
    strain_per_second: float | None = None  # requests a second and replica at which a fleet at rest became too small
    strain_time: float | None = None  # when that was seen
    squeezed_since: float | None = None  # requests have been preempted since then although none waited
    squeezed_at: float | None = None  # the last time
    decided_at: float | None = None
    peaks: tuple[tuple[float, int], ...] = ()  # (time, replicas needed then): the maxima of the hold window, falling


@dataclass(frozen=True)
class History:
    """Recent rounds, oldest first, and the memory."""

    memory: Memory
    rounds: tuple[Round, ...] = field(default=())

    def add(self, newest: Round) -> "History":
        """With one more round, without those that no window reaches or that a clock set back left in the future."""
        kept = tuple(each for each in self.rounds if newest.time - KEEP_SECONDS < each.time < newest.time)
        return replace(self, rounds=(*kept, newest))

    def remember(self, memory: Memory) -> "History":
        """With the memory of a decision that was carried out."""
        return replace(self, memory=memory)

    def since(self, time: float) -> tuple[Round, ...]:
        """Rounds after that moment."""
        return tuple(each for each in self.rounds if each.time > time)

    def steps_since(self, time: float) -> Iterator[Step]:
        """Between each two consecutive samples of a replica of which the later is after that moment."""
        last: dict[str, tuple[float, Sample]] = {}
        for each in self.rounds:
            for name, sample in each.samples.items():
                if each.time > time and name in last:
                    then, earlier = last[name]
                    yield Step(name, then, each.time, sample.increase_since(earlier))
                last[name] = each.time, sample
