"""A real model, Gemma 3 270M from its GGUF file: its text in deterministic mode, and its memory against the plan.

Loading takes most of the time, so one loaded model serves all tests; test_real_model.py serves it by default.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from real_model import CONTINUATION, NUM_CONTINUATION_TOKENS, PROMPT, gemma_gguf
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
def runner(path) -> TorchRunner:
    launch = EngineLaunch(model=str(path), kv_memory=2**27, context=CONTEXT, threads=2, deterministic=True)
    return TorchRunner.load(launch, path)


@pytest.fixture(scope="module")
def tokenizer(path):
    return load_tokenizer(path, None)


def continuation(runner, tokenizer) -> list[int]:
    prompt = tokenizer.encode(PROMPT, add_special_tokens=True)
    return answers(runner, [prompt], [greedy_params(NUM_CONTINUATION_TOKENS)])[0]


def test_it_continues_a_prompt_as_transformers_does(runner, tokenizer):
    assert tokenizer.decode(continuation(runner, tokenizer)) == CONTINUATION


def test_neighbours_and_chunks_do_not_change_its_text(runner, tokenizer):
    prompt = tokenizer.encode(PROMPT, add_special_tokens=True)
    other = tokenizer.encode("Once upon a time there was a king. " * 12, add_special_tokens=True)
    outputs = answers(runner, [other, prompt, other[:50]], [greedy_params(24)] * 3, max_step_tokens=48)
    assert tokenizer.decode(outputs[1]) == CONTINUATION


def test_blocks_and_resident_memory_are_those_that_sizing_planned(path):
    fit = plan_fit(read_shape(path), Target("cpu", MEMORY_BYTES), Demand(context_max=CONTEXT))
    arguments = [sys.executable, "-c", REPORT, str(path), str(CONTEXT), str(MEMORY_BYTES)]
    report = json.loads(subprocess.run(arguments, check=True, capture_output=True, text=True, env=ENVIRONMENT).stdout)
    print(f"\nplanned {fit.kv_blocks} blocks, {fit.resident_bytes} bytes; measured {report}")
    assert report["blocks"] == pytest.approx(fit.kv_blocks, rel=0.02)
    assert report["residentBytes"] == pytest.approx(fit.resident_bytes, rel=0.15)
