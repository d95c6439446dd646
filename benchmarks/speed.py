"""Tokens a second on CPU against transformers: `python -m benchmarks speed`, about five minutes on two cores.

The same random weights (a Qwen2 shape with 387M parameters), prompts and lengths for all: the engine with 16-bit and
int8 weights, `generate` of transformers in fp32 and bf16. Rounds alternate between all of them, figures are
medians, and what counts are ratios to the better of the two dtypes of transformers, figure by figure: another machine,
or a busy neighbour, moves both sides. `--quick` takes one round of each; `make bench` does.
"""

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
import transformers

from benchmarks.contenders import NUM_THREADS, VOCAB_SIZE, Contender, Tidegate, Transformers, save_model
from tidegate_core.storage import Quantization

PROMPT_TOKENS, OUTPUT_TOKENS = 128, 32
ROUNDS = {1: 4, 5: 2, 20: 2}  # by streams
FLAT_STREAMS = (1, 2, 4, 8)
FLAT_TOKENS = 48
QUALIFYING_TOKENS = (16, 4)  # prompt and output: a dtype that is hopeless at this is left out of the long runs
HOPELESS = 2.0  # times slower
REFERENCES = {"transformers fp32": torch.float32, "transformers bf16": torch.bfloat16}
OURS = {"tidegate 16-bit": None, "tidegate int8": Quantization.INT8}


class Figures(NamedTuple):
    """Tokens a second: of answers after the last first token, of prompts until then, of answers over the whole run."""

    decode: float
    prefill: float
    whole: float


def measure(contender: Contender, num_streams: int, prompt_tokens: int, output_tokens: int) -> Figures:
    times = contender.answer(prompts(num_streams, prompt_tokens), output_tokens)
    prefilled, end = max(each[0] for each in times), max(each[-1] for each in times)
    num_decoded = sum(moment > prefilled for each in times for moment in each)
    return Figures(
        num_decoded / (end - prefilled), num_streams * prompt_tokens / prefilled, num_streams * output_tokens / end
    )


def prompts(num_streams: int, num_tokens: int) -> list[list[int]]:
    chooser = random.Random(5)
    return [[chooser.randrange(VOCAB_SIZE) for _ in range(num_tokens)] for _ in range(num_streams)]


def itl_p95(contender: Contender, num_streams: int) -> float:
    """Seconds from one token to the next, once all streams answer."""
    times = contender.answer(prompts(num_streams, PROMPT_TOKENS), FLAT_TOKENS)
    prefilled = max(each[0] for each in times)
    gaps = sorted(after - before for each in times for before, after in pairwise(each) if before >= prefilled)
    return gaps[len(gaps) * 95 // 100]


def qualified(contenders: dict[str, Contender], num_streams: int) -> dict[str, Contender]:
    """All of ours, and the dtypes of transformers that may win any figure."""
    rates = {name: measure(contenders[name], num_streams, *QUALIFYING_TOKENS) for name in REFERENCES}
    best = Figures(*map(max, zip(*rates.values(), strict=True)))
    hopeless = {name for name, rate in rates.items() if all(HOPELESS * a < b for a, b in zip(rate, best, strict=True))}
    for name in hopeless:
        print(f"  {name}: more than {HOPELESS:.0f} times slower than the other dtype in every figure, left out")
    return {name: contender for name, contender in contenders.items() if name not in hopeless}


def compare(contenders: dict[str, Contender], num_streams: int, num_rounds: int) -> None:
    print(f"\n{num_streams} streams, {num_rounds} rounds; load average {os.getloadavg()[0]:.1f}", flush=True)
    taking_part = qualified(contenders, num_streams)
    runs: dict[str, list[Figures]] = {name: [] for name in taking_part}
    for _ in range(num_rounds):
        for name, contender in taking_part.items():
            runs[name].append(measure(contender, num_streams, PROMPT_TOKENS, OUTPUT_TOKENS))
    medians = {name: Figures(*map(statistics.median, zip(*each, strict=True))) for name, each in runs.items()}
    best = Figures(*map(max, zip(*(medians[name] for name in REFERENCES if name in medians), strict=True)))
    print(f"  {'tokens/s':<18}" + "".join(f"{field:>18}" for field in Figures._fields))
    for name, figures in medians.items():
        ratios = ["" if name in REFERENCES else f"{a / b:.2f}x" for a, b in zip(figures, best, strict=True)]
        cells = [f"{value:>10.1f} {ratio:>7}" for value, ratio in zip(figures, ratios, strict=True)]
        print(f"  {name:<18}" + "".join(cells), flush=True)


def flatness(contenders: dict[str, Contender], num_rounds: int) -> None:
    print(f"\nITL p95 in milliseconds by streams; load average {os.getloadavg()[0]:.1f}")
    print(f"  {'':<18}" + "".join(f"{num_streams:>8}" for num_streams in FLAT_STREAMS) + "   most / 1 stream")
    runs: dict[str, list[list[float]]] = {name: [] for name in OURS}
    for _ in range(num_rounds):
        for name in OURS:
            runs[name].append([itl_p95(contenders[name], num_streams) for num_streams in FLAT_STREAMS])
    for name, rounds in runs.items():
        medians = [statistics.median(each) for each in zip(*rounds, strict=True)]
        cells = "".join(f"{seconds * 1e3:>8.0f}" for seconds in medians)
        print(f"  {name:<18}{cells}{max(medians) / medians[0]:>9.2f}x", flush=True)


def load(folder: Path) -> dict[str, Contender]:
    """In turn of ours and theirs, since one long run may heat, or disturb, the next."""
    references = {name: Transformers(folder, dtype) for name, dtype in REFERENCES.items()}
    ours = {name: Tidegate(folder, quantization) for name, quantization in OURS.items()}
    contenders: dict[str, Contender] = {}
    for (our_name, our), (name, reference) in zip(ours.items(), references.items(), strict=True):
        contenders |= {name: reference, our_name: our}
    for contender in contenders.values():
        contender.answer(prompts(1, 16), 2)
    return contenders


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of each, 1 and 5 streams")
    quick = parser.parse_args(arguments).quick
    started = time.perf_counter()
    torch.set_num_threads(NUM_THREADS)
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        num_parameters = save_model(Path(folder))
        print(f"{num_parameters / 1e6:.0f}M parameters, {PROMPT_TOKENS} tokens in, {OUTPUT_TOKENS} out; ratios to the")
        print("better dtype of transformers in each figure", flush=True)
        contenders = load(Path(folder))
        for num_streams, num_rounds in ROUNDS.items():
            if not quick or num_streams < max(ROUNDS):
                compare(contenders, num_streams, 1 if quick else num_rounds)
        flatness(contenders, 1 if quick else 2)
    print(f"\n{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
