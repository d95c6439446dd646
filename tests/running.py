"""Drives a runner through the real scheduler on this thread, until every request has its answer."""

import time
from collections.abc import Sequence

from tidegate_engine.counters import Counters
from tidegate_engine.engine import Engine
from tidegate_engine.grammar.base import TokenConstraint
from tidegate_engine.request import SamplingParams, TokenChunk, merged, new_request
from tidegate_engine.runner import Runner
from tidegate_engine.scheduling.budget import BudgetLimits


def answers(
    runner: Runner,
    prompts: Sequence[Sequence[int]],
    samplings: Sequence[SamplingParams],
    *,
    slots: int = 8,
    max_step_tokens: int = 512,
    has_prefix_cache: bool = False,
    counters: Counters | None = None,
) -> list[list[int]]:
    """The output tokens of each prompt, computed together, in chunks of at most max_step_tokens."""
    chunks = answer_chunks(
        runner,
        prompts,
        samplings,
        slots=slots,
        max_step_tokens=max_step_tokens,
        has_prefix_cache=has_prefix_cache,
        counters=counters,
    )
    return [list(chunk.token_ids) for chunk in chunks]


def answer_chunks(
    runner: Runner,
    prompts: Sequence[Sequence[int]],
    samplings: Sequence[SamplingParams],
    *,
    constraints: Sequence[TokenConstraint | None] | None = None,
    slots: int = 8,
    max_step_tokens: int = 512,
    has_prefix_cache: bool = False,
    counters: Counters | None = None,
) -> list[TokenChunk]:
    """All of each prompt's answer as one chunk."""
    limits = BudgetLimits(itl_seconds=10.0, max_step_tokens=max_step_tokens)
    engine = Engine(
        runner,
        slots=slots,
        limits=limits,
        clock=time.perf_counter,
        counters=counters or Counters(),
        has_prefix_cache=has_prefix_cache,
    )
    for index, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True)):
        constraint = constraints[index] if constraints else None
        engine.queue.add(new_request(str(index), list(prompt), sampling, float(index), constraint=constraint))
    chunks: list[list[TokenChunk]] = [[] for _ in prompts]
    while engine.has_work:
        for output in engine.step():
            chunks[int(output.request_id)].append(output.chunk)
        engine.pool.check(engine.scheduler.running)
    return [merged(parts) for parts in chunks]


def greedy_params(num_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=num_tokens, temperature=0.0)
