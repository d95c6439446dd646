"""The HTML report of a run: one file without links, to be opened anywhere or attached to a change."""

from collections.abc import Sequence
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from tidegate_cli.bench import plots
from tidegate_cli.bench.endpoint import Endpoint
from tidegate_cli.bench.outcome import Outcome
from tidegate_cli.bench.summary import Objectives, Summary, to_json, to_table
from tidegate_cli.bench.workload import Workload


def html_report(
    endpoint: Endpoint, workload: Workload, outcomes: Sequence[Outcome], summary: Summary, objectives: Objectives
) -> str:
    """The whole page."""
    template = files("tidegate_cli.bench").joinpath("report.html.j2").read_text(encoding="utf-8")
    page = Environment(autoescape=True, undefined=StrictUndefined).from_string(template)
    pictures = {
        "Throughput": plots.throughput(outcomes),
        "Latency": plots.latencies(outcomes),
        "Time to first token": plots.first_tokens(outcomes),
    }
    return page.render(
        url=endpoint.path,
        model=endpoint.model,
        load=workload.description,
        loop="open loop" if workload.is_open_loop else "closed loop",
        table=to_table(summary, objectives),
        document=to_json(summary),
        plots={title: Markup(picture) for title, picture in pictures.items()},  # noqa: S704 - our own SVG
    )
