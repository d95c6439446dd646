"""Leader election over an API server that can be cut off: never two leaders at once, and always one in the end."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from tidegate_operator.control.election import Elector, LeaseTiming
from tidegate_operator.errors import Conflict, NotFound, Unreachable
from tidegate_operator.kube import ApiServer
from tidegate_operator.resources import Manifest, Resource

TIMING = LeaseTiming(duration_seconds=15, renew_deadline_seconds=10, retry_seconds=2)


class Clock:
    """Moves only when told."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class LeaseServer:
    """One Lease with its optimistic lock."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0

    def store(self, spec: Manifest) -> dict[str, Any]:
        self.version += 1
        self.lease = {"metadata": {"resourceVersion": str(self.version)}, "spec": dict(spec)}
        return self.lease


class Client(ApiServer):
    """One operator's way to it."""

    def __init__(self, server: LeaseServer) -> None:
        self.server = server
        self.is_cut_off = False
        self.loses_answers = False

    def _reach(self) -> None:
        if self.is_cut_off:
            raise Unreachable("cut off")

    async def get(self, _resource: Resource, _namespace: str | None, _name: str) -> Manifest | None:
        self._reach()
        return None if self.server.lease is None else dict(self.server.lease)

    async def create(self, manifest: Manifest) -> Manifest:
        self._reach()
        if self.server.lease is not None:
            raise Conflict("exists")
        return self.server.store(manifest["spec"])

    async def patch(self, _resource: Resource, _namespace: str, _name: str, patch: Manifest) -> Manifest:
        self._reach()
        if self.server.lease is None:
            raise NotFound("gone")
        if patch["metadata"]["resourceVersion"] != self.server.lease["metadata"]["resourceVersion"]:
            raise Conflict("another was faster")
        stored = self.server.store({**self.server.lease["spec"], **patch["spec"]})
        if self.loses_answers:
            raise Unreachable("the answer was lost")
        return stored


def elector(server: LeaseServer, identity: str, clock: Callable[[], float]) -> tuple[Elector, Client]:
    client = Client(server)
    return Elector(client, "system", "operator", identity, TIMING, clock), client


def attempt(candidate: Elector) -> bool:
    return asyncio.run(candidate._try())


def test_the_first_leads_and_the_second_waits_for_the_whole_duration_by_its_own_clock() -> None:
    server, ours, theirs = LeaseServer(), Clock(), Clock(1_000_000)
    (first, _), (second, _) = elector(server, "first", ours), elector(server, "second", theirs)
    assert attempt(first)
    assert not attempt(second)
    theirs.now += 14.9
    assert not attempt(second)
    theirs.now += 0.1
    assert attempt(second)
    ours.now += 15
    assert not first.is_leading
    assert not attempt(first)


def test_whoever_stands_by_says_for_whom_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    server, clock = LeaseServer(), Clock()
    server.store({"holderIdentity": "a-stranger", "leaseDurationSeconds": 2_147_483_647})
    ours, _ = elector(server, "ours", clock)
    assert [attempt(ours) for _ in range(3)] == [False] * 3
    assert caplog.text.count("a-stranger holds the lease system/operator: standing by") == 1


def test_a_leader_that_cannot_renew_stops_before_anybody_else_may_begin() -> None:
    server, clock = LeaseServer(), Clock()
    (first, client), (second, _) = elector(server, "first", clock), elector(server, "second", clock)
    assert attempt(first)
    client.is_cut_off = True
    leaders = []
    for _ in range(200):
        clock.now += 0.1
        attempt(first)
        attempt(second)
        leaders.append((first.is_leading, second.is_leading))
    assert (True, True) not in leaders
    assert leaders[0] == (True, False)
    assert leaders[-1] == (False, True)


def test_a_renewal_whose_answer_was_lost_counts_as_none_and_the_lease_stays_ours() -> None:
    server, clock = LeaseServer(), Clock()
    first, client = elector(server, "first", clock)
    assert attempt(first)
    client.loses_answers = True
    clock.now += 5
    assert not attempt(first)
    assert first.is_leading, "the deadline of the first one has not passed"
    client.loses_answers = False
    clock.now += 4
    assert attempt(first)


def test_a_released_lease_is_free_at_once_and_the_next_term_is_counted() -> None:
    server, clock = LeaseServer(), Clock()
    (first, _), (second, _) = elector(server, "first", clock), elector(server, "second", clock)
    assert attempt(first)
    assert not attempt(second)
    asyncio.run(first.release())
    assert not first.is_leading
    assert attempt(second)
    assert server.lease is not None
    assert (server.lease["spec"]["holderIdentity"], server.lease["spec"]["leaseTransitions"]) == ("second", 1)


def test_a_lease_that_another_has_taken_is_not_released() -> None:
    server, clock = LeaseServer(), Clock()
    (first, _), (second, _) = elector(server, "first", clock), elector(server, "second", Clock(100))
    attempt(first)
    server.store({"holderIdentity": "second", "leaseDurationSeconds": 15})
    asyncio.run(first.release())
    assert server.lease is not None
    assert server.lease["spec"]["holderIdentity"] == "second"
    assert not second.is_leading


def test_of_two_that_find_the_lease_free_one_leads() -> None:
    server, clock = LeaseServer(), Clock()
    (first, _), (second, _) = elector(server, "first", clock), elector(server, "second", clock)

    async def together() -> list[bool]:
        return list(await asyncio.gather(first._try(), second._try()))

    assert sorted(asyncio.run(together())) == [False, True]


def test_a_deleted_lease_is_made_again() -> None:
    server, clock = LeaseServer(), Clock()
    first, _ = elector(server, "first", clock)
    attempt(first)
    server.lease = None
    clock.now += 2
    assert attempt(first)
    assert first.is_leading


@pytest.mark.parametrize("seed", range(30))
def test_whoever_is_cut_off_and_however_clocks_differ_two_never_lead(seed: int) -> None:
    """Clocks of three operators start anywhere and run at one pace; links break and heal at random."""
    rng = random.Random(seed)
    server = LeaseServer()
    clocks = [Clock(rng.uniform(0, 1e6)) for _ in range(3)]
    pairs = [elector(server, f"operator {number}", clock) for number, clock in enumerate(clocks)]
    led: set[str] = set()
    loop = asyncio.new_event_loop()
    for step in range(1500):
        for clock in clocks:
            clock.now += 0.2
        for candidate, client in pairs:
            if rng.random() < 0.02:
                client.is_cut_off, client.loses_answers = rng.random() < 0.5, rng.random() < 0.3
            if rng.random() < 0.1:
                loop.run_until_complete(candidate._try())
        leading = [candidate.identity for candidate, _ in pairs if candidate.is_leading]
        assert len(leading) <= 1, (step, leading)
        led |= set(leading)
    loop.close()
    assert len(led) > 1, "leadership moved"
