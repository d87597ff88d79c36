"""Tables for a terminal, and the plot of a study (Fig. 10 and Fig. 11)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from designs import Design
from measuring import Measured, Question

COLORS = {"H100": "#2a6f97", "A100": "#e07b39", "L40S": "#5a8f4e"}
COLORS |= {"H100 apart": "#8fb8cf", "A100 apart": "#f0b98f", "L40S apart": "#a9cba2"}
COLORS |= {"two kinds apart": "#8a6fae"}
WINNER, OTHERS = "#1a9641", "#777777"


def table(titles: list[str], rows: list[list[str]]) -> str:
    """Return rows below their titles; the first column is text."""
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    num_texts = 1 if titles[0] else 2
    lines = [
        "  ".join(
            cell.ljust(width) if k < num_texts else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [titles, *rows]
    ]
    return "\n".join(f"  {line}" for line in lines)


def draw(
    path: Path,
    question: Question,
    measured: list[Measured],
    found: dict[str, Measured],
    reference: Design,
    spent: dict[str, float],
) -> None:
    """Draw all designs at the printed rate, with both stars, and the best ones at their rates.

    spent: dollars of the runs on GPUs that a simulation spares.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(11, 5), layout="constrained")
    panels = figure.subplot_mosaic(
        [["all", "best"], ["all", "spent"]], width_ratios=(3, 2), height_ratios=(4, 1)
    )
    _draw_all(panels["all"], question, measured, found, reference)
    _draw_best(panels["best"], found)
    panels["spent"].barh(list(spent), list(spent.values()), color=OTHERS)
    panels["spent"].invert_yaxis()
    panels["spent"].tick_params(labelsize=7)
    panels["spent"].set_xlabel("$ of GPUs that the same runs would take", fontsize=8)
    figure.suptitle(question.title, fontsize=10)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_all(
    axes: Any,
    question: Question,
    measured: list[Measured],
    found: dict[str, Measured],
    reference: Design,
) -> None:
    """Draw throughput over that of `reference`, by dollars an hour, and the stars."""
    by_design = {each.design: each for each in measured}
    base = by_design[reference].throughput
    for group, color in COLORS.items():
        of_group = [each for each in measured if each.design.group == group]
        label: str | None = group
        for keeps, marker in ((True, "o"), (False, "x")):
            some = [each for each in of_group if each.keeps(question) is keeps]
            if some:
                dollars, shares = [e.dollars for e in some], [e.throughput / base for e in some]
                axes.scatter(dollars, shares, 22, color, marker, alpha=0.75, label=label)
                label = None
    tuned = [each for name, each in found.items() if name.startswith("auto-tune")]
    best_tuned = max(tuned, key=lambda each: each.tokens_per_dollar, default=None)
    stars = (
        ("winner of the race", found["winner"], WINNER),
        ("best of auto-tune", best_tuned, "k"),
    )
    for label, star, color in stars:
        if star is not None:
            at = by_design[star.design]
            axes.scatter(
                at.dollars, at.throughput / base, 200, color, marker="*", label=label, zorder=5
            )
    axes.set(
        xlabel="$ an hour", ylabel=f"output tokens/s at {question.rate:g} /s, over A100 TP1 x 8"
    )
    axes.set_ylim(top=1.35 * max(each.throughput for each in measured) / base)  # for the legend
    title = "cross: misses the limits, or unstable"
    axes.legend(fontsize=7, title=title, title_fontsize=7, ncols=3, markerscale=0.7)


def _draw_best(axes: Any, found: dict[str, Measured]) -> None:
    """Draw tokens for a dollar of the winner and the baselines."""
    axes.barh(
        [f"{name}\n{_broken(each.design.name)}" for name, each in found.items()],
        [each.tokens_per_dollar / 1e6 for each in found.values()],
        color=[WINNER if name == "winner" else OTHERS for name in found],
    )
    axes.invert_yaxis()
    axes.tick_params(labelsize=7)
    axes.set_xlabel(
        "million output tokens for a dollar,\nat the highest rate that keeps the limits", fontsize=8
    )


def _broken(name: str) -> str:
    """Return a design's name on as many lines as it has parts."""
    return name.replace(" + ", "\n+ ").replace(", ", "\n", 1)
