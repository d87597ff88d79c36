"""The plane of limits: who has the most goodput for each pair of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mist_sim.report.pictures.marks import Mark, Points
from mist_sim.report.pictures.picture import Panel, Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#2a6f97", "#e07b39", "#6a994e", "#8e6c8a", "#c9a227", "#bc4749", "#577590", "#7f5539")
_NEUTRAL = {"tie": "#d9d9d9", "nobody": "#f4f4f4"}


def plane_picture(plane: Mapping[str, Any]) -> Picture:
    """Return the winner's colour for each pair of limits, pale where it is not clear.

    plane: `SloPlane.summary`.
    """
    by = " per GPU" if plane["by_gpu"] else ""
    share = f"{100 * plane['attainment_asked']:g} %"
    title = f"Most goodput{by}, {share} of the requests within both limits"
    axes = ("limit on TPOT, ms", "limit on TTFT, ms")
    winners = _Winners(plane)
    names = [
        Points([], [], who, colour, "s")
        for who, colour in winners.colours.items()
        if any(who in row for row in plane["winners"])
    ]
    return Picture([Panel(title, [winners, *names], *axes, 4.0, (None, None), (True, True))])


@dataclass(frozen=True)
class _Winners(Mark):
    """A cell for each pair of limits."""

    plane: Mapping[str, Any]

    @property
    def colours(self) -> dict[str, str]:
        """The colour of each design that may win."""
        names = list(self.plane["goodput"])
        return {name: _COLOURS[k % len(_COLOURS)] for k, name in enumerate(names)} | _NEUTRAL

    def draw(self, axes: Axes) -> None:
        from matplotlib.colors import to_rgb

        plane, colours = self.plane, self.colours
        winners, is_clear = np.array(plane["winners"]), np.array(plane["is_clear"])
        rgb = np.array([[to_rgb(colours[who]) for who in row] for row in plane["winners"]])
        is_pale = ~is_clear & ~np.isin(winners, list(_NEUTRAL))
        rgb[is_pale] = 0.5 + rgb[is_pale] / 2
        axes.pcolormesh(_edges(plane["tpot_limits_s"]), _edges(plane["ttft_limits_s"]), rgb)
        axes.grid(visible=False)


def _edges(limits_s: Sequence[float]) -> Any:
    """Return the borders, in ms, of cells with centres at equal ratios."""
    centres = np.array(limits_s) * 1e3
    half = np.sqrt(centres[1] / centres[0])
    return np.concatenate((centres / half, centres[-1:] * half))
