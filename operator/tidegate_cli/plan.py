"""`tidegate plan`: what one replica of a model takes and serves on a device; with --cluster, on those of a cluster.

The same sizing as the operator's and the engine's. Answers from headers alone, so a config.json is enough; it imports
no more than it needs, since people wait for it.
"""

import argparse
import sys
from collections.abc import Callable
from enum import IntEnum
from math import inf, nan
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate_checkpoint.errors import CheckpointError, MissingCheckpoint
from tidegate_checkpoint.shape import read_shape
from tidegate_cli.answer import Answer, to_json, to_markdown, to_table
from tidegate_cli.cluster.options import add_access_arguments
from tidegate_cli.device import PlannedDevice, device_with, named_gpu, smallest_gpu
from tidegate_cli.errors import BadPlan, ModelElsewhere
from tidegate_cli.pool_file import read_pool
from tidegate_core.accelerator import Device
from tidegate_core.devices import Spread
from tidegate_core.errors import CoreError
from tidegate_core.fit import DEVICE_COUNTS, Demand, Fit, Target
from tidegate_core.hub import DEFAULT_REVISION, SCHEME
from tidegate_core.inspected import Inspected
from tidegate_core.sizing import plan_replica
from tidegate_core.storage import KvDtype, Quantization, storage_of

if TYPE_CHECKING:
    from tidegate_operator.api.v1alpha1 import InferencePool


class PlanExit(IntEnum):
    """Exit codes of `tidegate plan`."""

    FITS = 0
    BAD_INPUT = 2
    MODEL_UNREACHABLE = 3
    DOES_NOT_FIT = 4  # or is not served


_OFFLINE = {
    "--gpu": "gpu",
    "--gpu-memory": "gpu_memory",
    "--cpu-memory": "cpu_memory",
    "--gpu-count": "gpu_count",
    "--context": "context",
    "--kv-dtype": "kv_dtype",
    "--quantization": "quantization",
    "--prompt-tokens": "prompt_tokens",
    "--output-tokens": "output_tokens",
    "--users": "users",
}
_WRITERS: dict[str, Callable[[Answer, str], str]] = {
    "table": lambda answer, _: to_table(answer),
    "json": lambda answer, _: to_json(answer),
    "markdown": to_markdown,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A model, a device and a demand; flags win over the manifest."""
    parser.add_argument("-f", "--file", metavar="POOL.yaml", help="an InferencePool manifest; - reads standard input")
    parser.add_argument(
        "--model", metavar="MODEL", help="model directory, GGUF file, config.json, or hf://ORG/NAME at HF_ENDPOINT"
    )
    device = parser.add_mutually_exclusive_group()
    device.add_argument("--gpu", metavar="NAME", help="a GPU by name or product label, such as L4 or H100-80GB")
    device.add_argument("--gpu-memory", metavar="SIZE", help="a GPU by its memory, such as 24Gi")
    device.add_argument("--cpu-memory", metavar="SIZE", help="a CPU pool by its pods' memory limit, such as 4Gi")
    parser.add_argument(
        "--gpu-count", type=int, choices=DEVICE_COUNTS, help="GPUs of one replica (default: the fewest that fit)"
    )
    parser.add_argument("--context", type=_count, metavar="N", help="longest sequence wanted, in tokens")
    parser.add_argument("--kv-dtype", choices=tuple(KvDtype), help="KV cache (default: auto, as wide as the model)")
    parser.add_argument("--quantization", choices=tuple(Quantization), help="weights on CPU (default: as they are)")
    parser.add_argument("--prompt-tokens", type=_count, metavar="N", help="p90 prompt length (default: 900)")
    parser.add_argument("--output-tokens", type=_count, metavar="N", help="p90 output length (default: 300)")
    parser.add_argument("--users", type=_count, metavar="N", help="people at once: also shows the load they offer")
    parser.add_argument(
        "--generation-seconds", type=_seconds, metavar="S", default=12.0, help="an answer (default: 12)"
    )
    parser.add_argument(
        "--turn-seconds", type=_seconds, metavar="S", default=90.0, help="between questions (default: 90)"
    )
    parser.add_argument(
        "--cluster", action="store_true", help="for the nodes of a cluster: room, rollout, cold start; needs -f"
    )
    parser.add_argument("--prices", metavar="FILE", help="with --cluster: YAML of what an hour costs, as in the chart")
    add_access_arguments(parser, "--kube-context")
    parser.add_argument("-o", "--output", choices=tuple(_WRITERS), default="table", help="default: table")


def run(arguments: argparse.Namespace) -> int:
    """Prints the fit; a PlanExit."""
    try:
        pool = None if arguments.file is None else read_pool(arguments.file)
        answer = _there(arguments, pool) if arguments.cluster else _anywhere(arguments, pool)
    except (BadPlan, CoreError) as error:
        return _refuse(error, PlanExit.BAD_INPUT)
    except (MissingCheckpoint, ModelElsewhere, OSError) as error:
        return _refuse(error, PlanExit.MODEL_UNREACHABLE)
    except CheckpointError as error:
        return _refuse(error, PlanExit.BAD_INPUT)
    print(_WRITERS[arguments.output](answer, _title(arguments, pool)))
    return PlanExit.FITS if answer.is_good else PlanExit.DOES_NOT_FIT


def _anywhere(arguments: argparse.Namespace, pool: "InferencePool | None") -> Answer:
    """On a device that was named, or the smallest GPU that does."""
    if arguments.prices is not None:
        raise BadPlan("--prices is for --cluster: without one there are no nodes that cost something")
    device = _device(arguments, pool)
    demand = _demand(arguments, pool)
    kv_dtype = _kv_dtype(arguments, pool, device)
    quantization = _quantization(arguments, pool, device)
    shape = _model(arguments, pool).shape
    storage = storage_of(shape, kv_dtype, quantization)
    num_devices = _num_devices(arguments, pool, device)

    def plan(target: Target) -> Fit:
        return plan_replica(shape, Spread.of(target, num_devices), demand, storage)

    if device is None:
        fit, device = smallest_gpu(plan)
    else:
        fit = plan(device.target)
    return Answer(shape, demand, device, fit)


def _there(arguments: argparse.Namespace, pool: "InferencePool | None") -> Answer:
    """On the cluster's nodes; only the manifest says what is wanted, since that is what would be applied."""
    if pool is None:
        raise BadPlan("--cluster plans what would be applied: give -f POOL.yaml")
    given = [flag for flag, name in _OFFLINE.items() if getattr(arguments, name) is not None]
    if given:
        raise BadPlan(f"{', '.join(given)}: with --cluster the nodes and the manifest say that; change the manifest")
    from tidegate_cli.cluster.planning import look, plan_there, price_list

    prices = price_list(arguments.prices)
    pool, world = look(arguments, pool)
    model = world.known_model if arguments.model is None else None
    model = model or _model(arguments, pool)
    found = plan_there(pool, world, model, prices)
    return Answer(model.shape, _demand(arguments, pool), found.device, found.fit, found.prospect)


def _title(arguments: argparse.Namespace, pool: "InferencePool | None") -> str:
    return str(arguments.model) if pool is None else f"InferencePool {pool.metadata.name}"


def _refuse(error: Exception, code: PlanExit) -> PlanExit:
    print(f"tidegate plan: {error}", file=sys.stderr)
    return code


def _model(arguments: argparse.Namespace, pool: "InferencePool | None") -> Inspected:
    """The flag's model, else the manifest's where it can be reached from here."""
    if arguments.model is None and pool is None:
        raise BadPlan("nothing to plan: give --model DIR, -f POOL.yaml, or both")
    model = arguments.model if arguments.model is not None else pool.spec.model.uri if pool else ""
    if model.startswith(SCHEME):
        return _at_hub(model, pool.spec.model.revision if pool and arguments.model is None else None)
    if arguments.model is None:
        raise ModelElsewhere(f"{model} is inside the cluster; give --model DIR with a copy of its config.json")
    return Inspected(read_shape(Path(model)))


def _at_hub(uri: str, revision: str | None) -> Inspected:
    """Config and heads of weight files are read; the hub's client is imported only where one is asked."""
    from tidegate_engine.hub.client import Hub
    from tidegate_engine.hub.errors import HubError
    from tidegate_engine.hub.skeleton import inspect

    try:
        return inspect(Hub(), uri, revision or DEFAULT_REVISION)
    except HubError as error:
        raise ModelElsewhere(f"{error} (from here HF_ENDPOINT and HF_TOKEN say where and who)") from error


def _device(arguments: argparse.Namespace, pool: "InferencePool | None") -> PlannedDevice | None:
    """The flags' device, else the manifest's; None leaves the choice to us."""
    if arguments.gpu is not None:
        return named_gpu(arguments.gpu)
    if arguments.gpu_memory is not None:
        return device_with(Device.CUDA, arguments.gpu_memory, "--gpu-memory")
    if arguments.cpu_memory is not None:
        return device_with(Device.CPU, arguments.cpu_memory, "--cpu-memory")
    if pool is None:
        return None
    if pool.spec.accelerator.is_cpu:
        limit = pool.spec.pod.resources.limits.get("memory")
        if limit is None:
            raise BadPlan("a cpu pool needs spec.pod.resources.limits.memory, the memory of its device, such as 4Gi")
        return device_with(Device.CPU, limit, "spec.pod.resources.limits.memory")
    memory = pool.spec.accelerator.memory
    return None if memory is None else device_with(Device.CUDA, memory, "spec.accelerator.memory")


def _num_devices(
    arguments: argparse.Namespace, pool: "InferencePool | None", device: PlannedDevice | None
) -> int | None:
    given: int | None = arguments.gpu_count
    if device is not None and device.target.device == Device.CPU:
        if given is not None:
            raise BadPlan("--gpu-count is for GPUs; a cpu pool's cores are its pods' limit")
        return None
    return given or (None if pool is None else pool.spec.accelerator.count)


def _kv_dtype(arguments: argparse.Namespace, pool: "InferencePool | None", device: PlannedDevice | None) -> KvDtype:
    given = KvDtype(arguments.kv_dtype) if arguments.kv_dtype is not None else None
    if given is None and pool is not None:
        from tidegate_operator.sizing.fitting import kv_dtype

        given = kv_dtype(pool)
    if given is KvDtype.FP8 and device is not None and device.target.device == Device.CPU:
        raise BadPlan("an fp8 KV cache needs a GPU of compute capability 8.9 or newer; --kv-dtype int8 is as small")
    return given or KvDtype.AUTO


def _quantization(
    arguments: argparse.Namespace, pool: "InferencePool | None", device: PlannedDevice | None
) -> Quantization | None:
    given = Quantization(arguments.quantization) if arguments.quantization is not None else None
    if given is None and pool is not None:
        from tidegate_operator.sizing.fitting import quantization

        given = quantization(pool)
    if given is not None and (device is None or device.target.device != Device.CPU):
        raise BadPlan(f"{given} weights are offered on CPU only: give --cpu-memory, or leave --quantization out")
    return given


def _demand(arguments: argparse.Namespace, pool: "InferencePool | None") -> Demand:
    """A --context below the manifest's context.min lowers that too."""
    spec = None if pool is None else pool.spec
    context_max = arguments.context or (spec.context.max if spec else None)
    context_min = spec.context.min if spec else None
    if arguments.context is not None and context_min is not None:
        context_min = min(context_min, arguments.context)
    return Demand(
        context_max=context_max,
        context_min=context_min,
        prompt_tokens=arguments.prompt_tokens or (spec.traffic.prompt_tokens if spec else 900),
        output_tokens=arguments.output_tokens or (spec.traffic.output_tokens if spec else 300),
        users=arguments.users,
        generation_seconds=arguments.generation_seconds,
        turn_seconds=arguments.turn_seconds,
    )


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least 1, such as 8192")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = nan
    if not 0 < value < inf:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds above 0, such as 12.5")
    return value
