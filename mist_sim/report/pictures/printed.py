"""Pictures as PDF, SVG or PNG: what the pages draw with Plotly, drawn with Matplotlib for print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import unescape
from io import BytesIO
from typing import TYPE_CHECKING, Any

from mist_sim.errors import ScenarioError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Printed
    from plotly.graph_objects import Figure

FORMATS = ("pdf", "svg", "png")
MISSING = "PDF, SVG and PNG need Matplotlib: pip install 'mist-sim[plot]'"
_WIDTH, _PIXELS_AN_INCH = 8.0, 110.0
_DASHES = {"solid": "-", "dot": ":", "dash": "--"}


def require_matplotlib() -> None:
    """Raise ScenarioError where Matplotlib is not installed."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise ScenarioError(MISSING)


def verbatim(text: str) -> str:
    """Return a text for Matplotlib, to which dollars would mean a formula."""
    return text.replace("$", r"\$")


def printed_bytes(figures: Sequence[Figure], form: str) -> bytes:
    """Return a file of pictures for print. form: one of `FORMATS`; PDF takes several, a page each.

    Raises ScenarioError for several pictures in a form of one, and without Matplotlib.
    """
    require_matplotlib()
    if form != "pdf" and len(figures) != 1:
        raise ScenarioError(
            f"a file in {form} holds one picture, got {len(figures)}; name one, or take pdf"
        )
    import matplotlib as mpl
    from matplotlib.backends.backend_pdf import PdfPages

    file = BytesIO()
    with mpl.rc_context({"svg.hashsalt": "mist-sim", "font.size": 9, "svg.fonttype": "none"}):
        drawn = [printed(each) for each in figures]
        if form == "pdf":
            with PdfPages(file, metadata={"CreationDate": None}) as pages:
                for each in drawn:
                    pages.savefig(each)
        else:
            told = {"svg": {"Date": None}, "png": {"Software": None}}[form]
            drawn[0].savefig(file, format=form, dpi=150, metadata=told)
    return file.getvalue()


def printed(figure: Figure) -> Printed:
    """Return a picture of panels as a Matplotlib figure."""
    from matplotlib.figure import Figure as Canvas

    keys = sorted(
        (key for key in figure.layout.to_plotly_json() if key.startswith("yaxis")),
        key=lambda key: int(key[5:] or 1),
    )
    across = [figure.layout[key.replace("y", "x", 1)].domain or (0, 1) for key in keys]
    num_columns = len(set(map(tuple, across)))
    height = float(figure.layout.height) / _PIXELS_AN_INCH
    canvas = Canvas(figsize=(_WIDTH, height), layout="constrained")
    grid = canvas.subplots(len(keys) // num_columns, num_columns, squeeze=False).ravel()
    panels = {key.replace("axis", ""): axes for key, axes in zip(keys, grid, strict=True)}
    for name, axes in panels.items():
        _dress(axes, figure, name)
    _match(figure, panels)
    for place, trace in enumerate(figure.data):
        axes = panels[trace.yaxis or "y"]
        if trace.type == "bar":
            _bars(axes, trace, _shift(figure, place))
        elif trace.fill == "tonexty":  # the trace before it is the lower edge of the band
            _fill(axes, figure.data[place - 1], trace)
        elif trace.line.width != 0:
            _points(axes, trace)
    for shape in figure.layout.shapes:
        _mark(panels, shape)
    _titles(figure, panels, num_columns)
    _share(figure, panels)
    if len(found := _legend(panels.values())) > 1:
        corner: dict[str, Any] = {"loc": "outside lower left", "frameon": False, "ncols": 6}
        canvas.legend(list(found.values()), list(found), **corner)
    return canvas


def _dress(axes: Axes, figure: Figure, name: str) -> None:
    """Give a panel the titles of its axes, and thin grids."""
    down, across = (figure.layout[f"{way}axis{name[1:]}"] for way in "yx")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set(xlabel=across.title.text or "", ylabel=down.title.text or "")


def _match(figure: Figure, panels: Mapping[str, Axes]) -> None:
    """Give axes that are matched one range."""
    for name, axes in panels.items():
        down, across = (figure.layout[f"{way}axis{name[1:]}"] for way in "yx")
        if across.matches:
            axes.sharex(panels[across.matches.replace("x", "y")])
        if down.matches:
            axes.sharey(panels[down.matches])


def _share(figure: Figure, panels: Mapping[str, Axes]) -> None:
    """Turn axes that count downwards, and begin axes of values at 0."""
    for name, axes in panels.items():
        down = figure.layout[f"yaxis{name[1:]}"]
        if down.matches:
            continue
        if down.autorange == "reversed":
            axes.invert_yaxis()
        elif down.range:
            axes.set_ylim(*down.range)
        elif down.rangemode == "tozero":
            axes.set_ylim(bottom=0)


def _points(axes: Axes, trace: Any) -> None:
    mode = trace.mode or "lines"
    label = verbatim(trace.name or "") if trace.showlegend is not False else None
    style: dict[str, Any] = {"color": trace.line.color or trace.marker.color, "label": label}
    if "lines" in mode:
        way = "steps-post" if trace.line.shape == "hv" else "default"
        style |= {"ls": _DASHES.get(trace.line.dash or "solid", "-"), "lw": 1.3, "drawstyle": way}
    else:
        style |= {"ls": "", "alpha": trace.marker.opacity}
    if "markers" in mode:
        style |= {"marker": "o", "ms": 4}
    axes.plot(list(trace.x), list(trace.y), **style)


def _fill(axes: Axes, low: Any, high: Any) -> None:
    """Fill the band between two traces."""
    *parts, alpha = high.fillcolor.removeprefix("rgba(").removesuffix(")").split(",")
    colour = (*(int(part) / 255 for part in parts), float(alpha))
    axes.fill_between(list(high.x), list(low.y), list(high.y), color=colour, lw=0)


def _bars(axes: Axes, trace: Any, shift: tuple[float, float]) -> None:
    left = 0 if trace.base is None else list(trace.base)
    moved, thick = shift
    label = verbatim(trace.name or "") if trace.showlegend is not False else None
    rows, names = list(trace.y), None
    if rows and isinstance(rows[0], str):
        rows, names = list(range(len(rows))), [*map(verbatim, rows)]
    axes.barh(
        [row + moved for row in rows], list(trace.x), thick, left=left, label=label,
        color=trace.marker.color,
    )  # fmt: skip
    if names:
        axes.set_yticks(rows, names)


def _shift(figure: Figure, place: int) -> tuple[float, float]:
    """Return how far a bar stands from the middle of its row, and how thick it is."""
    trace = figure.data[place]
    if trace.type != "bar" or figure.layout.barmode != "group":
        return 0.0, 0.75
    beside = [each.uid or at for at, each in enumerate(figure.data) if each.yaxis == trace.yaxis]
    thick = 0.8 / len(beside)
    return (beside.index(trace.uid or place) - (len(beside) - 1) / 2) * thick, thick


def _mark(panels: Mapping[str, Axes], shape: Any) -> None:
    """Draw a limit, or shade an interval."""
    axes = panels["y" + shape.yref.split()[0][1:]]
    if shape.type == "rect":
        axes.axvspan(shape.x0, shape.x1, color=shape.fillcolor, alpha=shape.opacity, lw=0)
    elif shape.y0 == shape.y1:
        axes.axhline(shape.y0, color=shape.line.color, lw=1.1, ls="--")
    else:
        axes.axvline(shape.x0, color=shape.line.color, lw=1.1, ls="--")


def _titles(figure: Figure, panels: Mapping[str, Axes], num_columns: int) -> None:
    """Put the titles over their panels: of each, or of each row and of each column."""
    over = [note.text for note in figure.layout.annotations if note.yref == "paper"]
    for axes, text in zip(list(panels.values()), over, strict=False):
        if num_columns == 1:
            axes.set_title(text, loc="left", fontsize=9.5)
        else:
            plain = verbatim(unescape(text.removeprefix("<b>").removesuffix("</b>")))
            axes.set_title(f"{plain}\n", fontsize=10, weight="bold")
    for note in figure.layout.annotations:
        if num_columns > 1 and note.yref.endswith("domain"):
            panels[note.yref.split()[0]].set_title(note.text, loc="left", fontsize=9.5)


def _legend(panels: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return found
