"""The project's chart as manifests, by Helm's own SDK, so that neither tests nor the demo need a helm binary.

The SDK has a single maintainer: nothing else imports it. Rendering knows no cluster, so `lookup` finds nothing and the
drain token is new each time; whoever installs twice keeps the Secret of the first time.
"""

from pathlib import Path
from typing import Any

import helm_python
import yaml

CHART = Path(__file__).parents[2] / "charts" / "tidegate"
Manifest = dict[str, Any]  # an object as the API server spells it


class ChartRefused(Exception):
    """Helm does not take these values, or cannot render with them; the message names the value."""


def render_chart(
    values: Manifest | None = None, *, release: str = "tidegate", namespace: str = "tidegate"
) -> list[Manifest]:
    """What `helm install RELEASE --namespace NAMESPACE` would send. Raises ChartRefused."""
    with helm_python.Chart.load(CHART) as chart:
        try:
            chart.validate_schema(values or {})
            rendered = chart.render(values=values or {}, name=release, namespace=namespace)
        except helm_python.HelmError as error:
            raise ChartRefused(f"chart {CHART}: {error}") from error
    texts = (text for name, text in rendered.items() if name.endswith(".yaml"))
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def lint_chart() -> list[str]:
    """Findings of `helm lint --strict`."""
    report = helm_python.lint(CHART, strict=True)
    return [*report["errors"], *(message["error"] for message in report["messages"] if message["severity"] >= 2)]
