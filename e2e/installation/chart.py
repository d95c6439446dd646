"""The project's Helm chart as manifests. Helm's Python SDK has a single maintainer, so only this file knows it."""

from typing import Any

import helm_python
import yaml

from e2e.cluster.paths import REPOSITORY

CHART = REPOSITORY / "charts" / "tidegate"
Manifests = list[dict[str, Any]]  # Kubernetes objects as YAML has them


class Refused(Exception):
    """Helm does not take these values, or cannot render with them."""


def render_chart(values: dict[str, Any] | None = None, *, release: str, namespace: str) -> Manifests:
    """What `helm install RELEASE --namespace NAMESPACE` with these values would send. Raises Refused."""
    with helm_python.Chart.load(CHART) as chart:
        try:
            chart.validate_schema(values or {})
            rendered = chart.render(values=values or {}, name=release, namespace=namespace)
        except helm_python.HelmError as error:
            raise Refused(str(error)) from error
    texts = (text for name, text in rendered.items() if name.endswith(".yaml"))
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def lint_chart() -> list[str]:
    """Findings of `helm lint --strict`."""
    report = helm_python.lint(CHART, strict=True)
    return [*report["errors"], *(message["error"] for message in report["messages"] if message["severity"] >= 2)]
