"""From a launch contract to the parts of an engine: runner, tokenizer, and what they allocated. serve.py calls it.

Everything slow at start-up happens here, in the calling thread. Errors say which file is at fault; exits.py turns
them into exit codes.
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tidegate_checkpoint.errors import MissingCheckpoint
from tidegate_checkpoint.location import locate, reading
from tidegate_checkpoint.shape import read_shape
from tidegate_core.errors import BadLaunch
from tidegate_core.kv_groups import kv_groups
from tidegate_core.launch import EngineLaunch, RunnerKind
from tidegate_core.shape import ModelShape
from tidegate_core.sizing import BLOCK_SIZE, BlockPlan, Demand, Target, plan_blocks
from tidegate_core.storage import storage_of
from tidegate_core.telemetry import EngineSizing
from tidegate_engine.counters import Counters
from tidegate_engine.parallel.crew import Crew
from tidegate_engine.process.container import share_cores
from tidegate_engine.process.exits import DoesNotFit
from tidegate_engine.process.process_memory import private_bytes
from tidegate_engine.runner import Runner
from tidegate_engine.server.front import ServedModel, TextCodec
from tidegate_engine.sim import SimRunner, SimSettings
from tidegate_engine.text.byte_codec import ByteCodec
from tidegate_engine.text.tokenizer import load_tokenizer

# A simulated pool where neither the model's shape nor the KV memory is known.
SIM_CONTEXT = 8192
SIM_SLOTS = 16
SIM_KV_BYTES = 8 * 2**30
SIM_VOCAB_SIZE = 256


@dataclass(frozen=True)
class EngineParts:
    """What serve.py puts together."""

    runner: Runner
    codec: TextCodec
    sizing: EngineSizing
    model: ServedModel
    counters: Counters
    warm_up_seconds: float = 0.0


def load_parts(launch: EngineLaunch, crew: Crew | None = None) -> EngineParts:
    """`crew`: the processes of the other devices. Raises CheckpointError, BadLaunch, DoesNotFit or FollowerLost."""
    template = read_template(launch)
    return simulated_parts(launch, template) if launch.runner is RunnerKind.SIM else model_parts(launch, template, crew)


def crew_of(launch: EngineLaunch) -> Crew | None:
    """Started at once, so that they import torch while this process does; a rehearsal needs no devices."""
    return Crew(launch.tensor_parallel) if launch.tensor_parallel > 1 and launch.runner is RunnerKind.TORCH else None


def check_model(launch: EngineLaunch) -> None:
    """At once, before anything is said to go well. Raises CheckpointError where no model is; a rehearsal needs none."""
    path = Path(launch.model)
    if launch.runner is RunnerKind.TORCH:
        with reading(path):
            locate(path)


def read_template(launch: EngineLaunch) -> str | None:
    """The chat template the launch names. Raises BadLaunch if it cannot be read."""
    if launch.chat_template is None:
        return None
    try:
        return Path(launch.chat_template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadLaunch(f"--chat-template {launch.chat_template} cannot be read: {error}") from error


def served_model(launch: EngineLaunch, context: int, vocab_size: int) -> ServedModel:
    return ServedModel(
        names=launch.served_name or (Path(launch.model).name.removesuffix(".gguf"),),
        context=context,
        vocab_size=vocab_size,
        output_tokens=launch.output_tokens,
        created=int(time.time()),
        runner=launch.runner,
        is_simulation=launch.runner is RunnerKind.SIM,
    )


def model_parts(launch: EngineLaunch, template: str | None, crew: Crew | None = None) -> EngineParts:
    """The tokenizer is read while torch is imported: both need the interpreter, loading weights does not.

    It is done before weights are loaded, so that its lists of half a million merges are gone by then.
    """
    path = Path(launch.model)
    read_shape(path)  # a model that is missing or broken is told before torch is imported, which takes seconds
    share_cores(os.environ)
    with ThreadPoolExecutor(1, thread_name_prefix="tokenizer") as beside:
        tokenizer = beside.submit(load_tokenizer, path, template)
        from tidegate_engine.compute.torch_runner import TorchRunner

        codec = tokenizer.result()
    runner = TorchRunner.load(launch, path, crew=crew)
    sizing = EngineSizing(
        context=runner.plan.context,
        slots=runner.plan.slots,
        kv_blocks_total=runner.num_blocks,
        block_size=runner.block_size,
        kv_bytes=runner.plan.pool_bytes,
        weight_bytes=runner.weight_bytes,
        resident_bytes=private_bytes() + runner.cache.pending_bytes + runner.followers_bytes,
        loaded_bytes=runner.loaded_bytes,
    )
    model = served_model(launch, sizing.context, runner.vocab_size)
    return EngineParts(runner, codec, sizing, model, Counters(), runner.warm_up_seconds)


def simulated_parts(launch: EngineLaunch, template: str | None) -> EngineParts:
    """No weights are read, but a model that is there gives its tokenizer and the size of its KV cache."""
    counters = Counters()
    shape = simulated_shape(launch)
    plan = simulated_plan(launch, shape)
    codec = simulated_codec(launch, template)
    vocab_size = shape.vocab_size if shape and not isinstance(codec, ByteCodec) else SIM_VOCAB_SIZE
    settings = SimSettings(
        num_blocks=plan.num_blocks,
        block_size=BLOCK_SIZE,
        kv_windows=kv_groups(shape).windows if shape else (None,),
        vocab_size=vocab_size,
        eos_token_id=min(codec.eos_token_ids, default=0),
        answer_tokens=launch.output_tokens,
        preemptions_per_minute=launch.sim_preemptions_per_minute,
    )
    sizing = EngineSizing(
        context=plan.context,
        slots=plan.slots,
        kv_blocks_total=plan.num_blocks,
        block_size=BLOCK_SIZE,
        kv_bytes=plan.pool_bytes,
        weight_bytes=0,
        resident_bytes=private_bytes(),
    )
    runner = SimRunner(settings, counters=counters)
    return EngineParts(runner, codec, sizing, served_model(launch, plan.context, vocab_size), counters)


def simulated_codec(launch: EngineLaunch, template: str | None) -> TextCodec:
    """The model's tokenizer if it has one."""
    try:
        return load_tokenizer(Path(launch.model), template)
    except MissingCheckpoint:
        return ByteCodec()


def simulated_shape(launch: EngineLaunch) -> ModelShape | None:
    """None where no model lies: a rehearsal needs none. A model that is broken is an error all the same."""
    try:
        return read_shape(Path(launch.model))
    except MissingCheckpoint:
        return None


def simulated_plan(launch: EngineLaunch, shape: ModelShape | None) -> BlockPlan:
    """Raises DoesNotFit."""
    if shape is None:
        context, slots = launch.context or SIM_CONTEXT, launch.slots or SIM_SLOTS
        return BlockPlan(slots * -(-context // BLOCK_SIZE), block_bytes=0, context=context, slots=slots)
    kv_bytes = launch.kv_memory or SIM_KV_BYTES
    demand = Demand(
        context_max=launch.context,
        context_min=BLOCK_SIZE,
        prompt_tokens=launch.prompt_tokens,
        output_tokens=launch.output_tokens,
        max_slots=launch.slots,
    )
    storage = storage_of(shape, launch.kv_dtype, launch.quantization)
    target = Target(launch.device, kv_bytes, tensor_parallel=launch.tensor_parallel)
    plan = plan_blocks(shape, target, demand, kv_bytes, storage)
    if plan.slots == 0:
        raise DoesNotFit(f"{kv_bytes} bytes of KV cache hold no sequence of {launch.model}; raise --kv-memory")
    return plan
