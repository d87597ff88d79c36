"""The look of all pictures: colours that most people can tell apart, thin grids, few frames."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from mist_sim.errors import ScenarioError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C6BB1", "#999933")
"""Of lines in order. Source: Okabe and Ito, Color Universal Design, 2008; the last two are ours."""
LIMIT_COLOUR = "#D62728"
WAIT_COLOUR = "#B0B7BF"
INK = "#222222"
"""Of texts and axes; a page replaces it by the colour of its own texts."""

_MISSING = "pictures need Matplotlib, which is not installed: pip install 'mist-sim[report]'"


def can_draw() -> bool:
    """Tell whether Matplotlib is there, without importing it."""
    return find_spec("matplotlib") is not None


def require_matplotlib() -> None:
    """Raise ScenarioError where Matplotlib is not installed."""
    if not can_draw():
        raise ScenarioError(_MISSING)


def not_drawn(file: str) -> str:
    """Return the line that says why a command did not draw a file."""
    return f"{file} was not drawn: {_MISSING}"


def look() -> AbstractContextManager[None]:
    """Return the context in which pictures are drawn; names with dollars are no formulas there."""
    import matplotlib as mpl

    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    settings: dict[str, Any] = {
        "font.size": 9,
        "axes.titlesize": 9.5,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.titley": 1.0,  # or Matplotlib looks for a place, which takes a quarter of the time
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": "#808080",
        "grid.alpha": 0.25,
        "grid.linewidth": 0.6,
        "legend.frameon": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "mist-sim",
        "text.parse_math": False,
        **dict.fromkeys(inked, INK),
    }
    return mpl.rc_context(settings)
