"""A few seconds of what `make soak` does for half an hour, and the soak's own eyes."""

import asyncio

from soak.clients import Judgement
from soak.memory import MIB, is_flat
from soak.run import Soak, soak


def test_mixed_load_loses_no_accepted_request_breaks_no_invariant_and_leaves_no_block_held():
    result = asyncio.run(soak(seconds=8.0, seed=1))
    assert result.faults(is_long=False) == []
    assert result.judgement.seen["streams"] > 0


def test_memory_that_creeps_up_is_not_flat_and_a_warm_up_is_forgiven():
    assert is_flat([100 * MIB] * 30 + [150 * MIB] * 70)
    assert not is_flat([(100 + sample) * MIB for sample in range(100)])


def test_two_answers_to_one_question_and_blocks_left_behind_are_faults():
    judgement = Judgement()
    judgement.same_answer("q", "a")
    judgement.same_answer("q", "b")
    seen = Soak(judgement, [MIB], {"running": 0, "waiting": 0, "kvBlocksUsed": 3}, exit_code=0)
    assert len(seen.faults(is_long=False)) == 2
