"""One panel of a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mist_sim.errors import ScenarioError, brief
from mist_sim.report.pictures.style import panels

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def single_panel(figure: Figure, wanted: str) -> Figure:
    """Return a picture of one panel of another. wanted: the begin of its title, or part of it.

    Raises ScenarioError where no title has it.
    """
    notes = figure.layout.annotations
    titles = [note.text for note in notes if note.yref == "paper"]
    words = wanted.replace("_", " ").casefold()
    ranked = sorted(titles, key=lambda title: not title.casefold().startswith(words))
    title = next((each for each in ranked if words in each.casefold()), None)
    if title is None:
        raise ScenarioError(
            f"there is no panel {brief(wanted)}; those of this picture are: {'; '.join(titles)}"
        )
    row = titles.index(title) + 1
    axis = "y" if row == 1 else f"y{row}"
    found = panels([title], shared_time=False)
    for trace in figure.data:
        if (trace.yaxis or "y") == axis:
            found.add_trace(trace.to_plotly_json() | {"xaxis": "x", "yaxis": "y"})
    _name(found, figure)
    for shape in figure.layout.shapes:
        if shape.yref.split()[0] == axis:
            found.add_shape(shape.to_plotly_json() | _refs(shape))
    for note in notes:
        if note.yref != "paper" and note.yref.split()[0] == axis:
            found.add_annotation(note.to_plotly_json() | _refs(note))
    down = figure.layout[f"yaxis{axis[1:]}"]
    across = figure.layout[f"xaxis{axis[1:]}"]
    last = figure.layout[f"xaxis{len(titles) if len(titles) > 1 else ''}"]
    form = {name: down[name] for name in ("autorange", "rangemode", "type", "range")}
    found.update_yaxes(automargin=True, title_text=down.title.text, **form)
    shared = last if across.matches or last.matches else across
    found.update_xaxes(title_text=across.title.text or shared.title.text, showticklabels=True)
    found.update_layout(barmode=figure.layout.barmode, hovermode=figure.layout.hovermode)
    return found


def _name(found: Figure, figure: Figure) -> None:
    """Name the lines that the whole picture names, if in another panel."""
    told = {trace.name for trace in figure.data if trace.name and trace.showlegend is not False}
    for trace in found.data:
        trace.showlegend = trace.name in told and len(found.data) > 1


def _refs(part: Any) -> dict[str, str]:
    """Return the axes of a part of a panel, for the only one: "y2 domain" becomes "y domain"."""
    return {
        key: " ".join([part[key][0] if part[key] != "paper" else "paper", *part[key].split()[1:]])
        for key in ("xref", "yref")
    }
