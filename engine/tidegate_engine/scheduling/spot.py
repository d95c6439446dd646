"""Spot requests: what they are expected to hold, and who of them gives way.

A spot request is admitted as if every answer, its own and those of guaranteed requests, became as long as is expected:
into memory that guaranteed requests may claim but mostly never use. When they do, or when answers become longer, the
spot request that started last is preempted: its blocks go back, it waits at the head of its class, and its tokens are
computed again. Each preemption doubles what is expected of it, so that it comes back only where it has room to stay.
"""

from collections.abc import Iterable

from tidegate_engine.request import Request
from tidegate_engine.scheduling.admission import Claim
from tidegate_engine.scheduling.lengths import OutputLengths

BELIEVED_TOKENS = 16
NOTHING_KNOWN = (0, 0)
EXPECTED_SHARE = 0.9  # of answers are no longer than what a spot request is admitted with


def expected_claim(request: Request, lengths: OutputLengths, share: float = EXPECTED_SHARE) -> Claim:
    """As if its answer ended where this share of such answers does."""
    num_outputs = request.num_outputs
    length = lengths.curve(request.num_prompt_tokens).quantile(share, num_outputs, request.sampling.max_tokens)
    left = (length - num_outputs) << request.num_preemptions
    return Claim(max(1, min(left, request.num_outputs_left)), request.num_tokens - 1)


class Expectations:
    """Claims of requests that decode, as plain pairs, each as if its answer ended where this share of such ones does.

    How many tokens are left changes little with every token, so it is looked up again after a few of them.
    """

    def __init__(self, lengths: OutputLengths, share: float = EXPECTED_SHARE) -> None:
        self._lengths = lengths
        self._share = share
        self._known: dict[str, tuple[int, int]] = {}  # tokens still expected, and from which output on anew

    def claims(self, requests: Iterable[Request]) -> list[tuple[int, int]]:
        """Of requests that decode."""
        claims, known = [], self._known
        for request in requests:
            num_tokens = len(request.token_ids)
            num_outputs = num_tokens - request.num_prompt_tokens
            left, believed_until = known.get(request.request_id, NOTHING_KNOWN)
            if num_outputs >= believed_until:
                left = expected_claim(request, self._lengths, self._share).left
                known[request.request_id] = left, num_outputs + BELIEVED_TOKENS
            most = request.num_kv_tokens_at_end + 1 - num_tokens
            claims.append((left if left < most else most, num_tokens - 1))  # noqa: FURB136 - faster
        return claims

    def forget(self, request: Request) -> None:
        self._known.pop(request.request_id, None)


def next_victim(running: Iterable[Request]) -> Request:
    """Of these spot requests: the least urgent, and of those the one that was first started last."""
    return max(running, key=lambda request: (request.terms.priority, request.start_number or 0))
