"""Folders of the machine as PersistentVolumes: how a pod gets the Python environment and the model without a copy.

The pair is static and read-only and bound by name, so nothing has to be provisioned; the pod sees an ordinary claim,
which the restricted pod security level allows where it forbids hostPath. Volumes are cluster-wide, so their names and a
label carry the namespace, by which they are removed with it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

VENV_MOUNT = "/opt/venv"  # where the engine image looks for its packages
NAMESPACE_LABEL = "tidegate.dev/local-namespace"
SIZE = {"storage": "1Gi"}  # asked for and given alike; nothing measures it


@dataclass(frozen=True)
class HostVolume:
    """The folder `path` of the machine, as claim `claim` in `namespace`."""

    namespace: str
    claim: str
    path: Path

    @property
    def name(self) -> str:
        return f"{self.namespace}-{self.claim}"

    def volume(self) -> Mapping[str, object]:
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": self.name, "labels": {NAMESPACE_LABEL: self.namespace}},
            "spec": {
                "capacity": SIZE,
                "accessModes": ["ReadOnlyMany"],
                "storageClassName": "",
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": self.namespace, "name": self.claim},
                "hostPath": {"path": str(self.path), "type": "Directory"},
            },
        }

    def persistent_claim(self) -> Mapping[str, object]:
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": self.claim, "namespace": self.namespace},
            "spec": {
                "accessModes": ["ReadOnlyMany"],
                "storageClassName": "",
                "volumeName": self.name,
                "resources": {"requests": SIZE},
            },
        }


def environment_patch(container: str, claim: str = "venv", mount: str = VENV_MOUNT) -> dict[str, object]:
    """A pod template patch (the operator's engine.podTemplatePatch) that mounts a Python environment from a claim."""
    volume = {"name": claim, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
    mounted = {"name": container, "volumeMounts": [{"name": claim, "mountPath": mount, "readOnly": True}]}
    return {"spec": {"volumes": [volume], "containers": [mounted]}}


def manifests(volumes: list[HostVolume]) -> str:
    """A List for `kubectl apply -f -`."""
    items = [item for volume in volumes for item in (volume.volume(), volume.persistent_claim())]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
