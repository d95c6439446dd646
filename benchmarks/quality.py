"""What 8 bits cost in quality on a real model: `python -m benchmarks quality`.

Gemma 3 270M, whose file has 4-bit weights, reads two of this repository's documents and continues short questions
greedily: in 16 bits, with an int8 KV cache, and with int8 weights. Prints how likely each takes the text for, how often
its most likely token is that of 16 bits, and for how long its answers stay the same.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from tests.real_model import gemma_gguf
from tests.running import answers, greedy_params
from tidegate_core.launch import EngineLaunch
from tidegate_core.storage import KvDtype, Quantization
from tidegate_engine.compute.torch_runner import TorchRunner
from tidegate_engine.runner import RowExtras, RowOutput, ScheduledRow, StepBatch
from tidegate_engine.text.tokenizer import load_tokenizer

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("README.md", "docs/sizing.md")
STRETCH_TOKENS = 512  # of each document, the token for the beginning of a text included
ANSWER_TOKENS = 24
QUESTIONS = (
    "The capital of France is",
    "Water boils at",
    "A prime number is a number that",
    "In 1969, the first people",
    "To bake bread you need",
    "The opposite of hot is",
    "def fibonacci(n):",
    "Once upon a time there was",
)
LAUNCH = EngineLaunch(model=str(gemma_gguf()), kv_memory=2**27, context=STRETCH_TOKENS, threads=2)
CONTENDERS = {
    "16 bits": LAUNCH,
    "int8 KV cache": LAUNCH.model_copy(update={"kv_dtype": KvDtype.INT8}),
    "int8 weights": LAUNCH.model_copy(update={"quantization": Quantization.INT8}),
}


class Outcome(NamedTuple):
    """Of each position of the text: log likelihood of the next token, the most likely one; and the answers."""

    logprobs: list[float]
    best: list[int]
    answers: list[list[int]]


def outcome(launch: EngineLaunch) -> Outcome:
    tokenizer, runner = load_tokenizer(Path(launch.model), None), TorchRunner.load(launch, Path(launch.model))
    questions = [tokenizer.encode(question, add_special_tokens=True) for question in QUESTIONS]
    logprobs, best = [], []
    for name in DOCUMENTS:
        tokens = tokenizer.encode((ROOT / name).read_text(), add_special_tokens=True)[:STRETCH_TOKENS]
        output = read(runner, tokens)
        logprobs += [each.logprob for each in output.prompt_logprobs]
        best += [each.top[0][0] for each in output.prompt_logprobs]
    return Outcome(logprobs, best, answers(runner, questions, [greedy_params(ANSWER_TOKENS)] * len(questions)))


def read(runner: TorchRunner, tokens: Sequence[int]) -> RowOutput:
    """Of every token but the first, what the model thought of it."""
    num_blocks = -(-len(tokens) // runner.block_size)
    firsts = range(0, num_blocks * len(runner.kv_windows), num_blocks)
    tables = tuple(tuple(range(first, first + num_blocks)) for first in firsts)
    extras = RowExtras(num_prompt_logprobs=1, prompt_targets=tuple(tokens[1:]))
    (output,) = runner.run(StepBatch((ScheduledRow("text", tuple(tokens), 0, tables, None, 0, extras),)))
    assert isinstance(output, RowOutput)
    return output


def print_compared(name: str, narrow: Outcome, wide: Outcome) -> None:
    num_positions = len(wide.logprobs)
    losses = [-sum(each.logprobs) / num_positions for each in (narrow, wide)]
    moved = sum(abs(a - b) for a, b in zip(narrow.logprobs, wide.logprobs, strict=True)) / num_positions
    alike = sum(a == b for a, b in zip(narrow.best, wide.best, strict=True)) / num_positions
    together = [num_equal(a, b) for a, b in zip(narrow.answers, wide.answers, strict=True)]
    print(f"{name}, {num_positions} positions")
    print(f"  mean negative log likelihood    {losses[0]:.4f}")
    print(f"  perplexity, of 16 bits          {math.exp(losses[0] - losses[1]):.4f}")
    print(f"  a log likelihood moves by       {moved:.4f} on average")
    print(f"  same most likely token          {100 * alike:.1f} %")
    print(
        f"  greedy answers begin alike for  {sum(together) / len(together):.1f} of {ANSWER_TOKENS} tokens", flush=True
    )


def num_equal(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """Tokens until the first that differs."""
    return next((index for index, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(ours))


def main() -> None:
    torch.set_num_threads(2)
    wide = outcome(CONTENDERS["16 bits"])
    for name, launch in CONTENDERS.items():
        print_compared(name, wide if launch is LAUNCH else outcome(launch), wide)


if __name__ == "__main__":
    main()
