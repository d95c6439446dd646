"""Who answers the same prompts with the same weights in `benchmarks.speed`: the engine, and transformers."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
import transformers

from tidegate_core.launch import EngineLaunch
from tidegate_core.storage import Quantization
from tidegate_engine.compute.torch_runner import TorchRunner
from tidegate_engine.counters import Counters
from tidegate_engine.engine import Engine
from tidegate_engine.request import SamplingParams, new_request
from tidegate_engine.scheduling.budget import BudgetLimits

VOCAB_SIZE = 32_768
NUM_THREADS = 2


class Contender(Protocol):
    """Answers prompts together; returns when each token of each answer was there, in seconds from the start."""

    def answer(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[float]]: ...


def save_model(folder: Path) -> int:
    """Random weights in the shape of Qwen2 0.5B, with a smaller vocabulary; returns the number of parameters."""
    torch.manual_seed(1)
    config = transformers.Qwen2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    return int(model.num_parameters())


class Tidegate:
    """The engine without its HTTP server: scheduler, runner, sampler."""

    def __init__(self, folder: Path, quantization: Quantization | None) -> None:
        launch = EngineLaunch(
            model=str(folder), quantization=quantization, threads=NUM_THREADS, context=512, slots=32, kv_memory=2**28
        )
        self._runner = TorchRunner.load(launch, folder)

    def answer(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[float]]:
        limits = BudgetLimits(itl_seconds=60.0)  # prompts first, as a static batch does
        engine = Engine(self._runner, slots=32, limits=limits, clock=time.perf_counter, counters=Counters())
        sampling = SamplingParams(max_tokens=num_tokens, temperature=0.0)
        start = time.perf_counter()
        for index, prompt in enumerate(prompts):
            engine.queue.add(new_request(str(index), list(prompt), sampling, start))
        times: list[list[float]] = [[] for _ in prompts]
        while engine.has_work:
            for output in engine.step():
                times[int(output.request_id)] += [time.perf_counter() - start] * len(output.chunk.token_ids)
        return times


class Transformers:
    """`generate`, greedy, with a static batch."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        self._model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()

    def answer(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[float]]:
        token_ids = torch.tensor(prompts)
        clock = _Clock()
        with torch.inference_mode():
            self._model.generate(
                token_ids,
                attention_mask=torch.ones_like(token_ids),
                max_new_tokens=num_tokens,
                min_new_tokens=num_tokens,
                do_sample=False,
                pad_token_id=0,
                stopping_criteria=transformers.StoppingCriteriaList([clock]),
            )
        return [clock.times] * len(prompts)


class _Clock(transformers.StoppingCriteria):
    """Asked after each token whether to stop."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        self.times.append(time.perf_counter() - self._start)
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)
