"""Pods for tests of the cluster and for helpers in scenarios: within the restricted pod security level."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

UID = 10001


@dataclass(frozen=True)
class RestrictedPod:
    """A pod with one container that runs once; `claims` maps claim names to where they are mounted, read-only."""

    name: str
    image: str
    command: Sequence[str]
    claims: Mapping[str, str] = field(default_factory=dict)
    num_gpus: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)

    def manifest(self) -> str:
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": self.name, "labels": dict(self.labels)},
                "spec": {
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 1,
                    "automountServiceAccountToken": False,
                    "securityContext": {
                        "runAsNonRoot": True,
                        "runAsUser": UID,
                        "runAsGroup": UID,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "containers": [self._container()],
                    "volumes": [{"name": "tmp", "emptyDir": {}}, *map(_volume, self.claims)],
                },
            }
        )

    def _container(self) -> dict[str, object]:
        mounts = [{"name": claim, "mountPath": path, "readOnly": True} for claim, path in self.claims.items()]
        return {
            "name": "main",
            "image": self.image,
            "command": list(self.command),
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            "resources": {"limits": {"nvidia.com/gpu": self.num_gpus}} if self.num_gpus else {},
            "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *mounts],
        }


def _volume(claim: str) -> dict[str, object]:
    return {"name": claim, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
