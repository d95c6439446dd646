"""How the prompt tokens of one step are shared: a floor to each prompt under way, then new ones, the rest to the first.

So a short prompt beside a huge one advances, and equal ones still finish one after the other. Guaranteed requests come
before spot ones in the rest. Made by the scheduler for every step.
"""

from tidegate_engine.request import Request

MAX_PARTIAL_PROMPTS = 4  # prompts left unfinished by a step; more would only hold blocks and delay each other
FLOOR_SHARE = 8  # each of them gets at least this part of the prompt budget: the first keeps more than half


class PromptShares:
    """Requests take a share in the order in which they come."""

    def __init__(self, budget: int, block_size: int) -> None:
        self.left = max(budget, 0)
        self.num_partial = 0
        self._num_partial_spot = 0
        self._floor = max(block_size, self.left // FLOOR_SHARE)
        self._shares: list[tuple[Request, int]] = []
        self._has_spot = False

    def has_place(self, request: Request) -> bool:
        """Whether a new one may take a share. Spot prompts under way do not keep a guaranteed one out."""
        if self.left <= 0:
            return False
        num_before = self.num_partial if request.is_spot else self.num_partial - self._num_partial_spot
        return num_before < MAX_PARTIAL_PROMPTS or not self.is_partial(request)

    def is_partial(self, request: Request) -> bool:
        """Whether its share would leave some of it to later steps."""
        return self._first_share(request) < _missing(request)

    def take(self, request: Request) -> None:
        share = self._first_share(request)
        is_partial = share < _missing(request)
        self._shares.append((request, share))
        self.left -= share
        self.num_partial += is_partial
        if request.is_spot:
            self._has_spot = True
            self._num_partial_spot += is_partial

    def with_rest(self) -> list[tuple[Request, int]]:
        """Every request with its prompt tokens of this step, if any."""
        if self._has_spot:
            self._shares.sort(key=lambda share: share[0].is_spot)
        shared = []
        for request, share in self._shares:
            more = min(_missing(request) - share, self.left)
            self.left -= more
            if share + more:
                shared.append((request, share + more))
        return shared

    def _first_share(self, request: Request) -> int:
        """All it misses if that completes it and everybody before is complete too; else the floor."""
        missing = _missing(request)
        if missing <= self.left and not self.num_partial:
            return missing
        return min(missing, self._floor, self.left)


def _missing(request: Request) -> int:
    return len(request.token_ids) - request.num_computed_tokens - request.num_hit_tokens
