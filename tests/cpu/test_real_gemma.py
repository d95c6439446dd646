"""A real model, Gemma 3 270M from its GGUF file: its text, its speed (printed), and its memory against the plan."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from real_model import CONTINUATION, PROMPT, gemma_gguf
from running import answers, greedy_params
from tidegate_checkpoint.shape import read_shape
from tidegate_core.launch import EngineLaunch
from tidegate_core.sizing import Demand, Target, plan_fit
from tidegate_engine.compute.torch_runner import TorchRunner
from tidegate_engine.text.tokenizer import load_tokenizer

CONTEXT = 2048
ENVIRONMENT = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
MEMORY_BYTES = 3 * 2**30

# Measured in a process of its own: this one is full of test libraries.
REPORT = """
import json, sys
from pathlib import Path
from tidegate_core.launch import EngineLaunch
from tidegate_engine.process.process_memory import private_bytes
from tidegate_engine.text.tokenizer import load_tokenizer
from tidegate_engine.compute.torch_runner import TorchRunner
import tidegate_engine.server.app
path, context, memory = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
launch = EngineLaunch(model=str(path), context=context)
tokenizer = load_tokenizer(path, None)
runner = TorchRunner.load(launch, path, memory_bytes=memory)
print(json.dumps({"blocks": runner.num_blocks, "residentBytes": private_bytes() + runner.cache.pending_bytes}))
"""


@pytest.fixture(scope="module")
def path() -> Path:
    return gemma_gguf()


@pytest.fixture(scope="module")
def runner(path):
    started = time.perf_counter()
    runner = TorchRunner.load(EngineLaunch(model=str(path), kv_memory=2**28, context=CONTEXT, threads=2), path)
    print(f"\nloaded and warm in {time.perf_counter() - started:.1f} s")
    return runner


@pytest.fixture(scope="module")
def tokenizer(path):
    return load_tokenizer(path, None)


def test_it_continues_a_prompt_as_transformers_does(runner, tokenizer):
    prompt = tokenizer.encode(PROMPT, add_special_tokens=True)
    expected = tokenizer.encode(CONTINUATION, add_special_tokens=False)
    (tokens,) = answers(runner, [prompt], [greedy_params(len(expected))])
    assert tokenizer.decode(tokens) == CONTINUATION


def test_neighbours_and_chunks_do_not_change_its_text(runner, tokenizer):
    prompt = tokenizer.encode(PROMPT, add_special_tokens=True)
    other = tokenizer.encode("Once upon a time there was a king. " * 12, add_special_tokens=True)
    outputs = answers(runner, [other, prompt, other[:50]], [greedy_params(24)] * 3, max_step_tokens=48)
    assert tokenizer.decode(outputs[1]) == CONTINUATION


@pytest.mark.parametrize("num_rows", [1, 8])
def test_it_decodes_at_a_usable_rate(runner, tokenizer, num_rows):
    """The bound only catches a fall into some slow path, on a machine that may be busy; the figure is printed."""
    prompt = tokenizer.encode(PROMPT, add_special_tokens=True)
    num_tokens = 16
    started = time.perf_counter()
    outputs = answers(runner, [prompt] * num_rows, [greedy_params(num_tokens)] * num_rows)
    rate = num_rows * num_tokens / (time.perf_counter() - started)
    print(f"\n{num_rows} rows: {rate:.1f} tokens/s")
    assert all(len(output) == num_tokens for output in outputs)
    assert rate > 0.5


def test_blocks_and_resident_memory_are_those_that_sizing_planned(path):
    fit = plan_fit(read_shape(path), Target("cpu", MEMORY_BYTES), Demand(context_max=CONTEXT))
    arguments = [sys.executable, "-c", REPORT, str(path), str(CONTEXT), str(MEMORY_BYTES)]
    report = json.loads(subprocess.run(arguments, check=True, capture_output=True, text=True, env=ENVIRONMENT).stdout)
    print(f"\nplanned {fit.kv_blocks} blocks, {fit.resident_bytes} bytes; measured {report}")
    assert report["blocks"] == pytest.approx(fit.kv_blocks, rel=0.02)
    assert report["residentBytes"] == pytest.approx(fit.resident_bytes, rel=0.15)
