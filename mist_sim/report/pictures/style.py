"""The look of all pictures: colours that most people can tell apart, thin grids, no frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C6BB1", "#999933")
"""Of lines in order. Source: Okabe and Ito, Color Universal Design, 2008; the last two are ours."""
LIMIT_COLOUR = "#D62728"
WAIT_COLOUR = "#B0B7BF"
_GRID = "rgba(128, 128, 128, 0.25)"
_PANEL_HEIGHT, _FRAME_HEIGHT = 190, 110  # pixels


def panels(titles: Sequence[str], *, shared_time: bool = True) -> Figure:
    """Return an empty picture of panels below one another, with a title each.

    shared_time: all have one axis of time, which the last one shows.
    """
    from plotly.subplots import make_subplots

    figure = make_subplots(
        rows=len(titles),
        shared_xaxes=shared_time,
        subplot_titles=list(titles),
        vertical_spacing=0.32 / max(len(titles), 1) if len(titles) > 1 else 0.0,
    )
    styled(figure, height=_FRAME_HEIGHT + _PANEL_HEIGHT * len(titles))
    if shared_time:
        figure.update_xaxes(title_text="time, s", row=len(titles), col=1)
    return figure


def styled(figure: Figure, *, height: int) -> None:
    """Give a picture its look. height: pixels."""
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 62, "r": 18, "t": 44, "b": 48},
        paper_bgcolor="rgba(0, 0, 0, 0)",
        plot_bgcolor="rgba(0, 0, 0, 0)",
        colorway=list(COLOURS),
        font={"family": "system-ui, sans-serif", "size": 12},
        legend={"orientation": "h", "yanchor": "top", "y": -48 / height - 0.04, "x": 0},
        hovermode="x unified",
        modebar={"bgcolor": "rgba(0, 0, 0, 0)", "color": "#9aa", "activecolor": "#579"},
    )
    figure.update_annotations(font_size=13, x=0, xanchor="left")
    figure.update_xaxes(gridcolor=_GRID, zeroline=False)
    figure.update_yaxes(gridcolor=_GRID, zeroline=False, rangemode="tozero")


def line(
    figure: Figure,
    x: Any,
    y: Any,
    name: str,
    colour: str,
    *,
    row: int = 1,
    steps: bool = False,
    legend: bool = True,
    dash: str = "solid",
) -> None:
    """Add a line to a panel. steps: a value holds until the next one. legend: it is named there."""
    figure.add_scatter(
        x=x,
        y=y,
        name=name,
        mode="lines",
        line={"color": colour, "width": 1.6, "shape": "hv" if steps else "linear", "dash": dash},
        legendgroup=name,
        showlegend=legend,
        row=row,
        col=1,
    )


def band(figure: Figure, x: Any, low: Any, high: Any, colour: str, *, row: int = 1) -> None:
    """Fill the space between two lines of a panel."""
    for y, fill in ((low, None), (high, "tonexty")):
        figure.add_scatter(
            x=x,
            y=y,
            mode="lines",
            line={"width": 0},
            fill=fill,
            fillcolor=_clear(colour),
            hoverinfo="skip",
            showlegend=False,
            row=row,
            col=1,
        )


def limit_line(
    figure: Figure, value: float, text: str, *, row: int = 1, across: bool = True
) -> None:
    """Mark a limit in a panel. across: it is one of the vertical axis."""
    style: dict[str, Any] = {"color": LIMIT_COLOUR, "width": 1.4, "dash": "dash"}
    note = {"annotation_text": text, "annotation_font_color": LIMIT_COLOUR}
    if across:
        figure.add_hline(
            y=value, line=style, row=row, col=1, annotation_position="top right", **note
        )
    else:
        figure.add_vline(
            x=value, line=style, row=row, col=1, annotation_position="top left", **note
        )


def _clear(colour: str) -> str:
    """Return a colour `#rrggbb` that lets others through."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, 0.2)"
