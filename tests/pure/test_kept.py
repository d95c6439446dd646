"""What is kept of the cluster for all pools: how old it may be, and what becomes of it at a fault."""

import asyncio
import logging

import pytest

from tidegate_operator.errors import Forbidden, KubeError, NotFound, ServerFault, Unreachable
from tidegate_operator.world.kept import RETRY_SECONDS, Kept, Sight

TTL_SECONDS = 60.0


class Asked:
    """A clock, and a reader that answers what it is told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.num_reads = 0
        self.answer: int | KubeError = 1
        self.kept = Kept("things", self._read, clock=lambda: self.now)

    async def _read(self) -> int:
        self.num_reads += 1
        await asyncio.sleep(0)
        if isinstance(self.answer, KubeError):
            raise self.answer
        return self.answer

    def look(self, seconds_later: float = 0.0) -> Sight[int]:
        self.now += seconds_later
        return asyncio.run(self.kept.sight(TTL_SECONDS))


def test_many_that_ask_share_one_look() -> None:
    asked = Asked()

    async def ask() -> None:
        await asyncio.gather(*(asked.kept.sight(TTL_SECONDS) for _ in range(10)))

    asyncio.run(ask())
    assert asked.num_reads == 1


def test_a_fault_leaves_what_was_known_and_is_tried_again_soon() -> None:
    asked = Asked()
    assert (asked.look().value, asked.num_reads) == (1, 1)
    asked.answer = ServerFault("later", 500)
    assert asked.look(TTL_SECONDS + 1).value == 1
    asked.answer = 2
    assert (asked.look(RETRY_SECONDS - 1).value, asked.num_reads) == (1, 2), "it is not asked without end either"
    assert (asked.look(2).value, asked.num_reads) == (2, 3)


@pytest.mark.parametrize("fault", [NotFound("no such API", 404), Forbidden("no", 403)])
def test_a_no_ends_what_was_known_and_stands_as_long_as_a_yes(fault: KubeError) -> None:
    asked = Asked()
    asked.look()
    asked.answer = fault
    sight = asked.look(TTL_SECONDS + 1)
    assert (sight.value, sight.fault, sight.is_answer) == (None, fault, True)
    asked.look(TTL_SECONDS - 1)
    assert asked.num_reads == 2


def test_a_fault_is_said_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    asked = Asked()
    asked.look()
    for answer in (ServerFault("later", 500), Unreachable("nobody"), Forbidden("no", 403), 2, 2):
        asked.answer = answer
        asked.look(TTL_SECONDS + 1)
    assert [record.getMessage() for record in caplog.records if "things" in record.getMessage()] == [
        "things are as they were last known: later",
        "things are not looked at: no",
        "things are looked at",
    ]
