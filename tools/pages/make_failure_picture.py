"""Draws the picture of docs/guides/failures_and_autoscaling.md from its example.

    python tools/pages/make_failure_picture.py

Needs matplotlib, which the project itself does not use: `pip install matplotlib`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS.parent / "examples"))
from slo_through_failure import TTFT, WINDOW, simulate, windows  # noqa: E402


def main() -> None:
    """Draw attainment, and the clients that are up, over time."""
    result = simulate()
    found = windows(result)
    middles = [start + WINDOW / 2 for start, _, _ in found]
    figure, (above, below) = plt.subplots(
        2, figsize=(8.4, 4.2), sharex=True, layout="constrained", height_ratios=[2, 1]
    )
    above.plot(middles, [100 * share for _, share, _ in found], color="#2a6f97", marker=".")
    above.set(ylabel=f"TTFT <= {TTFT:g} s, %", ylim=(-4, 104))
    states = result.client_states
    steps = sorted({*states["start"], *states["end"]})
    colors = {"up": "#2a6f97", "starting": "#e9c46a", "failed": "#c1121f"}
    height = [0] * len(steps)
    for state, color in colors.items():
        mine = states[states["state"].isin([state, "draining"] if state == "up" else [state])]
        number = [int(((mine["start"] <= t) & (mine["end"] > t)).sum()) for t in steps]
        tops = [low + n for low, n in zip(height, number, strict=True)]
        below.fill_between(steps, height, tops, step="post", color=color, label=state, lw=0)
        height = tops
    below.set(ylabel="clients", xlabel="simulated time, s", xlim=(0, middles[-1]))
    below.legend(ncols=3, frameon=False, fontsize=8, loc="upper left")
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(DOCS / "images" / "failures.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
