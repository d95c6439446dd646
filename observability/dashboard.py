"""The Grafana dashboard as JSON, drawn from panels.py with Grafana's own library.

`python -m observability` (`make generate`) writes it into the chart; the library is needed for that alone.
"""

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import BigValueTextMode
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, DataSourceRef, VariableRefresh

from observability.panels import ROWS, Panel, Query

DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
COLUMNS, HEIGHT, NUMBER_HEIGHT = 24, 8, 4


def dashboard_json() -> str:
    """With a line break at its end, the same bytes each time."""
    board = (
        dashboard.Dashboard("Tidegate pools")
        .uid("tidegate-pools")
        .tags(["tidegate", "llm"])
        .refresh("30s")
        .time("now-1h", "now")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").type("prometheus"))
        .with_variable(_label("namespace", "label_values(tidegate_pool_info, namespace)"))
        .with_variable(_label("pool", 'label_values(tidegate_pool_info{namespace=~"$namespace"}, pool)'))
    )
    for title, panels in ROWS:
        board = board.with_row(dashboard.Row(title))
        for panel in panels:
            board = board.with_panel(_panel(panel, COLUMNS // min(len(panels), 3)))
    return JSONEncoder(sort_keys=True, indent=2).encode(board.build()) + "\n"


def _label(name: str, query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .query(query)
        .datasource(DATASOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(multi=True)
        .include_all(include_all=True)
        .all_value(".*")
    )


def _panel(panel: Panel, width: int) -> stat.Panel | timeseries.Panel:
    drawn: stat.Panel | timeseries.Panel
    if panel.is_number:
        newest = common.ReduceDataOptions().calcs(["lastNotNull"])
        drawn = stat.Panel().text_mode(BigValueTextMode.VALUE_AND_NAME).reduce_options(newest).height(NUMBER_HEIGHT)
    else:
        drawn = timeseries.Panel().min(0).height(HEIGHT)
    drawn = drawn.title(panel.title).unit(panel.unit).span(width).datasource(DATASOURCE)
    if panel.description:
        drawn = drawn.description(panel.description)
    for letter, query in zip("ABCDEF", panel.queries, strict=False):
        drawn = drawn.with_target(_target(letter, query, is_instant=panel.is_number))
    return drawn


def _target(letter: str, query: Query, *, is_instant: bool) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(letter)
    return target.instant() if is_instant else target.range()
