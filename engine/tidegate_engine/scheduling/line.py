"""The order in which requests of one service class start: who was preempted, then tenant, priority, arrival.

    preempted   r7 r9                                    they were running already
    tenant a    priority 0: r1 r4 r5  priority 5: r3     the tenant with the smallest counter goes next, and within it
    tenant b    priority 0: r2                           the most urgent, of those the first come

Priority comes after the tenant, so nobody gets ahead of others by calling everything urgent.
RequestQueue has a line for each class and calls it under its lock. Counters and arrivals only grow, so what the heap
says about a lane is never too much: its top is looked at again and sunk until it is true. O(log lanes) amortized.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tidegate_engine.request import Request
from tidegate_engine.scheduling.fairness import OUTPUT_WEIGHT, PROMPT_WEIGHT, TenantAccount

USUAL_OUTPUT_TOKENS = 256  # what an answer is taken to cost its tenant when the order to come is played forward


class Turn(NamedTuple):
    """What lanes are sorted by. Arrivals are unique, so no two are equal."""

    virtual_tokens: int
    priority: int
    arrival: int


@dataclass(eq=False)
class Lane:
    """Requests of one tenant and priority, first come first."""

    priority: int
    account: TenantAccount
    arrivals: OrderedDict[str, tuple[int, Request]]

    def turn(self) -> Turn:
        arrival, _ = next(iter(self.arrivals.values()))
        return Turn(self.account.virtual_tokens, self.priority, arrival)

    def requests(self) -> Iterator[Request]:
        return (request for _, request in self.arrivals.values())


class Line:
    """Waiting requests of one class."""

    def __init__(self) -> None:
        self._preempted: OrderedDict[str, Request] = OrderedDict()
        self._lanes: dict[tuple[int, str], Lane] = {}
        self._heap: list[tuple[Turn, Lane]] = []
        self._lane_of: dict[str, Lane] = {}
        self._num_arrived = 0

    def add(self, request: Request, account: TenantAccount) -> None:
        key = (request.terms.priority, request.terms.tenant)
        lane = self._lanes.get(key)
        self._num_arrived += 1
        arrival = (self._num_arrived, request)
        if lane is None:
            lane = self._lanes[key] = Lane(request.terms.priority, account, OrderedDict({request.request_id: arrival}))
            heapq.heappush(self._heap, (lane.turn(), lane))
        else:
            lane.arrivals[request.request_id] = arrival
        self._lane_of[request.request_id] = lane

    def put_back(self, request: Request) -> None:
        """Before everybody: the last one preempted had been running longest."""
        self._preempted[request.request_id] = request
        self._preempted.move_to_end(request.request_id, last=False)

    def remove(self, request_id: str) -> Request | None:
        lane = self._lane_of.pop(request_id, None)
        if lane is None:
            return self._preempted.pop(request_id, None)
        _, request = lane.arrivals.pop(request_id)
        if not lane.arrivals:
            del self._lanes[lane.priority, lane.account.tenant]
            self._drop_empty_lanes()
        return request

    def head(self) -> Request | None:
        if self._preempted:
            return next(iter(self._preempted.values()))
        lane = self._next_lane()
        return next(lane.requests()) if lane else None

    def first(self, num_requests: int) -> list[Request]:
        """The head and some of those behind it, in order of their lanes as these stand now."""
        found = list(self._preempted.values())[:num_requests]
        lanes = []
        while len(found) < num_requests and (lane := self._next_lane()):
            lanes.append(heapq.heappop(self._heap))
            found += lane.requests()
        for each in lanes:
            heapq.heappush(self._heap, each)
        return found[:num_requests]

    def order(self) -> list[Request]:
        """Everybody in the order in which they will start, if each costs its tenant the usual answer."""
        by_tenant: dict[str, list[Lane]] = {}
        for lane in self._lanes.values():
            by_tenant.setdefault(lane.account.tenant, []).append(lane)
        tenants = [sorted(lanes, key=Lane.turn) for lanes in by_tenant.values()]
        return [*self._preempted.values(), *_played_forward(tenants)]

    def _next_lane(self) -> Lane | None:
        while self._heap:
            recorded, lane = self._heap[0]
            if not lane.arrivals:
                heapq.heappop(self._heap)
                continue
            turn = lane.turn()
            if turn == recorded:
                return lane
            heapq.heapreplace(self._heap, (turn, lane))
        return None

    def _drop_empty_lanes(self) -> None:
        """They leave the heap at its top; before too many are buried in it, it is made anew."""
        if len(self._heap) > 2 * len(self._lanes) + 64:
            self._heap = [entry for entry in self._heap if entry[1].arrivals]
            heapq.heapify(self._heap)


def _played_forward(tenants: list[list[Lane]]) -> Iterator[Request]:
    """From each tenant's lanes, most urgent first: whose turn it is, charged, again and again."""
    if len(tenants) == 1:
        for lane in tenants[0]:
            yield from lane.requests()
        return
    upcoming = []
    for lanes in tenants:
        waiting = _in_order(lanes)
        upcoming.append((lanes[0].account.virtual_tokens, *next(waiting), waiting))
    heapq.heapify(upcoming)
    while upcoming:
        virtual_tokens, _, _, request, waiting = upcoming[0]
        yield request
        behind = next(waiting, None)
        if behind is None:
            heapq.heappop(upcoming)
        else:
            heapq.heapreplace(upcoming, (virtual_tokens + _usual_cost(request), *behind, waiting))


def _in_order(lanes: list[Lane]) -> Iterator[tuple[int, int, Request]]:
    """(priority, arrival, request) of one tenant."""
    return ((lane.priority, arrival, request) for lane in lanes for arrival, request in lane.arrivals.values())


def _usual_cost(request: Request) -> int:
    num_outputs = min(request.sampling.max_tokens, USUAL_OUTPUT_TOKENS)
    return PROMPT_WEIGHT * request.num_prompt_tokens + OUTPUT_WEIGHT * num_outputs
