"""The PodMonitor that lets a Prometheus operator scrape a pool's engines, where that API is installed and wanted.

Engines are scraped on the admin port, which answers while the API port is full. The label `pool` is what the chart's
rules and dashboard go by.
"""

from collections.abc import Mapping

from tidegate_core.telemetry import METRICS_PATH
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.labels import ENGINE_ROLE, metadata, selector
from tidegate_operator.manifests.merge import merge
from tidegate_operator.resources import POD_MONITOR, Manifest


def pod_monitor(pool: InferencePool, extra_labels: Mapping[str, str]) -> Manifest:
    """`extra_labels`: by which a Prometheus finds the monitors that are for it."""
    name = pool.metadata.name
    pool_label = {"targetLabel": "pool", "replacement": name}
    manifest = {
        "apiVersion": POD_MONITOR.api_version,
        "kind": POD_MONITOR.kind,
        "metadata": metadata(pool, name, ENGINE_ROLE),
        "spec": {
            "selector": {"matchLabels": selector(name)},
            "podMetricsEndpoints": [{"port": "admin", "path": METRICS_PATH, "relabelings": [pool_label]}],
        },
    }
    return merge(manifest, {"metadata": {"labels": dict(extra_labels)}})
