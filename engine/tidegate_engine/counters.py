"""Cumulative facts of one engine process, as /load and /metrics report them.

Each field has one writing thread: the event loop counts arrivals and rejects, the engine thread everything else.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Only ever grow; `arrivals` includes capacity refusals, never client errors."""

    arrivals: int = 0
    rejects: int = 0
    completions: int = 0
    cancellations: int = 0
    errors: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
