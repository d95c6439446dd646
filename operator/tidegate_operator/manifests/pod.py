"""What engine pods and inspection pods have in common, and the engine's pod template.

Both run under the `restricted` pod security profile, see the model read-only under /models and answer to the same
image, so that a node that inspects a model can also serve it. An engine is probed on its admin port: a busy engine
still answers there, and probes never compete with requests.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from tidegate_core.launch import EngineLaunch
from tidegate_core.quantity import format_quantity
from tidegate_core.telemetry import ADMIN_PORT, API_PORT, LIVEZ_PATH, READYZ_PATH
from tidegate_core.termination import TERMINATION_MESSAGE_PATH
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.labels import ENGINE_CONTAINER, ENGINE_ROLE, SERVING_LABEL, labels
from tidegate_operator.manifests.hub_access import hub_variables, token_mounts, token_volumes
from tidegate_operator.manifests.merge import merge
from tidegate_operator.manifests.model_volume import ModelVolume
from tidegate_operator.manifests.resources import ContainerResources, shared_memory_bytes
from tidegate_operator.resources import Manifest

COMMAND = ("python", "-m", "tidegate_cli")
CHAT_TEMPLATE_VOLUME = "chat-template"
CHAT_TEMPLATE_DIRECTORY = "/etc/tidegate"
CHAT_TEMPLATE_KEY = "chat_template.jinja"
API_KEYS_VOLUME = "api-keys"
API_KEYS_DIRECTORY = "/etc/tidegate-api-keys"
API_KEYS_KEY = "keys"
API_KEYS_FILE = f"{API_KEYS_DIRECTORY}/{API_KEYS_KEY}"
UID = 10001

LAME_DUCK_SECONDS = 5  # preStop: kube-proxy and load balancers learn that the pod leaves before it stops accepting
GRACE_MARGIN_SECONDS = 10  # between the engine's own deadline and the kernel's
STARTUP_PERIOD_SECONDS = 2
STARTUP_BASE_SECONDS = 180  # interpreter, libraries, warm-up, on a busy node
SLOWEST_READ_BYTES_PER_SECOND = 10_000_000  # a shared network volume on a bad day; who ends is not waited for

_TMP: tuple[Manifest, Manifest] = (
    {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
    {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the emptyDir
)


@dataclass(frozen=True)
class Runtime:
    """What the operator's settings say about pods: image and escape hatch."""

    image: str
    pod_patch: Manifest
    image_pull_policy: str = "IfNotPresent"
    hub_endpoint: str = ""  # empty: the hub's client knows


def startup_seconds(weight_bytes: int) -> int:
    """How long loading may take before the kubelet restarts an engine."""
    return STARTUP_BASE_SECONDS + ceil(weight_bytes / SLOWEST_READ_BYTES_PER_SECOND)


def grace_seconds(drain_seconds: int) -> int:
    """From the pod's deletion to SIGKILL: lame duck, drain, margin."""
    return LAME_DUCK_SECONDS + drain_seconds + GRACE_MARGIN_SECONDS


def engine_template(
    pool: InferencePool,
    launch: EngineLaunch,
    resources: ContainerResources,
    runtime: Runtime,
    models: ModelVolume,
    *,
    weight_bytes: int,
    chat_template_map: str | None,
) -> Manifest:
    """The pod template of the Deployment, the settings' patch merged in; the template hash is added by its revision."""
    container = {
        "args": ["serve", *launch.to_args()],
        "ports": [_port("api", API_PORT), _port("admin", ADMIN_PORT)],
        "startupProbe": {
            "httpGet": _admin_get(READYZ_PATH),
            "periodSeconds": STARTUP_PERIOD_SECONDS,
            "timeoutSeconds": 5,
            "failureThreshold": ceil(startup_seconds(weight_bytes) / STARTUP_PERIOD_SECONDS),
        },
        "readinessProbe": {
            "httpGet": _admin_get(READYZ_PATH), "periodSeconds": 2, "timeoutSeconds": 2, "failureThreshold": 2,
        },
        "livenessProbe": {
            "httpGet": _admin_get(LIVEZ_PATH), "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3,
        },
        "lifecycle": {"preStop": {"sleep": {"seconds": LAME_DUCK_SECONDS}}},
    }  # fmt: skip
    spec = {
        "serviceAccountName": pool.metadata.name,
        "terminationGracePeriodSeconds": grace_seconds(ceil(launch.drain_seconds)),
    }
    template = _pod_template(
        pool,
        ENGINE_ROLE,
        resources=resources,
        runtime=runtime,
        container=container,
        spec=spec,
    )
    mounted = [(models.volume(), models.mount()), _TMP, *_chat_template(chat_template_map)]
    template = merge(template, _volumes([*mounted, *_shared_memory(launch.tensor_parallel)]))
    template = merge(template, {"metadata": {"labels": {SERVING_LABEL: "true"}}})
    template = merge(template, _api_keys(pool))
    return merge(template, runtime.pod_patch)


def job_template(
    pool: InferencePool,
    role: str,
    args: tuple[str, ...],
    resources: ContainerResources,
    *,
    runtime: Runtime,
    models: ModelVolume | None,
) -> dict[str, Any]:
    """A Job's pod, placed as engines are, so that its volume lands where engines can run.

    A Job for a hub's model may ask the hub: it writes the volume, where it has one, and sees the token.
    """
    template = _pod_template(
        pool,
        role,
        resources=resources,
        runtime=runtime,
        container={"args": list(args)},
        spec={"restartPolicy": "Never"},
    )
    is_online = pool.spec.model.is_of_hub
    mounted = [(models.volume(), models.mount(is_writable=is_online))] if models else []
    template = merge(template, _volumes([*mounted, _TMP]))
    if is_online:
        (container,) = template["spec"]["containers"]
        variables = hub_variables(pool, runtime.hub_endpoint, container["env"])
        container = {**container, "env": variables, "volumeMounts": [*container["volumeMounts"], *token_mounts(pool)]}
        volumes = [*template["spec"]["volumes"], *token_volumes(pool)]
        template["spec"] = {**template["spec"], "containers": [container], "volumes": volumes}
    return merge(template, runtime.pod_patch)


def _pod_template(
    pool: InferencePool,
    role: str,
    *,
    resources: ContainerResources,
    runtime: Runtime,
    container: Manifest,
    spec: Manifest,
) -> dict[str, Any]:
    base = {
        "name": ENGINE_CONTAINER,
        "image": runtime.image,
        "imagePullPolicy": runtime.image_pull_policy,
        "command": list(COMMAND),
        "env": [
            {"name": "HOME", "value": "/tmp"},  # noqa: S108 - an emptyDir
            {"name": "HF_HUB_OFFLINE", "value": "1"},
            *(variable.to_wire() for variable in pool.spec.pod.env),
        ],
        "resources": resources.to_manifest(),
        "securityContext": {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePath": TERMINATION_MESSAGE_PATH,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }  # fmt: skip
    return {
        "metadata": _pod_metadata(pool, role),
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True, "runAsUser": UID, "runAsGroup": UID, "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{**base, **container}],
            **_placement(pool),
            **spec,
        },
    }  # fmt: skip


def _pod_metadata(pool: InferencePool, role: str) -> Manifest:
    user = pool.spec.pod
    annotations = {"annotations": dict(user.annotations)} if user.annotations else {}
    return {"labels": {**user.labels, **labels(pool, role)}, **annotations}


def _volumes(mounted: list[tuple[Manifest, Manifest]]) -> Manifest:
    """Volumes with their mounts, as a patch of a template that has none yet."""
    volumes, mounts = [volume for volume, _ in mounted], [mount for _, mount in mounted]
    return {"spec": {"containers": [{"name": ENGINE_CONTAINER, "volumeMounts": mounts}], "volumes": volumes}}


def _shared_memory(num_devices: int) -> list[tuple[Manifest, Manifest]]:
    """A runtime's own /dev/shm has 64 MiB, too few for the processes of several devices."""
    if num_devices == 1:
        return []
    size = format_quantity(shared_memory_bytes(num_devices))
    volume = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}
    return [(volume, {"name": "shm", "mountPath": "/dev/shm"})]  # noqa: S108 - the emptyDir


def _chat_template(config_map: str | None) -> list[tuple[Manifest, Manifest]]:
    if config_map is None:
        return []
    volume = {"name": CHAT_TEMPLATE_VOLUME, "configMap": {"name": config_map}}
    return [(volume, {"name": CHAT_TEMPLATE_VOLUME, "mountPath": CHAT_TEMPLATE_DIRECTORY, "readOnly": True})]


def _api_keys(pool: InferencePool) -> Manifest:
    """The pool's key file, for engines only. A whole directory: a mount of one file would never change."""
    reference = pool.spec.access.api_keys_secret_ref
    if reference is None:
        return {}
    items = [{"key": reference.key, "path": API_KEYS_KEY}]
    volume = {"name": API_KEYS_VOLUME, "secret": {"secretName": reference.name, "items": items}}
    mount = {"name": API_KEYS_VOLUME, "mountPath": API_KEYS_DIRECTORY, "readOnly": True}
    return {"spec": {"containers": [{"name": ENGINE_CONTAINER, "volumeMounts": [mount]}], "volumes": [volume]}}


def tolerations(pool: InferencePool) -> list[Manifest]:
    """What the user wrote, and the taint that device vendors' guides put on their nodes."""
    said: list[Manifest] = [toleration.to_wire() for toleration in pool.spec.pod.tolerations]
    if not pool.spec.accelerator.is_cpu:
        said.append({"key": pool.spec.accelerator.resource, "operator": "Exists"})
    return said


def _placement(pool: InferencePool) -> Mapping[str, object]:
    user = pool.spec.pod
    borne = tolerations(pool)
    found: dict[str, object] = {"tolerations": borne} if borne else {}
    if user.node_selector:
        found["nodeSelector"] = dict(user.node_selector)
    if user.affinity:
        found["affinity"] = user.affinity.as_in_a_pod()
    if user.priority_class_name:
        found["priorityClassName"] = user.priority_class_name
    if user.runtime_class_name:
        found["runtimeClassName"] = user.runtime_class_name
    if user.image_pull_secrets:
        found["imagePullSecrets"] = [secret.to_wire() for secret in user.image_pull_secrets]
    return found


def _port(name: str, number: int) -> Manifest:
    return {"name": name, "containerPort": number, "protocol": "TCP"}


def _admin_get(path: str) -> Manifest:
    return {"path": path, "port": ADMIN_PORT, "scheme": "HTTP"}
