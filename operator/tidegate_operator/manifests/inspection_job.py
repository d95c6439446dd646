"""The Job that reads a model's shape where the model is: in the pool's namespace, on its volume, with its placement.

Of a hub's model it asks the hub, with the pool's token. So the operator needs no access to models. One pod, one try:
the operator counts tries and waits between them, since it knows which failures another try can help.
"""

from tidegate_core.hub import DEFAULT_REVISION
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.labels import INSPECTION_ROLE, metadata
from tidegate_operator.manifests.hub_access import token_arguments
from tidegate_operator.manifests.model_volume import inspected_volume, model_path
from tidegate_operator.manifests.pod import Runtime, job_template
from tidegate_operator.manifests.resources import inspection_resources
from tidegate_operator.resources import JOB, Manifest

RUNNING_DEADLINE_SECONDS = 1800  # a cold node, a large image


def inspection_job(pool: InferencePool, name: str, runtime: Runtime) -> Manifest:
    args = ("inspect", *_model(pool), "--termination-message")
    resources, models = inspection_resources(), inspected_volume(pool)
    template = job_template(pool, INSPECTION_ROLE, args, resources, runtime=runtime, models=models)
    return {
        "apiVersion": JOB.api_version,
        "kind": JOB.kind,
        "metadata": metadata(pool, name, INSPECTION_ROLE),
        "spec": {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "activeDeadlineSeconds": RUNNING_DEADLINE_SECONDS,
            "template": template,
        },
    }


def _model(pool: InferencePool) -> tuple[str, ...]:
    model = pool.spec.model
    if not model.is_of_hub:
        return (model_path(pool),)
    return (model.uri, "--revision", model.revision or DEFAULT_REVISION, *token_arguments(pool))
