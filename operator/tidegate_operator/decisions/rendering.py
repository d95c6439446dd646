"""A pool's pod template as it would be today, with its sizing and its times: what a new revision freezes. Pure.

planning.py renders one when the user's inputs are in no revision yet, `tidegate plan` to show it.
"""

from tidegate_core.fit import Fit
from tidegate_core.launch import Device, EngineLaunch, RunnerKind
from tidegate_operator.api.status import SizingBasis
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.decisions.drain_time import DEFAULT_SECONDS
from tidegate_operator.decisions.engine_version import EngineDefaults
from tidegate_operator.decisions.extra_args import with_extra_args
from tidegate_operator.decisions.revisions import TemplateRevision, content_hash, inputs_hash
from tidegate_operator.labels import TEMPLATE_LABEL
from tidegate_operator.manifests.avoidance import avoiding
from tidegate_operator.manifests.config_map import CHAT_TEMPLATE_FILE, chat_template_name
from tidegate_operator.manifests.download import download_seconds, with_download
from tidegate_operator.manifests.merge import merge
from tidegate_operator.manifests.model_volume import HubFiles, disk_bytes, model_path, served_volume
from tidegate_operator.manifests.pod import API_KEYS_FILE, engine_template, startup_seconds
from tidegate_operator.manifests.resources import engine_resources
from tidegate_operator.sizing.fitting import kv_dtype, quantization, sizing_status

PULL_ALLOWANCE_SECONDS = 600  # a large image, on a node that has never had it


def render_revision(
    pool: InferencePool,
    fit: Fit,
    defaults: EngineDefaults,
    number: int,
    drain_seconds: int = DEFAULT_SECONDS,
    *,
    files: HubFiles | None = None,
    basis: SizingBasis | None = None,
    avoid: tuple[str, ...] = (),
) -> TemplateRevision:
    """A new template from the user's spec, this operator's defaults, a sizing that fits and a time to drain.

    `files` are those of a hub's model; `basis` is what was sized; `avoid` are nodes that fail this pool's pods.
    """
    launch = with_extra_args(engine_launch(pool, fit, defaults, drain_seconds, files), pool)
    fetched = files if pool.spec.cache is None else None  # by each pod
    num_bytes = disk_bytes(fetched.num_bytes) if fetched else 0
    template = engine_template(
        pool,
        launch,
        engine_resources(pool, fit.resident_bytes, num_bytes, fit.tensor_parallel),
        defaults.runtime,
        served_volume(pool, files),
        weight_bytes=fit.weight_bytes,
        chat_template_map=chat_template_name(pool),
    )
    if fetched is not None:
        template = with_download(pool, template, fetched, defaults.runtime)
    template = avoiding(template, avoid)
    start_seconds = startup_seconds(fit.weight_bytes) + download_seconds(num_bytes)
    return TemplateRevision(
        name=f"{pool.metadata.name}-{number}",
        number=number,
        inputs=inputs_hash(pool),
        template=merge(template, {"metadata": {"labels": {TEMPLATE_LABEL: content_hash(template)}}}),
        sizing=sizing_status(pool, fit, basis),
        engine=defaults.version,
        drain_seconds=drain_seconds,
        snapshot=files.snapshot.name if files else "",
        progress_deadline_seconds=start_seconds + PULL_ALLOWANCE_SECONDS,
    )


def engine_launch(
    pool: InferencePool,
    fit: Fit,
    defaults: EngineDefaults,
    drain_seconds: int = DEFAULT_SECONDS,
    files: HubFiles | None = None,
) -> EngineLaunch:
    """The engine's arguments, as far as the operator sets them.

    On CUDA the KV pool is measured after loading; elsewhere nothing can be measured, so the planned size is given.
    """
    spec = pool.spec
    measures_memory = not spec.accelerator.is_cpu and defaults.runner is RunnerKind.TORCH
    return EngineLaunch(
        model=model_path(pool, files),
        device=Device.CPU if spec.accelerator.is_cpu else Device.CUDA,
        tensor_parallel=fit.tensor_parallel,
        runner=defaults.runner,
        context=fit.context,
        slots=fit.slots,
        kv_memory=None if measures_memory else fit.kv_pool_bytes,
        kv_dtype=kv_dtype(pool),
        quantization=quantization(pool),
        max_queue=spec.queue.max_requests,
        max_queue_tokens=spec.queue.max_tokens,
        max_wait_seconds=spec.queue.max_wait_seconds,
        prompt_tokens=spec.traffic.prompt_tokens,
        output_tokens=spec.traffic.output_tokens,
        itl_ms=spec.objectives.itl_milliseconds,
        served_name=spec.served_names(pool.metadata.name),
        chat_template=CHAT_TEMPLATE_FILE if spec.model.chat_template else None,
        api_keys_file=API_KEYS_FILE if spec.access.api_keys_secret_ref else None,
        trust_fairness_header=spec.access.trust_fairness_header,
        drain_seconds=drain_seconds,
        drain_token_sha256=defaults.drain_token_sha256,
        sim_preemptions_per_minute=defaults.sim_preemptions_per_minute if defaults.runner is RunnerKind.SIM else 0.0,
    )
