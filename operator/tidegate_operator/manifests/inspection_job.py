"""The Job that reads a model's shape where the model is: in the pool's namespace, on its volume, with its placement.

So the operator needs no access to models. One pod, one try: the operator counts tries and waits between them, since
it knows which failures another try can help.
"""

from tidegate_core.launch import MODELS_PATH
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.manifests.labels import INSPECTION_ROLE, metadata
from tidegate_operator.manifests.pod import Runtime, job_template
from tidegate_operator.manifests.resources import inspection_resources
from tidegate_operator.resources import JOB, Manifest

RUNNING_DEADLINE_SECONDS = 1800  # a cold node, a large image


def model_path(pool: InferencePool) -> str:
    """Where engines and the inspection find the model."""
    return f"{MODELS_PATH}/{pool.spec.model.path}".rstrip("/")


def inspection_job(pool: InferencePool, name: str, runtime: Runtime) -> Manifest:
    args = ("inspect", model_path(pool), "--termination-message")
    return {
        "apiVersion": JOB.api_version,
        "kind": JOB.kind,
        "metadata": metadata(pool, name, INSPECTION_ROLE),
        "spec": {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "activeDeadlineSeconds": RUNNING_DEADLINE_SECONDS,
            "template": job_template(pool, args, inspection_resources(), runtime),
        },
    }
