"""What deciding about a step costs, model aside: `python benchmarks/scheduler.py [--running N] [--waiting N]`.

Prints the CPU time of all around runner.run(), and of scheduling and admission alone; the rest takes the results: stop
checks, outputs, frees, the step fit. For a pool with room to spare, for one that admission must watch closely, and for
that with half of the requests spot, with a prefix cache, and with that and six KV groups. Figures are a tenth
percentile, which is what a quiet core does, and a median over steps; the runner answers at once. `reference` is a plain
loop over the same number of items, so that runs on different machines compare.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from tidegate_engine.counters import Counters
from tidegate_engine.engine import Engine
from tidegate_engine.process import garbage
from tidegate_engine.request import SamplingParams, ServiceClass, Terms, new_request
from tidegate_engine.scheduling.budget import BudgetLimits
from tidegate_engine.scheduling.door import SLICE_REQUESTS, Door
from tidegate_engine.scheduling.outlook import Outlook
from tidegate_engine.scheduling.queue import QueueLimits
from tidegate_engine.scheduling.scheduler import Scheduler, Step
from tidegate_engine.scheduling.step_fit import StepTime
from tidegate_engine.sim import SimRunner, SimSettings

SIM_STEP = StepTime(base_seconds=0.02, seconds_per_token=2e-5, seconds_per_context_token=1e-8)
MEAN_PROMPT, MEAN_ANSWER = 600, 300
NUM_TENANTS = 8


class StandInRunner(SimRunner):
    """Keeps its own time out of the measurement."""

    run_seconds = 0.0

    def run(self, batch):  # noqa: ANN001, ANN201 - as its base
        started = time.thread_time()
        tokens = super().run(batch)
        self.run_seconds += time.thread_time() - started
        return tokens


class TimedScheduler(Scheduler):
    """Knows what deciding alone took."""

    schedule_seconds = 0.0

    def schedule(self, token_budget: int) -> Step:
        started = time.thread_time()
        step = super().schedule(token_budget)
        self.schedule_seconds = time.thread_time() - started
        return step


@dataclass(frozen=True)
class Case:
    """A pool, `pool_share` times as large as all slots use on average, and who comes."""

    name: str
    pool_share: float = 1.0
    spot_share: float = 0.0
    has_prefix_cache: bool = False
    kv_windows: tuple[int | None, ...] = (None,)


CASES = (
    Case("roomy", pool_share=4.0),
    Case("tight"),
    Case("tight, mixed", spot_share=0.5),
    Case("tight, prefix cache", has_prefix_cache=True),
    Case("tight, prefix cache, 6 KV groups", pool_share=3.5, has_prefix_cache=True, kv_windows=(None, *5 * (512,))),
)


def measure(case: Case, num_running: int, num_waiting: int, num_steps: int) -> dict[str, float]:
    """Seconds of a step's overhead and of asking the door, at a steady number of waiting requests."""
    clock = [0.0]
    counters = Counters()
    num_blocks = int(case.pool_share * num_running * (MEAN_PROMPT + MEAN_ANSWER) / 16)
    settings = SimSettings(num_blocks, vocab_size=50_000, step_time=SIM_STEP, kv_windows=case.kv_windows)
    runner = StandInRunner(settings, counters=counters, sleep=lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    engine = Engine(
        runner,
        slots=num_running,
        limits=BudgetLimits(itl_seconds=0.05),
        clock=lambda: clock[0],
        counters=counters,
        has_prefix_cache=case.has_prefix_cache,
    )
    engine.scheduler = scheduler = TimedScheduler(
        engine.pool, engine.queue, slots=num_running, counters=counters, lengths=engine.lengths
    )
    garbage.settle()
    rng = random.Random(5)
    overheads, schedules, sizes = [], [], []
    num_arrived = 0
    for step in range(num_steps):
        while len(engine.queue) < num_waiting:
            num_arrived += 1
            sampling = SamplingParams(max_tokens=1 + int(rng.expovariate(1 / MEAN_ANSWER)))
            num_prompt = 1 + int(rng.expovariate(1 / MEAN_PROMPT))
            prompt = [7] * (num_prompt // 2) + [num_arrived] * (num_prompt - num_prompt // 2)
            service_class = ServiceClass.SPOT if rng.random() < case.spot_share else ServiceClass.GUARANTEED
            terms = Terms(tenant=str(num_arrived % NUM_TENANTS), service_class=service_class)
            request = new_request(str(num_arrived), prompt, sampling, clock[0], terms)
            engine.pool.hash_tokens(request)
            engine.queue.add(request)
        runner.run_seconds = 0.0
        started = time.thread_time()
        engine.step()
        overheads.append(time.thread_time() - started - runner.run_seconds)
        schedules.append(scheduler.schedule_seconds)
        sizes.append(len(engine.scheduler.running))
        engine.pool.check(engine.scheduler.running) if step % 100 == 0 else None
    steady = num_steps // 2

    def new_door() -> Door:
        limits = QueueLimits(num_waiting, max_wait_seconds=1e9)
        return Door(engine, limits, clock=time.thread_time)

    door = new_door()
    return {
        "running": statistics.mean(sizes[steady:]),
        "used": engine.pool.num_used / engine.pool.num_blocks,
        "step": statistics.median(overheads[steady:]),
        "schedule": statistics.median(schedules[steady:]),
        "schedule_p10": sorted(schedules[steady:])[(num_steps - steady) // 10],
        "step_p10": sorted(overheads[steady:])[(num_steps - steady) // 10],
        "step_p99": sorted(overheads[steady:])[-max(1, steady // 100)],
        "door": median_seconds(lambda: door.wait_seconds(MEAN_PROMPT, MEAN_ANSWER), 20),
        "forecast": median_seconds(new_door, 3),
        "slice": median_seconds(lambda: Outlook(engine, now=0.0, horizon_seconds=1e9).play(SLICE_REQUESTS), 5),
        "preemptions": float(counters.preemptions),
    }


def median_seconds(work: Callable[[], object], times: int) -> float:
    samples = []
    for _ in range(times):
        started = time.thread_time()
        work()
        samples.append(time.thread_time() - started)
    return statistics.median(samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--waiting", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=3000)
    args = parser.parse_args()
    reference = median_seconds(lambda: [(i, (i,), i + 1, i - 1) for i in range(args.running)], 200)
    print(f"{args.running} slots, {args.waiting} waiting; reference loop over the slots: {reference * 1e6:.0f} us")
    for case in CASES:
        m = measure(case, args.running, args.waiting, args.steps)
        print(f"{case.name}: {m['running']:.0f} running, {m['used']:.0%} of the pool used")
        print(f"  scheduling and admission: {m['schedule_p10'] * 1e3:.2f} ms p10, {m['schedule'] * 1e3:.2f} ms median")
        print(f"  a whole step: {m['step_p10'] * 1e3:.2f} ms p10, {m['step'] * 1e3:.2f} ms median", end="")
        print(f", {m['step_p99'] * 1e3:.2f} ms p99", end="")
        print(f", {m['step'] / reference:.0f} reference loops")
        print(f"  a wait predicted in {m['door'] * 1e3:.2f} ms, the whole queue's in {m['forecast'] * 1e3:.0f} ms,")
        print(f"  of which the event loop waits for {m['slice'] * 1e3:.1f} ms at a time")


if __name__ == "__main__":
    main()
