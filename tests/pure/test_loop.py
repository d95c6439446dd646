"""The engine on its thread, seen from an event loop: streams, cancels, drain, stop and failure."""

import asyncio
import gc
import math
import re
import threading
import weakref
from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shapes import full_layers, shape_of, window_layers
from tidegate_core.accelerator import Device
from tidegate_core.kv_groups import kv_groups
from tidegate_core.sizing import BlockPlan, Demand, Target, plan_blocks
from tidegate_core.telemetry import EngineSizing
from tidegate_engine.counters import Counters
from tidegate_engine.errors import BadRequest, Draining, EngineFailed, NeverFits, QueueFull
from tidegate_engine.loop import EngineLoop, LoopSettings
from tidegate_engine.request import FinishReason, Request, SamplingParams
from tidegate_engine.runner import RowOutput, Runner, StepBatch
from tidegate_engine.scheduling.step_fit import StepTime
from tidegate_engine.sim import SimRunner, SimSettings
from tidegate_engine.stream import Stream
from waiting import eventually_async

NUM_BLOCKS = 400
LIMITS = LoopSettings(max_queue=200, max_wait_seconds=600.0)


def loop_of(
    runner: Runner | None = None,
    *,
    slots: int = 16,
    settings: LoopSettings = LIMITS,
    context: int = 2048,
    num_blocks: int = NUM_BLOCKS,
    kv_windows: tuple[int | None, ...] = (None,),
) -> EngineLoop:
    counters = Counters()
    instant = SimSettings(num_blocks=num_blocks, kv_windows=kv_windows, step_time=StepTime(0.0))
    sizing = EngineSizing(
        context=context,
        slots=slots,
        kv_blocks_total=num_blocks,
        block_size=16,
        kv_bytes=1,
        weight_bytes=1,
        resident_bytes=1,
    )
    return EngineLoop(
        runner=runner or SimRunner(instant, counters=counters), sizing=sizing, settings=settings, counters=counters
    )


class GatedRunner(SimRunner):
    """Steps wait until the test opens the gate."""

    def __init__(self) -> None:
        super().__init__(SimSettings(num_blocks=NUM_BLOCKS, step_time=StepTime(0.0)), counters=Counters())
        self.gate = threading.Event()
        self.num_steps = 0

    def run(self, batch: StepBatch) -> tuple[RowOutput | None, ...]:
        assert self.gate.wait(30)
        self.num_steps += 1
        return super().run(batch)


class BrokenRunner(GatedRunner):
    def run(self, batch: StepBatch) -> tuple[RowOutput | None, ...]:
        super().run(batch)
        raise RuntimeError("device lost")


def submit(loop: EngineLoop, name: str, num_prompt: int = 40, max_tokens: int = 20) -> Stream:
    return loop.submit(name, [1] * num_prompt, SamplingParams(max_tokens))


async def read(stream: Stream) -> tuple[int, FinishReason]:
    """Number of tokens, and the reason of the last chunk, the only one that has one."""
    chunks = [chunk async for chunk in stream]
    assert all(chunk.finish_reason is None for chunk in chunks[:-1])
    assert chunks[-1].finish_reason
    return sum(len(chunk.token_ids) for chunk in chunks), chunks[-1].finish_reason


async def finished(loop: EngineLoop) -> None:
    await eventually_async(lambda: loop.is_idle, what="every request ended")


def test_fifty_concurrent_streams_complete():
    async def scenario():
        loop = loop_of()
        loop.start()
        answers = await asyncio.gather(*(read(submit(loop, f"r{i}", 40 + 7 * i, 10 + i)) for i in range(50)))
        assert answers == [(10 + i, FinishReason.LENGTH) for i in range(50)]
        report = loop.load()
        assert (report.arrivals, report.completions, report.rejects) == (50, 50, 0)
        assert (report.running, report.waiting, report.kv_blocks_used) == (0, 0, 0)
        assert loop.is_idle
        await loop.stop()

    asyncio.run(scenario())


def test_a_slow_reader_blocks_nobody_and_finds_its_tokens_in_one_chunk():
    async def scenario():
        loop = loop_of()
        loop.start()
        slow = submit(loop, "slow", max_tokens=300)
        assert await read(submit(loop, "fast", max_tokens=500)) == (500, FinishReason.LENGTH)
        assert loop.is_idle
        chunks = [chunk async for chunk in slow]
        assert [(len(chunk.token_ids), chunk.finish_reason) for chunk in chunks] == [(300, FinishReason.LENGTH)]
        await loop.stop()

    asyncio.run(scenario())


def test_a_slow_reader_finds_the_log_probabilities_of_all_its_tokens():
    async def scenario():
        loop = loop_of()
        loop.start()
        sampling = SamplingParams(30, num_logprobs=2, num_prompt_logprobs=1)
        slow = loop.submit("slow", [1] * 40, sampling)
        await eventually_async(lambda: loop.is_idle)
        (chunk,) = [chunk async for chunk in slow]
        assert [entry.token_id for entry in chunk.logprobs] == list(chunk.token_ids)
        assert {len(entry.top) for entry in chunk.logprobs} == {2}
        assert (len(chunk.prompt_logprobs), chunk.prompt_logprobs[0]) == (40, None)
        await loop.stop()

    asyncio.run(scenario())


def test_a_cancelled_stream_ends_and_its_blocks_are_free_within_two_steps():
    async def scenario():
        runner = GatedRunner()
        loop = loop_of(runner)
        loop.start()
        stream = submit(loop, "gone", max_tokens=1500)
        await eventually_async(lambda: loop.load().running == 1)
        stream.cancel()
        runner.gate.set()
        assert (await read(stream))[1] is FinishReason.ABORT
        assert runner.num_steps <= 2
        assert loop.load().kv_blocks_used == 0
        stream.cancel()
        assert await read(submit(loop, "next")) == (20, FinishReason.LENGTH)
        await loop.stop()

    asyncio.run(scenario())


def test_draining_refuses_new_requests_and_finishes_accepted_ones():
    async def scenario():
        runner = GatedRunner()
        loop = loop_of(runner, slots=2)
        loop.start()
        streams = [submit(loop, f"r{i}") for i in range(6)]
        loop.drain()
        with pytest.raises(Draining, match="another replica") as refusal:
            submit(loop, "late")
        assert refusal.value.retry_after_seconds > 0
        assert (loop.is_draining, loop.load().draining, loop.is_idle) == (True, True, False)
        runner.gate.set()
        assert await asyncio.gather(*map(read, streams)) == [(20, FinishReason.LENGTH)] * 6
        assert loop.is_idle
        assert loop.load().arrivals == 6, "a draining replica's refusals are counted where they are retried"
        loop.undrain()
        assert await read(submit(loop, "again")) == (20, FinishReason.LENGTH)
        await loop.stop()

    asyncio.run(scenario())


def test_stopping_ends_every_stream_and_can_be_repeated():
    async def scenario():
        loop = loop_of(slots=4)
        loop.start()
        streams = [submit(loop, f"r{i}", max_tokens=1000) for i in range(10)]
        await loop.stop()
        await loop.stop()
        reasons = Counter([(await read(stream))[1] for stream in streams])
        assert reasons[FinishReason.ABORT] + reasons[FinishReason.LENGTH] == 10
        with pytest.raises(Draining):
            submit(loop, "late")

    asyncio.run(scenario())


def test_a_full_queue_refuses_and_counts_it():
    async def scenario():
        runner = GatedRunner()
        loop = loop_of(runner, slots=1, settings=LoopSettings(max_queue=2, max_wait_seconds=600.0))
        loop.start()
        streams = [submit(loop, f"r{i}") for i in range(3)]
        with pytest.raises(QueueFull, match="2 requests are waiting, the limit is 2") as refusal:
            submit(loop, "late")
        assert refusal.value.retry_after_seconds > 0
        report = loop.load()
        assert (report.arrivals, report.rejects) == (4, 1)
        assert report.eta_seconds > 0
        runner.gate.set()
        assert await asyncio.gather(*map(read, streams)) == [(20, FinishReason.LENGTH)] * 3
        await loop.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "error"), [(2000, 49, NeverFits), (0, 5, BadRequest), (5, 0, BadRequest)]
)
def test_an_impossible_request_is_refused_at_the_door_and_not_counted(num_prompt, max_tokens, error):
    loop = loop_of()
    with pytest.raises(error):
        submit(loop, "bad", num_prompt, max_tokens)
    assert (loop.load().arrivals, loop.load().rejects) == (0, 0)


@pytest.mark.parametrize("kv_windows", [(None,), (None, 64), (64, None, 100)])
def test_what_the_pool_cannot_hold_is_refused_although_the_context_could_and_the_longest_that_it_holds_ends(kv_windows):
    async def scenario():
        loop = loop_of(num_blocks=60, kv_windows=kv_windows)
        loop.start()
        with pytest.raises(NeverFits) as refusal:
            submit(loop, "beyond", 2000, 48)
        longest = int(re.search(r"holds (\d+) tokens", str(refusal.value))[1])
        assert 200 < longest < 2048
        with pytest.raises(NeverFits):
            submit(loop, "one-too-many", longest - 18, 20)
        answers = await asyncio.gather(read(submit(loop, "longest", longest - 19, 20)), read(submit(loop, "behind")))
        assert answers == [(20, FinishReason.LENGTH)] * 2
        await loop.stop()

    asyncio.run(scenario())


def test_step_age_grows_only_while_there_is_work_that_does_not_advance():
    async def scenario():
        runner = GatedRunner()
        loop = loop_of(runner)
        loop.start()
        assert loop.last_step_age_seconds() == 0.0
        stream = submit(loop, "a")
        await eventually_async(lambda: loop.last_step_age_seconds() > 0.1)
        runner.gate.set()
        await read(stream)
        assert loop.last_step_age_seconds() == 0.0
        await loop.stop()

    asyncio.run(scenario())


def test_an_engine_that_fails_tells_its_streams_and_is_not_alive():
    async def scenario():
        runner = BrokenRunner()
        loop = loop_of(runner)
        loop.start()
        streams = [submit(loop, f"r{i}") for i in range(3)]
        runner.gate.set()
        assert await asyncio.gather(*map(read, streams)) == [(0, FinishReason.ERROR)] * 3
        assert loop.last_step_age_seconds() == math.inf
        assert loop.is_stuck, "which /livez asks, and the process that then ends itself"
        with pytest.raises(EngineFailed, match="must be restarted"):
            submit(loop, "late")
        await loop.stop()

    asyncio.run(scenario())


def test_nothing_is_kept_of_requests_that_have_ended():
    def living() -> int:
        gc.collect()
        return sum(type(each) is Request for each in gc.get_objects())

    async def scenario():
        loop = loop_of()
        loop.start()
        before = living()
        streams = [submit(loop, f"r{i}", 40 + i, 5) for i in range(50)]
        streams[7].cancel()
        await asyncio.gather(*map(read, streams))
        ended = [weakref.ref(stream) for stream in streams]
        del streams
        await eventually_async(lambda: living() <= before, what="requests are forgotten")
        assert [stream() for stream in ended] == [None] * 50
        await loop.stop()

    asyncio.run(scenario())


def test_every_process_has_its_own_boot_id():
    assert loop_of().load().boot_id != loop_of().load().boot_id


def test_the_report_says_how_long_the_slowest_requests_took_once_there_were_a_hundred() -> None:
    loop = loop_of()
    for _ in range(99):
        loop.counters.requests.total_seconds.observe(7.0)
    assert loop.load().request_p99_seconds is None
    loop.counters.requests.total_seconds.observe(200.0)
    assert loop.load().request_p99_seconds == 10.0, "the bound above 7 s"
    loop.counters.requests.total_seconds.observe(201.0)
    assert loop.load().request_p99_seconds == 240.0


def test_the_report_says_how_much_the_prefix_cache_helps() -> None:
    loop = loop_of()
    assert loop.load().prefix_hit_share == 0.0
    loop.counters.prefix_queried_tokens, loop.counters.prefix_hit_tokens = 400, 100
    assert (loop.load().prefix_hit_share, loop.load().kv_blocks_cached) == (0.25, 0)


def test_a_step_that_never_ends_does_not_keep_the_engine_from_stopping():
    async def scenario() -> tuple[bool, tuple[int, FinishReason]]:
        runner = GatedRunner()
        loop = loop_of(runner)
        loop.start()
        stream = submit(loop, "a")
        await eventually_async(lambda: loop.load().running == 1)
        try:
            return await loop.stop(step_seconds=0.01), await read(stream)
        finally:
            runner.gate.set()

    assert asyncio.run(scenario()) == (False, (0, FinishReason.ABORT))


@st.composite
def plans_that_fit(draw: st.DrawFn) -> tuple[Demand, BlockPlan, tuple[int | None, ...]]:
    """Whatever sizing may come to, with usual requests both far shorter and far longer than what fits."""
    shape = shape_of(
        draw(st.sampled_from([full_layers(2, 1, 64), full_layers(36, 8, 128), window_layers(4, 2, 64, 512)])),
        max_context=draw(st.integers(16, 131_072)),
    )
    demand = Demand(
        context_max=draw(st.none() | st.integers(16, 131_072)),
        context_min=16,
        prompt_tokens=draw(st.integers(1, 200_000)),
        output_tokens=draw(st.integers(1, 200_000)),
        max_slots=draw(st.none() | st.integers(1, 8)),
    )
    plan = plan_blocks(shape, Target(Device.CPU, 2**40), demand, draw(st.integers(2**14, 2**28)))
    assume(plan.slots)
    return demand, plan, kv_groups(shape).windows


@given(plans_that_fit(), st.integers(0, 12))
def test_every_pool_that_sizing_calls_fitting_tells_its_load_empty_or_full(fitting, queued):
    """A pool whose usual request was longer than its context answered neither /load nor /metrics, for ever."""
    demand, plan, windows = fitting
    settings = LoopSettings(100, 1e9, prompt_tokens=demand.prompt_tokens, output_tokens=demand.output_tokens)
    loop = loop_of(
        settings=settings, slots=plan.slots, context=plan.context, num_blocks=plan.num_blocks, kv_windows=windows
    )
    assert loop.load().eta_seconds == 0.0
    for i in range(queued):  # the thread does not run: all of them wait
        submit(loop, f"r{i}", num_prompt=plan.context // 2, max_tokens=plan.context - plan.context // 2)
    assert loop.load().waiting == queued


def test_a_usual_request_keeps_its_proportion_where_it_is_longer_than_what_fits():
    assert LoopSettings(prompt_tokens=900, output_tokens=300).within(1200) == LoopSettings()
    cut = LoopSettings(prompt_tokens=900, output_tokens=300).within(512)
    assert (cut.prompt_tokens, cut.output_tokens) == (384, 128)
    longest_prompt = LoopSettings(prompt_tokens=100_000, output_tokens=1).within(16)
    assert (longest_prompt.prompt_tokens, longest_prompt.output_tokens) == (15, 1)
    longest_answer = LoopSettings(prompt_tokens=1, output_tokens=100_000).within(16)
    assert (longest_answer.prompt_tokens, longest_answer.output_tokens) == (1, 15)
