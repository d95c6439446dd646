"""Who runs, and what the pool still owes them: the memory side of admission.

The scheduler moves requests in and out; the peak formula is asked here, with the claims of those who run.
"""

from collections.abc import Sequence

from tidegate_core.kv_demand import KvDemand
from tidegate_engine.request import Request, ServiceClass
from tidegate_engine.scheduling.admission import Claim, peak_blocks
from tidegate_engine.scheduling.bypass import BlockedHead
from tidegate_engine.scheduling.lengths import OutputLengths
from tidegate_engine.scheduling.shared_blocks import Changes, SharedBlocks
from tidegate_engine.scheduling.skyline import Place, Prompt, Skyline
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
        self.shared = SharedBlocks()  # of guaranteed requests
        self._growing_groups = [group for group, window in enumerate(kv.windows) if window is None]
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
        else:
            self._count_less(self.shared.join(request.request_id, self.growing_blocks(request.block_tables)))
        self._blocks_at_end[request.terms.service_class] += self._end_blocks(request)
        self._publish()

    def begin_decoding(self, request: Request) -> None:
        """Its first token was sampled: from the next step on it gets one a step."""
        name = request.request_id
        self.decoding[name] = self.prefilling.pop(name)
        if not request.is_spot:
            claim, now = claim_of(request), self.num_steps + 1
            self._count_less(self.shared.decode(name, now + claim.left))
            place = self._places[name] = Place.of(claim, now, self.shared.num_shared(name))
            self._skyline.add(place)

    def keep(self, request: Request, first_block: int, end_block: int) -> None:
        """The prefix cache was told of these blocks of its tables: others may hit them from now on."""
        if not request.is_spot:
            tables = [table[first_block:end_block] for table in request.block_tables]
            self.shared.hold(request.request_id, self.growing_blocks(tables))

    def remove(self, request: Request) -> None:
        name = request.request_id
        self.decoding.pop(name, None)
        self.prefilling.pop(name, None)
        self.spot.pop(name, None)
        self._expected.forget(request)
        self._likely.forget(request)
        if place := self._places.pop(name, None):
            self._skyline.remove(place)
        if not request.is_spot:
            self._count_less(self.shared.leave(name))
        self._blocks_at_end[request.terms.service_class] -= self._end_blocks(request)
        self._publish()

    @property
    def knows_last_holders(self) -> bool:
        """Of shared blocks: not while a prompt may be among the holders, whose end is known when it is computed."""
        return not self.shared.total or all(request.is_spot for request in self.prefilling.values())

    def growing_blocks(self, tables: Sequence[tuple[int, ...]]) -> list[int]:
        """Of the KV groups that see everything: these are held to the end."""
        return [block for group in self._growing_groups for block in tables[group]] if tables else []

    def fits_in_full(self, candidate: Request) -> bool:
        """Whether everybody could reach max_tokens at once. Spot requests matter only to a spot request."""
        num_blocks = self._end_blocks(candidate) + self._blocks_at_end[ServiceClass.GUARANTEED] - self.shared.total
        if candidate.is_spot:
            num_blocks += self._blocks_at_end[ServiceClass.SPOT]
        return num_blocks <= self._num_blocks

    def lacking_blocks(self, candidate: Request, hit: Sequence[tuple[int, ...]], *, is_partial: bool) -> int:
        """By the peak formula: for a spot candidate with everybody as long as is expected, else with max_tokens.

        A candidate whose whole prompt is in this step is in lockstep from now on.
        Unless it holds more in this step than in the next: then it is counted like a prompt that takes longer.
        `hit`: tables of what the prefix cache has for it.
        """
        kv, num_blocks = self._kv, self._num_blocks
        is_partial |= kv.prefilling_blocks(candidate.num_tokens) > kv.decoding_blocks(candidate.num_tokens)
        if candidate.is_spot:
            return self._expected_peak(candidate, is_partial=is_partial) - num_blocks - self.shared.total
        claim, prompts = claim_of(candidate), self._prompts()
        credited = self.shared.credits(self.growing_blocks(hit))
        if is_partial:
            return self._skyline.peak(self.num_steps, None, [*prompts, Prompt(claim)], credited) - num_blocks
        return self._skyline.peak(self.num_steps, claim, prompts, credited) - num_blocks

    def _prompts(self) -> list[Prompt]:
        guaranteed = [request for request in self.prefilling.values() if not request.is_spot]
        return [Prompt(claim_of(request), self.shared.num_shared(request.request_id)) for request in guaranteed]

    def _expected_peak(self, candidate: Request, *, is_partial: bool) -> int:
        prefilling = [expected_claim(request, self._lengths) for request in self.prefilling.values()]
        decoding = self._expected.claims(self.decoding.values())
        claim = expected_claim(candidate, self._lengths)
        if is_partial:
            prefilling.append(claim)
        else:
            decoding.append(claim)
        return peak_blocks(decoding, prefilling, self._kv, at_least=self._num_blocks + self.shared.total)

    def steps_until_fewer(self, num_lacking: int) -> int:
        """Steps before which the verdict cannot change: whoever starts later holds less when the others end.

        That is a block less for every `block_size` steps (at once for the first), in each KV group of the candidate
        and of each prompt.
        """
        num_growing = len(self._kv.windows) * (1 + len(self.prefilling))
        blocks_each = -(-num_lacking // num_growing)
        return (blocks_each - 1) * self._kv.block_size + 1

    def blocked_at_most(self, head: Request, hit: Sequence[tuple[int, ...]]) -> BlockedHead:
        """If everybody goes on to max_tokens."""
        skyline, now = self._skyline.copy(), self.num_steps
        for claim, num_shared in self._prompts():
            skyline.add(Place.of(claim, now, num_shared))
        instants = skyline.instants(now)
        return BlockedHead.at(claim_of(head), instants, self._num_blocks, self._kv, num_shared=self._num_credited(hit))

    def blocked_as_likely(self, head: Request, hit: Sequence[tuple[int, ...]]) -> BlockedHead:
        """If answers are as long as is likely."""
        claims = self._likely.claims(request for request in self.decoding.values() if not request.is_spot)
        for request in self.prefilling.values():
            if not request.is_spot:
                claims.append(expected_claim(request, self._lengths, LIKELY_SHARE))
        num_blocks = self._num_blocks + self.shared.total
        return BlockedHead.of(claim_of(head), claims, num_blocks, self._kv, num_shared=self._num_credited(hit))

    def _num_credited(self, hit: Sequence[tuple[int, ...]]) -> int:
        return sum(credit.num_blocks for credit in self.shared.credits(self.growing_blocks(hit)))

    def _count_less(self, changes: Changes) -> None:
        for name, num_blocks in changes.items():
            place = self._places.get(name)
            if place and num_blocks:
                self._places[name] = self._skyline.count_less(place, num_blocks)

    def _end_blocks(self, request: Request) -> int:
        return self._kv.prefilling_blocks(request.num_kv_tokens_at_end)

    def _publish(self) -> None:
        self.all = (*self.decoding.values(), *self.prefilling.values())


def claim_of(request: Request) -> Claim:
    held = len(request.token_ids) - 1
    return Claim(request.num_kv_tokens_at_end - held, held)
