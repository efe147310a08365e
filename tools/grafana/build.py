"""Write grafana/: the dashboards, with Grafana's own builders, and what provisioning needs.

`python -m tools.grafana.build` writes them; `--check` says which are out of date and exits with 1.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import TypeVar

from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from tools.grafana.backends import BACKENDS
from tools.grafana.compare import COMPARE
from tools.grafana.load import LOADGEN
from tools.grafana.nouns import Asked, Board, Choice, Panel, Query
from tools.grafana.overview import OVERVIEW
from tools.grafana.provisioning import provisioning

ROOT = Path(__file__).resolve().parent.parent.parent
BOARDS = (OVERVIEW, COMPARE, BACKENDS, LOADGEN)
SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
COLOURS = {"short": "green", "long": "orange"}
ARMS = ("#8a8f98", "blue")
"""Of a comparison: the baseline stands back, the candidate is seen."""
_COLUMNS = 24
_Drawn = timeseries.Panel | stat.Panel | heatmap.Panel
_Arms = TypeVar("_Arms", timeseries.Panel, stat.Panel)


def documents() -> dict[str, str]:
    """Return every file by its path in the repository."""
    boards = {f"grafana/dashboards/{board.name}.json": encoded(built(board)) for board in BOARDS}
    return {**boards, **provisioning()}


def encoded(board: models.Dashboard) -> str:
    """Return the document of a dashboard."""
    return JSONEncoder(sort_keys=True, indent=2, ensure_ascii=False).encode(board) + "\n"


def built(board: Board) -> models.Dashboard:
    """Put a dashboard into Grafana's model."""
    made = (
        dashboard.Dashboard(f"lanewise · {board.title}")
        .uid(f"lanewise-{board.name}")
        .description(f"{board.about.zh}\n\n{board.about.en}")
        .tags(["lanewise", "vllm"])
        .refresh("10s")
        .time("now-30m", "now")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .editable()
        .link(
            dashboard.DashboardLink("lanewise")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags(["lanewise"])
            .include_vars(True)
            .keep_time(True)
            .as_dropdown(True)
        )
        .with_variable(dashboard.DatasourceVariable("datasource").label("数据源 / Data source").type("prometheus"))
    )
    for variable in board.variables:
        made = made.with_variable(_asked(variable) if isinstance(variable, Asked) else _choice(variable))
    for mark in board.marks:
        made = made.annotation(
            dashboard.AnnotationQuery()
            .name(str(mark.name))
            .datasource(SOURCE)
            .enable(True)
            .icon_color(mark.colour)
            .expr(mark.expr)
        )
    y = number = 0
    for row in board.rows:
        made = made.with_row(dashboard.Row(str(row.title)).grid_pos(models.GridPos(h=1, w=_COLUMNS, x=0, y=y)))
        y += 1
        x = tallest = 0
        for panel in row.panels:
            if x + panel.width > _COLUMNS:
                y, x, tallest = y + tallest, 0, 0
            number += 1
            place = models.GridPos(h=panel.height, w=panel.width, x=x, y=y)
            made = made.with_panel(_drawn(panel).id(number).grid_pos(place))
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest
    return made.build()


def _asked(variable: Asked) -> dashboard.QueryVariable:
    made = (
        dashboard.QueryVariable(variable.name)
        .label(str(variable.title))
        .datasource(SOURCE)
        .query(variable.query)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(variable.multi)
    )
    if variable.first is not None:
        return made.current(models.VariableOption(text=variable.first, value=variable.first, selected=True))
    everything = models.VariableOption(text="All", value="$__all", selected=True)
    return made.include_all(True).all_value(".*").current(everything)


def _choice(variable: Choice) -> dashboard.CustomVariable:
    shown = next(text for text, value in variable.values if value == variable.first)
    return (
        dashboard.CustomVariable(variable.name)
        .label(str(variable.title))
        .values(", ".join(f"{text} : {value}" for text, value in variable.values))
        .options([models.VariableOption(text=t, value=v, selected=v == variable.first) for t, v in variable.values])
        .current(models.VariableOption(text=shown, value=variable.first, selected=True))
    )


def _drawn(panel: Panel) -> _Drawn:
    made = {"timeseries": _timeseries, "stat": _stat, "heatmap": _heatmap}[panel.kind](panel)
    made = made.title(str(panel.title)).description(panel.description).datasource(SOURCE).unit(panel.unit)
    for at, query in enumerate(panel.queries):
        made = made.with_target(_target(panel, at, query))
    return made if panel.decimals is None else made.decimals(panel.decimals)


def _target(panel: Panel, at: int, query: Query) -> prometheus.Dataquery:
    form = PromQueryFormat.HEATMAP if panel.kind == "heatmap" else PromQueryFormat.TIME_SERIES
    made = prometheus.Dataquery().datasource(SOURCE).expr(query.expr).ref_id("ABCDEFGH"[at]).format(form)
    made = made.instant() if query.instant else made.range()
    return made.legend_format(query.legend or "__auto").exemplar("_bucket" in query.expr and panel.kind == "timeseries")


def _timeseries(panel: Panel) -> timeseries.Panel:
    made = (
        timeseries.Panel()
        .min(0)
        .line_width(2 if panel.arms else 1)
        .fill_opacity(8)
        .show_points(common_models.VisibilityMode.NEVER)
        .legend(
            common.VizLegendOptions()
            .show_legend(True)
            .display_mode(common_models.LegendDisplayMode.TABLE)
            .placement(common_models.LegendPlacement.BOTTOM)
            .calcs(["mean", "max", "lastNotNull"])
            .sort_by("Max")
            .sort_desc(True)
        )
        .tooltip(
            common.VizTooltipOptions()
            .mode(common_models.TooltipDisplayMode.MULTI)
            .sort(common_models.SortOrder.DESCENDING)
        )
    )
    for at, query in enumerate(panel.queries):
        properties = []
        if query.dashed:
            line = {"fill": "dash", "dash": [8, 6]}
            properties += [_property("custom.lineStyle", line), _property("custom.fillOpacity", 0)]
        if query.unit is not None:
            properties += [_property("unit", query.unit), _property("custom.axisPlacement", "right")]
        if properties:
            made = made.override_by_query("ABCDEFGH"[at], properties)
    if panel.arms:
        made = _coloured_arms(made)
        dash = _property("custom.lineStyle", {"fill": "dash", "dash": [8, 6]})
        made = made.override_by_regexp("/^long\\b/", [dash, _property("custom.lineWidth", 1)])
    if panel.lanes:
        for lane, colour in COLOURS.items():
            fixed = _property("color", {"mode": "fixed", "fixedColor": colour})
            made = made.override_by_regexp(f"/^{lane}\\b/", [fixed])
    return made


def _property(name: str, value: object) -> models.DynamicConfigValue:
    return models.DynamicConfigValue(id_val=name, value=value)


def _stat(panel: Panel) -> stat.Panel:
    steps = [models.Threshold(value=None, color=panel.base)]
    steps += [models.Threshold(value=value, color=colour) for value, colour in panel.steps]
    colours, graphs = common_models.BigValueColorMode, common_models.BigValueGraphMode
    texts = common_models.BigValueTextMode
    one_moment = all(query.instant for query in panel.queries)
    made = (
        stat.Panel()
        .no_value(panel.nothing)
        .graph_mode(graphs.NONE if one_moment else graphs.AREA)
        .color_mode(colours.BACKGROUND if panel.filled else colours.VALUE)
        .text_mode(texts.VALUE_AND_NAME if any(query.legend for query in panel.queries) else texts.VALUE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
        .thresholds(dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
    )
    return _coloured_arms(made) if panel.arms else made


def _coloured_arms(made: _Arms) -> _Arms:
    for query, colour in zip("AB", ARMS, strict=True):
        made = made.override_by_query(query, [_property("color", {"mode": "fixed", "fixedColor": colour})])
    return made


def _heatmap(_panel: Panel) -> heatmap.Panel:
    return heatmap.Panel().calculate(False)


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    asked = parser.parse_args(arguments)
    made = documents()
    stale = [
        path
        for path, text in made.items()
        if not (ROOT / path).is_file() or (ROOT / path).read_text(encoding="utf-8") != text
    ]
    if asked.check:
        print(json.dumps(stale) if stale else "up to date")
        return 1 if stale else 0
    for path in stale:
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(made[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
