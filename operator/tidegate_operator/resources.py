"""The Kubernetes resources the operator touches, as one table: kind -> group, version, plural.

Read wherever a manifest has to become a URL (kube), a watch (handlers) or a list of children (observe). The role in
rbac.py grants exactly these.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Manifest = Mapping[str, Any]  # an object as the API server spells it: free-form JSON by nature, hence Any
Key = tuple[str, str]  # namespace, name


@dataclass(frozen=True)
class Resource:
    """One API resource; `group` is empty for the core group."""

    group: str
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full_name(self) -> str:
        """Unmistakable, as kubectl takes it: podmonitors.monitoring.coreos.com."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path; without a namespace that of all namespaces, or of a cluster-wide resource."""
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if namespace else ""
        return root + scope + "".join(f"/{part}" for part in (self.plural, name, subresource) if part)


POOL = Resource("tidegate.dev", "v1alpha1", "inferencepools", "InferencePool")
DEPLOYMENT = Resource("apps", "v1", "deployments", "Deployment")
CONTROLLER_REVISION = Resource("apps", "v1", "controllerrevisions", "ControllerRevision")
SERVICE = Resource("", "v1", "services", "Service")
SERVICE_ACCOUNT = Resource("", "v1", "serviceaccounts", "ServiceAccount")
CONFIG_MAP = Resource("", "v1", "configmaps", "ConfigMap")
POD = Resource("", "v1", "pods", "Pod")
PERSISTENT_VOLUME_CLAIM = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
NODE = Resource("", "v1", "nodes", "Node")
RESOURCE_QUOTA = Resource("", "v1", "resourcequotas", "ResourceQuota")
JOB = Resource("batch", "v1", "jobs", "Job")
NETWORK_POLICY = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
POD_DISRUPTION_BUDGET = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
EVENT = Resource("events.k8s.io", "v1", "events", "Event")
LEASE = Resource("coordination.k8s.io", "v1", "leases", "Lease")

# Neighbours: looked at everywhere, there or not.
AUTOSCALER = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
SCALED_OBJECT = Resource("keda.sh", "v1alpha1", "scaledobjects", "ScaledObject")
GIE_POOL = Resource("inference.networking.k8s.io", "v1", "inferencepools", "InferencePool")  # our kind's namesake
POD_MONITOR = Resource("monitoring.coreos.com", "v1", "podmonitors", "PodMonitor")
OPTIONAL = (GIE_POOL, POD_MONITOR)  # children where their API is installed and somebody asked for them

CHILDREN = (  # what a pool owns directly
    SERVICE_ACCOUNT, CONFIG_MAP, CONTROLLER_REVISION, PERSISTENT_VOLUME_CLAIM, NETWORK_POLICY, POD_DISRUPTION_BUDGET,
    SERVICE, DEPLOYMENT, JOB,
)  # fmt: skip
_KNOWN = {(each.api_version, each.kind): each for each in (POOL, *CHILDREN, *OPTIONAL, POD, NODE, EVENT, LEASE)}


def resource_of(manifest: Manifest) -> Resource:
    """The resource a manifest of ours belongs to; a kind outside the table is our own bug."""
    return _KNOWN[manifest["apiVersion"], manifest["kind"]]
