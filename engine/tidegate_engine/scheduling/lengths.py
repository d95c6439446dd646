"""How long answers become, learned from those that ended: what forecasts expect, and what spot admission counts with.

The door asks for every request of a forecast, admission for spot requests; the engine reports every end. Hazards are
kept, not lengths: of all answers that got this far, which share ended within the next few tokens. That is what is asked
of a request under way, and it needs no special rule for answers cut off by max_tokens or by a client that left: they
count as far as they got. Old ends fade. Prompts of a similar length have a curve of their own where enough is known
about them, and lean on the curve of all where not: in real traffic the prompt's length tells much about the answer's.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple, Self

FORGETTING = 0.997  # the weight of an end halves after about 230 later ones of its kind
PRIOR_ENDS = 4.0  # so many answers of the usual length are believed in before any was seen
PARENT_ENDS = 3.0  # a curve with so many ends weighs as much as the curve it leans on
LONGEST = 1 << 21
GROWTH = 1.12  # width of a bucket of lengths: what is known is known to about a tenth
MOST_HAZARD = 0.999
FRESH_PART = 8  # a curve is made again when the one it leans on has seen this part more ends,
FRESH_ENDS = 32  # or so many more


def _edges() -> tuple[int, ...]:
    edges = [0]
    while edges[-1] < LONGEST:
        edges.append(max(edges[-1] + 1, int(edges[-1] * GROWTH)))
    return tuple(edges)


EDGES = _edges()  # bucket b holds lengths above EDGES[b], up to EDGES[b + 1]
NUM_BUCKETS = len(EDGES) - 1
CLASSES_AN_OCTAVE = 3  # prompts of a class differ in length by a quarter
NUM_PROMPT_CLASSES = 24 * CLASSES_AN_OCTAVE


@dataclass(frozen=True, slots=True)
class LengthCurve:
    """`hazards` by bucket; `cumulated[b]` is -log of the share of answers longer than EDGES[b]."""

    hazards: tuple[float, ...]
    cumulated: tuple[float, ...]

    @classmethod
    def of(cls, hazards: Sequence[float]) -> "LengthCurve":
        log1p = math.log1p
        steps = [-log1p(-hazard if hazard < MOST_HAZARD else -MOST_HAZARD) for hazard in hazards]
        return cls(tuple(hazards), tuple(accumulate(steps, initial=0.0)))

    def quantile(self, share: float, num_outputs: int, max_tokens: int) -> int:
        """Length that this share of the answers with `num_outputs` tokens so far do not exceed, within max_tokens."""
        wanted = self._cumulated_at(num_outputs) - math.log1p(-min(share, MOST_HAZARD))
        bucket = bisect_right(self.cumulated, wanted) - 1
        if bucket >= NUM_BUCKETS:
            return max_tokens
        within = (wanted - self.cumulated[bucket]) / (self.cumulated[bucket + 1] - self.cumulated[bucket])
        length = EDGES[bucket] + within * (EDGES[bucket + 1] - EDGES[bucket])
        return min(max(math.ceil(length), num_outputs + 1), max_tokens)

    def _cumulated_at(self, num_outputs: int) -> float:
        bucket = bisect_right(EDGES, num_outputs) - 1
        if bucket >= NUM_BUCKETS:
            return self.cumulated[-1]
        within = (num_outputs - EDGES[bucket]) / (EDGES[bucket + 1] - EDGES[bucket])
        return self.cumulated[bucket] + within * (self.cumulated[bucket + 1] - self.cumulated[bucket])


class _Ends:
    """Ends by bucket, fading, and the curve they give. Newer ends weigh more, which is the same as older ones less."""

    def __init__(self, parent_ends: float) -> None:
        self._parent_ends = parent_ends
        self._ended = [0.0] * NUM_BUCKETS
        self._cut_off = [0.0] * NUM_BUCKETS
        self._weight = 1.0
        self._curve: LengthCurve | None = None
        self._valid_until = 0.0
        self.num_ends = 0

    def add(self, num_outputs: int, *, is_cut_off: bool, weight: float = 1.0) -> None:
        counts = self._cut_off if is_cut_off else self._ended
        counts[_bucket(num_outputs)] += weight * self._weight
        self._curve = None
        self.num_ends += 1
        self._weight /= FORGETTING
        if self._weight > 1e9:
            self._ended = [count / self._weight for count in self._ended]
            self._cut_off = [count / self._weight for count in self._cut_off]
            self._weight = 1.0

    def copy(self) -> Self:
        twin = copy(self)
        twin._ended, twin._cut_off = self._ended.copy(), self._cut_off.copy()  # noqa: SLF001 - its own kind
        return twin

    def curve(self, parent: LengthCurve, num_parent_ends: int) -> LengthCurve:
        """Kept until an end is added, or many are to what it leans on: dozens of curves lean on one."""
        curve = self._curve
        if curve is None or num_parent_ends >= self._valid_until:
            curve = self._curve = LengthCurve.of(self._hazards(parent.hazards))
            self._valid_until = num_parent_ends + min(1 + num_parent_ends / FRESH_PART, FRESH_ENDS)
        return curve

    def _hazards(self, parent: Sequence[float]) -> list[float]:
        """Whoever was cut off inside a bucket was at risk for half of it."""
        leaned = self._parent_ends * self._weight
        hazards = [0.0] * NUM_BUCKETS
        got_further = 0.0
        for bucket in range(NUM_BUCKETS - 1, -1, -1):
            ended, cut_off = self._ended[bucket], self._cut_off[bucket]
            at_risk = got_further + ended + cut_off / 2
            hazards[bucket] = (ended + leaned * parent[bucket]) / (at_risk + leaned)
            got_further += ended + cut_off
        return hazards


class Progress(NamedTuple):
    """How far an answer has come that has not ended."""

    num_prompt_tokens: int
    num_outputs: int


class OutputLengths:
    """Written by the engine thread alone; any thread may ask, and gets a curve that no longer changes."""

    def __init__(self, usual_tokens: int) -> None:
        """`usual_tokens`: what the operator's user called the usual length; believed until ends were seen."""
        self._beyond_usual = LengthCurve.of(
            [
                -math.expm1(-4 * (end - start) / usual_tokens) if start >= usual_tokens else 0.0
                for start, end in pairwise(EDGES)
            ]
        )
        self._all = _Ends(parent_ends=0.5)
        self._all.add(usual_tokens, is_cut_off=False, weight=PRIOR_ENDS)
        self._by_prompt = [_Ends(PARENT_ENDS) for _ in range(NUM_PROMPT_CLASSES)]

    def observe(self, num_prompt_tokens: int, num_outputs: int, *, is_cut_off: bool) -> None:
        """An answer has ended; `is_cut_off` if by max_tokens, a client or a fault, and not of its own accord."""
        if num_outputs < 1:
            return
        self._all.add(num_outputs, is_cut_off=is_cut_off)
        self._by_prompt[_prompt_class(num_prompt_tokens)].add(num_outputs, is_cut_off=is_cut_off)

    def and_running(self, running: Iterable[Progress]) -> Self:
        """A copy that knows of those under way too: where few have ended so far, these are the short ones."""
        twin = copy(self)
        twin._all, twin._by_prompt = self._all.copy(), [ends.copy() for ends in self._by_prompt]  # noqa: SLF001
        for progress in running:
            twin.observe(*progress, is_cut_off=True)
        return twin

    def curve(self, num_prompt_tokens: int) -> LengthCurve:
        """Lengths of the answers to prompts about as long as this."""
        of_all = self._all.curve(self._beyond_usual, num_parent_ends=0)
        return self._by_prompt[_prompt_class(num_prompt_tokens)].curve(of_all, self._all.num_ends)


def _bucket(num_outputs: int) -> int:
    return min(bisect_right(EDGES, num_outputs - 1) - 1, NUM_BUCKETS - 1)


def _prompt_class(num_prompt_tokens: int) -> int:
    return min(int(CLASSES_AN_OCTAVE * math.log2(max(1, num_prompt_tokens))), NUM_PROMPT_CLASSES - 1)
