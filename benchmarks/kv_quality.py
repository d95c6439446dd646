"""What an int8 KV cache costs in quality on a real model: `python -m benchmarks kv_quality`.

Gemma 3 270M reads this repository's own documents, once over a 16-bit and once over an int8 cache. Prints the mean
negative log likelihood of each next token, and how often both caches have the same most likely token.
"""

import math
from pathlib import Path
from typing import NamedTuple

import torch

from tests.real_model import gemma_gguf
from tidegate_core.launch import EngineLaunch
from tidegate_core.storage import KvDtype
from tidegate_engine.compute.torch_runner import TorchRunner
from tidegate_engine.runner import RowExtras, RowOutput, ScheduledRow, StepBatch
from tidegate_engine.text.tokenizer import load_tokenizer

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("README.md", "docs/structure.md", "docs/sizing.md", "docs/local-cluster.md")
CONTEXT = 1024
NUM_TOKENS = 4 * CONTEXT
KV_BYTES = 2**28


class Reading(NamedTuple):
    """Of each position but the first: log likelihood of the next token, and the most likely one."""

    logprobs: list[float]
    best: list[int]


def read(runner: TorchRunner, tokens: list[int]) -> Reading:
    """In stretches of CONTEXT tokens, each of which begins anew."""
    logprobs, best = [], []
    num_blocks = -(-CONTEXT // runner.block_size)
    tables = tuple(
        tuple(range(first, first + num_blocks)) for first in range(0, num_blocks * len(runner.kv_windows), num_blocks)
    )
    for start in range(0, len(tokens), CONTEXT):
        stretch = tokens[start : start + CONTEXT]
        extras = RowExtras(num_prompt_logprobs=1, prompt_targets=tuple(stretch[1:]))
        row = ScheduledRow("text", tuple(stretch), 0, tables, None, 0, extras)
        (output,) = runner.run(StepBatch((row,)))
        assert isinstance(output, RowOutput)
        logprobs += [each.logprob for each in output.prompt_logprobs]
        best += [each.top[0][0] for each in output.prompt_logprobs]
    return Reading(logprobs, best)


def main() -> None:
    torch.set_num_threads(2)
    path = gemma_gguf()
    text = "\n\n".join((ROOT / name).read_text() for name in DOCUMENTS)
    tokens = load_tokenizer(path, None).encode(text, add_special_tokens=False)[:NUM_TOKENS]
    readings = {}
    for kv_dtype in (KvDtype.AUTO, KvDtype.INT8):
        launch = EngineLaunch(model=str(path), kv_memory=KV_BYTES, context=CONTEXT, threads=2, kv_dtype=kv_dtype)
        readings[kv_dtype] = read(TorchRunner.load(launch, path), tokens)
    wide, narrow = readings[KvDtype.AUTO], readings[KvDtype.INT8]
    num_positions = len(wide.logprobs)
    losses = [-sum(each.logprobs) / num_positions for each in (wide, narrow)]
    moved = sum(abs(a - b) for a, b in zip(wide.logprobs, narrow.logprobs, strict=True)) / num_positions
    alike = sum(a == b for a, b in zip(wide.best, narrow.best, strict=True)) / num_positions
    print(f"Gemma 3 270M over {num_positions:,} tokens of this repository's documents, context {CONTEXT}")
    print(f"mean negative log likelihood   16 bits {losses[0]:.4f}   int8 {losses[1]:.4f}")
    print(f"perplexity, int8 / 16 bits     {math.exp(losses[1] - losses[0]):.4f}")
    print(f"a token's log likelihood moves {moved:.4f} on average")
    print(f"same most likely token         {100 * alike:.2f} %")


if __name__ == "__main__":
    main()
