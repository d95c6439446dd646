"""Who runs, and what the pool still owes them: the memory side of admission.

The scheduler moves requests in and out; the peak formula is asked here, with the claims of those who run.
"""

from tidegate_core.kv_demand import KvDemand
from tidegate_engine.request import Request, ServiceClass
from tidegate_engine.scheduling.admission import Claim, peak_blocks
from tidegate_engine.scheduling.bypass import BlockedHead
from tidegate_engine.scheduling.lengths import OutputLengths
from tidegate_engine.scheduling.skyline import Place, Skyline
from tidegate_engine.scheduling.spot import Expectations, expected_claim

LIKELY_SHARE = 0.5  # of answers are no longer than what a blocked head's likely start is computed with


class Running:
    """By request id, in the order of their admission; `spot` holds those of both others that may be preempted."""

    def __init__(self, num_blocks: int, kv: KvDemand, lengths: OutputLengths) -> None:
        self.all: tuple[Request, ...] = ()  # replaced, never changed: other threads may read it
        self.decoding: dict[str, Request] = {}
        self.prefilling: dict[str, Request] = {}
        self.spot: dict[str, Request] = {}
        self.num_steps = 0
        self._num_blocks = num_blocks
        self._kv = kv
        self._lengths = lengths
        self._expected, self._likely = Expectations(lengths), Expectations(lengths, LIKELY_SHARE)
        self._skyline = Skyline(kv)  # of guaranteed requests that decode
        self._places: dict[str, Place] = {}
        self._blocks_at_end = dict.fromkeys(ServiceClass, 0)  # if each request reaches its max_tokens

    @property
    def blocks_at_end(self) -> int:
        """What those who run hold at most, each at its own end; blocks in common are counted for each."""
        return sum(self._blocks_at_end.values())

    def get(self, request_id: str) -> Request | None:
        return self.decoding.get(request_id) or self.prefilling.get(request_id)

    def add(self, request: Request) -> None:
        self.prefilling[request.request_id] = request
        if request.is_spot:
            self.spot[request.request_id] = request
        self._blocks_at_end[request.terms.service_class] += self._end_blocks(request)
        self._publish()

    def begin_decoding(self, request: Request) -> None:
        """Its first token was sampled: from the next step on it gets one a step."""
        name = request.request_id
        self.decoding[name] = self.prefilling.pop(name)
        if not request.is_spot:
            place = self._places[name] = Place.of(claim_of(request), self.num_steps + 1)
            self._skyline.add(place)

    def remove(self, request: Request) -> None:
        name = request.request_id
        self.decoding.pop(name, None)
        self.prefilling.pop(name, None)
        self.spot.pop(name, None)
        self._expected.forget(request)
        self._likely.forget(request)
        if place := self._places.pop(name, None):
            self._skyline.remove(place)
        self._blocks_at_end[request.terms.service_class] -= self._end_blocks(request)
        self._publish()

    def fits_in_full(self, candidate: Request) -> bool:
        """Whether everybody could reach max_tokens at once. Spot requests matter only to a spot request."""
        num_blocks = self._end_blocks(candidate) + self._blocks_at_end[ServiceClass.GUARANTEED]
        if candidate.is_spot:
            num_blocks += self._blocks_at_end[ServiceClass.SPOT]
        return num_blocks <= self._num_blocks

    def lacking_blocks(self, candidate: Request, *, is_partial: bool) -> int:
        """By the peak formula: for a spot candidate with everybody as long as is expected, else with max_tokens.

        A candidate whose whole prompt is in this step is in lockstep from now on.
        Unless it holds more in this step than in the next: then it is counted like a prompt that takes longer.
        """
        kv, num_blocks = self._kv, self._num_blocks
        is_partial |= kv.prefilling_blocks(candidate.num_tokens) > kv.decoding_blocks(candidate.num_tokens)
        most = self._expected_peak if candidate.is_spot else self._guaranteed_peak
        return most(candidate, is_partial=is_partial) - num_blocks

    def _guaranteed_peak(self, candidate: Request, *, is_partial: bool) -> int:
        prefilling = [claim_of(request) for request in self.prefilling.values() if not request.is_spot]
        claim = claim_of(candidate)
        if is_partial:
            return self._skyline.peak(self.num_steps, None, [*prefilling, claim])
        return self._skyline.peak(self.num_steps, claim, prefilling)

    def _expected_peak(self, candidate: Request, *, is_partial: bool) -> int:
        prefilling = [expected_claim(request, self._lengths) for request in self.prefilling.values()]
        decoding = self._expected.claims(self.decoding.values())
        claim = expected_claim(candidate, self._lengths)
        if is_partial:
            prefilling.append(claim)
        else:
            decoding.append(claim)
        return peak_blocks(decoding, prefilling, self._kv, at_least=self._num_blocks)

    def steps_until_fewer(self, num_lacking: int) -> int:
        """Steps before which the verdict cannot change: whoever starts later holds less when the others end.

        That is a block less for every `block_size` steps (at once for the first), in each KV group of the candidate
        and of each prompt.
        """
        num_growing = len(self._kv.windows) * (1 + len(self.prefilling))
        blocks_each = -(-num_lacking // num_growing)
        return (blocks_each - 1) * self._kv.block_size + 1

    def blocked_at_most(self, head: Request) -> BlockedHead:
        """If everybody goes on to max_tokens."""
        skyline, now = self._skyline.copy(), self.num_steps
        for request in self.prefilling.values():
            if not request.is_spot:
                skyline.add(Place.of(claim_of(request), now))
        return BlockedHead.at(claim_of(head), skyline.instants(now), self._num_blocks, self._kv)

    def blocked_as_likely(self, head: Request) -> BlockedHead:
        """If answers are as long as is likely."""
        claims = self._likely.claims(request for request in self.decoding.values() if not request.is_spot)
        for request in self.prefilling.values():
            if not request.is_spot:
                claims.append(expected_claim(request, self._lengths, LIKELY_SHARE))
        return BlockedHead.of(claim_of(head), claims, self._num_blocks, self._kv)

    def _end_blocks(self, request: Request) -> int:
        return self._kv.prefilling_blocks(request.num_kv_tokens_at_end)

    def _publish(self) -> None:
        self.all = (*self.decoding.values(), *self.prefilling.values())


def claim_of(request: Request) -> Claim:
    held = len(request.token_ids) - 1
    return Claim(request.num_kv_tokens_at_end - held, held)
