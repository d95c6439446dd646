"""What int8 weights cost in quality on a real model: `python -m benchmarks weight_quality`.

Gemma 3 270M, whose file has 4-bit weights, reads this repository's own documents with weights kept in 16 bits and in
int8, and continues short questions greedily with both. Printed as in benchmarks.kv_quality.
"""

import math
from typing import NamedTuple

import torch

from benchmarks.kv_quality import DOCUMENTS, KV_BYTES, ROOT, Reading, read
from tests.real_model import gemma_gguf
from tests.running import answers, greedy_params
from tidegate_core.launch import EngineLaunch
from tidegate_core.storage import Quantization
from tidegate_engine.compute.torch_runner import TorchRunner
from tidegate_engine.text.tokenizer import load_tokenizer

CONTEXT = 1024
NUM_TOKENS = 2 * CONTEXT
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


class Outcome(NamedTuple):
    reading: Reading
    answers: list[list[int]]


def outcome(quantization: Quantization | None) -> Outcome:
    path = gemma_gguf()
    launch = EngineLaunch(model=str(path), kv_memory=KV_BYTES, context=CONTEXT, threads=2, quantization=quantization)
    tokenizer, runner = load_tokenizer(path, None), TorchRunner.load(launch, path)
    text = "\n\n".join((ROOT / name).read_text() for name in DOCUMENTS)
    questions = [tokenizer.encode(question, add_special_tokens=True) for question in QUESTIONS]
    return Outcome(
        read(runner, tokenizer.encode(text, add_special_tokens=False)[:NUM_TOKENS]),
        answers(runner, questions, [greedy_params(ANSWER_TOKENS)] * len(questions)),
    )


def main() -> None:
    torch.set_num_threads(2)
    wide, narrow = outcome(None), outcome(Quantization.INT8)
    num_positions = len(wide.reading.logprobs)
    losses = [-sum(each.reading.logprobs) / num_positions for each in (wide, narrow)]
    alike = sum(a == b for a, b in zip(wide.reading.best, narrow.reading.best, strict=True)) / num_positions
    together = [agreed(a, b) for a, b in zip(wide.answers, narrow.answers, strict=True)]
    print(f"Gemma 3 270M over {num_positions:,} tokens of this repository's documents, context {CONTEXT}")
    print(f"mean negative log likelihood   16 bits {losses[0]:.4f}   int8 {losses[1]:.4f}")
    print(f"perplexity, int8 / 16 bits     {math.exp(losses[1] - losses[0]):.4f}")
    print(f"same most likely token         {100 * alike:.2f} %")
    print(f"greedy answers of {ANSWER_TOKENS} tokens begin alike for {sum(together) / len(together):.1f} on average")


def agreed(ours: list[int], theirs: list[int]) -> int:
    """Tokens until the first that differs."""
    return next((index for index, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(ours))


if __name__ == "__main__":
    main()
