"""The plane of limits as a picture, where matplotlib is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from mist_sim.report.pictures.printed import verbatim

MISSING = (
    "slo_plane.png was not drawn, since matplotlib is not installed; pip install 'mist-sim[plot]'"
)
_COLOURS = ("#2a6f97", "#e07b39", "#6a994e", "#8e6c8a", "#c9a227", "#bc4749", "#577590", "#7f5539")
_NEUTRAL = {"tie": "#d9d9d9", "nobody": "#ffffff"}


def can_draw() -> bool:
    """Tell whether matplotlib is there, without importing it."""
    return find_spec("matplotlib") is not None


def draw(plane: Mapping[str, Any], path: Path) -> None:
    """Write a PNG: the winner's colour for each pair of limits, pale where it is not clear.

    plane: `SloPlane.summary`.
    Raises ImportError without matplotlib.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import to_rgb
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    names, num_points = list(plane["goodput"]), len(plane["winners"])
    colours = {name: _COLOURS[k % len(_COLOURS)] for k, name in enumerate(names)} | _NEUTRAL
    winners, is_clear = np.array(plane["winners"]), np.array(plane["is_clear"])
    rgb = np.array([[to_rgb(colours[who]) for who in row] for row in plane["winners"]])
    is_pale = ~is_clear & np.isin(winners, names)
    rgb[is_pale] = 0.5 + rgb[is_pale] / 2
    figure: Any = Figure(figsize=(6.4, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.pcolormesh(_edges(plane["tpot_limits_s"]), _edges(plane["ttft_limits_s"]), rgb)
    axes.set(xscale="log", yscale="log", xlabel="limit on TPOT, ms", ylabel="limit on TTFT, ms")
    for axis, name in ((axes.xaxis, "tpot"), (axes.yaxis, "ttft")):
        shown = [1e3 * limit for limit in plane[f"{name}_limits_s"][:: 1 + num_points // 8]]
        axis.set_ticks(shown, [f"{float(f'{limit:.3g}'):g}" for limit in shown])
        axis.set_ticks([], minor=True)
    by = " per GPU" if plane["by_gpu"] else ""
    share = f"{100 * plane['attainment_asked']:g} %"
    axes.set_title(f"Most goodput{by}, {share} of the requests within both limits", size=10)
    seen = [who for who in (*names, *_NEUTRAL) if who in winners]
    patches = [
        Patch(facecolor=colours[who], edgecolor="#888888", label=verbatim(who)) for who in seen
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=150, metadata={"Software": None})


def _edges(limits_s: Sequence[float]) -> Any:
    """Return the borders, in ms, of cells with centres at equal ratios."""
    centres = np.array(limits_s) * 1e3
    half = np.sqrt(centres[1] / centres[0])
    return np.concatenate((centres / half, centres[-1:] * half))
