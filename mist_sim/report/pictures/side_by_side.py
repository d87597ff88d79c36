"""The same picture of several runs, a column each, on the same axes."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from mist_sim.errors import ScenarioError
from mist_sim.metrics import Result
from mist_sim.report.pictures.catalog import draw
from mist_sim.report.pictures.run_data import OfResult, RunData
from mist_sim.report.pictures.style import styled

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MOST_RUNS = 4  # columns that can be read
_LINE = 20  # pixels of a line of titles


def side_by_side(runs: Mapping[str, Result | RunData], name: str = "latency") -> Figure:
    """Return one picture of several runs as a Plotly figure: a column each, with the same axes.

    runs: by the title of their column, two to four: results, or folders that `mist run` wrote
        (`RunFolder`). name: as of `Result.plot`.
    Raises ScenarioError for another number of runs, and as `Result.plot` does.
    """
    if not 2 <= len(runs) <= MOST_RUNS:
        raise ScenarioError(f"runs must be 2 to {MOST_RUNS} to stand side by side, got {len(runs)}")
    each = {
        title: draw(OfResult(run) if isinstance(run, Result) else run, name)
        for title, run in runs.items()
    }
    return _joined(each)


def _joined(figures: Mapping[str, Figure]) -> Figure:
    from plotly.subplots import make_subplots

    first = next(iter(figures.values()))
    num_rows, num_columns = max(map(_num_rows, figures.values())), len(figures)
    whole = make_subplots(
        rows=num_rows,
        cols=num_columns,
        column_titles=list(figures),
        shared_yaxes=True,
        horizontal_spacing=0.03,
        vertical_spacing=0.32 / num_rows if num_rows > 1 else 0.0,
    )
    styled(whole, height=int(first.layout.height) + _LINE)
    whole.update_layout(margin_t=whole.layout.margin.t + _LINE)
    for column, (title, figure) in enumerate(figures.items(), start=1):
        _place_title(whole.layout.annotations[column - 1], title, column, num_columns)
        _copy(figure, whole, column, num_columns)
    named: set[str] = set()
    for trace in whole.data:
        trace.showlegend = bool(trace.name) and trace.name not in named
        named.add(trace.name)
    whole.update_layout(barmode=first.layout.barmode, hovermode=first.layout.hovermode)
    return whole


def _place_title(note: Any, title: str, column: int, num_columns: int) -> None:
    middle = (column - 0.5) / num_columns
    note.update(
        text=f"<b>{escape(title, quote=False)}</b>", x=middle, xanchor="center", yshift=_LINE
    )


def _copy(figure: Figure, whole: Figure, column: int, num_columns: int) -> None:
    """Put a picture into a column: its lines, its limits, the titles and forms of its axes."""
    for trace in figure.data:
        row = _row_of(trace.yaxis)
        whole.add_trace(
            trace.to_plotly_json() | {"xaxis": None, "yaxis": None}, row=row, col=column
        )
    for shape in figure.layout.shapes:
        number = (_row_of(shape.yref.split()[0]) - 1) * num_columns + column
        axes = {"xref": _ref(shape.xref, number), "yref": _ref(shape.yref, number)}
        whole.add_shape(shape.to_plotly_json() | axes)
    panel_titles = [note.text for note in figure.layout.annotations if note.yref == "paper"]
    for row in range(1, _num_rows(figure) + 1):
        axis = figure.layout["yaxis" if row == 1 else f"yaxis{row}"]
        form = {"autorange": axis.autorange, "rangemode": axis.rangemode, "type": axis.type}
        title = {"title_text": axis.title.text} if column == 1 else {}
        whole.update_yaxes(row=row, col=column, automargin=True, **form, **title)
        if column == 1 and row <= len(panel_titles):
            _title_row(whole, panel_titles[row - 1], (row - 1) * num_columns + 1)
        _copy_across(figure, whole, row, column, num_columns)


def _title_row(whole: Figure, text: str, number: int) -> None:
    """Put the title of a row of panels over its first one."""
    place = {"xref": _ref("x domain", number), "yref": _ref("y domain", number), "x": 0, "y": 1}
    look = {"xanchor": "left", "yanchor": "bottom", "showarrow": False, "font": {"size": 13}}
    whole.add_annotation(text=text, **place, **look)


def _copy_across(figure: Figure, whole: Figure, row: int, column: int, num_columns: int) -> None:
    """Give the x axis the title of its panel, and the range of the other columns."""
    axis = figure.layout["xaxis" if row == 1 else f"xaxis{row}"]
    leader = _row_of(axis.matches) if axis.matches else row  # panels of one time have one range
    first = (leader - 1) * num_columns + 1
    is_first = (row, column) == (leader, 1)
    whole.update_xaxes(
        title_text=axis.title.text,
        showticklabels=axis.showticklabels,
        matches=None if is_first else _ref("x", first),
        row=row,
        col=column,
    )


def _num_rows(figure: Figure) -> int:
    return sum(1 for key in figure.layout.to_plotly_json() if key.startswith("yaxis"))


def _row_of(axis: str | None) -> int:
    """Return the row of an axis of a picture of one column: "y" is 1, "y2" is 2."""
    digits = (axis or "y").lstrip("xy")
    return int(digits) if digits else 1


def _ref(ref: str, number: int) -> str:
    """Return the axis of another number: "y2 domain" becomes "y5 domain"."""
    axis, *rest = ref.split()
    return " ".join([f"{axis[0]}{number if number > 1 else ''}", *rest])
