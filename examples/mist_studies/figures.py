"""Tables for a terminal, and the plot of a study (Fig. 10 and Fig. 11)."""

from __future__ import annotations

from pathlib import Path

from designs import Design
from measuring import Measured, Question

COLORS = {"H100": "#2a6f97", "A100": "#e07b39", "L40S": "#5a8f4e"}
COLORS |= {"H100 apart": "#8fb8cf", "A100 apart": "#f0b98f", "L40S apart": "#a9cba2"}
COLORS |= {"two kinds apart": "#8a6fae"}


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
) -> None:
    """Draw all designs at the printed rate, with both stars, and the best ones at their rates."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    base = next(each for each in measured if each.design == reference).throughput
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), width_ratios=(3, 2))
    for group, color in COLORS.items():
        of_group = [each for each in measured if each.design.group == group]
        label: str | None = group
        for keeps, marker in ((True, "o"), (False, "x")):
            some = [each for each in of_group if each.keeps(question) is keeps]
            if some:
                dollars, shares = zip(
                    *((e.dollars, e.throughput / base) for e in some), strict=True
                )
                left.scatter(dollars, shares, 22, color, marker, alpha=0.75, label=label)
                label = None
    best_tuned = max(
        (each for name, each in found.items() if name.startswith("auto-tune")),
        key=lambda each: each.tokens_per_dollar,
    )
    by_design = {each.design: each for each in measured}
    stars = {"winner of the race": found["search"], "best of auto-tune": best_tuned}
    for (label, star), color in zip(stars.items(), ("#1a9641", "black"), strict=True):
        at = by_design[star.design]
        left.scatter(
            at.dollars, at.throughput / base, 200, color, marker="*", label=label, zorder=5
        )
    left.set(
        xlabel="$ an hour", ylabel=f"output tokens/s at {question.rate:g} /s, over A100 TP1 x 8"
    )
    left.set_ylim(top=1.35 * max(each.throughput for each in measured) / base)  # for the legend
    title = "cross: misses the limits, or unstable"
    left.legend(fontsize=7, title=title, title_fontsize=7, ncols=3, markerscale=0.7)
    names = list(found)
    right.barh(
        [f"{name}\n{_broken(found[name].design.name)}" for name in names],
        [found[name].tokens_per_dollar / 1e6 for name in names],
        color=["#1a9641" if name == "search" else "#777777" for name in names],
    )
    right.invert_yaxis()
    right.tick_params(axis="y", labelsize=7)
    right.set_xlabel(
        "million output tokens for a dollar,\nat the highest rate that keeps the limits"
    )
    figure.suptitle(question.title, fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _broken(name: str) -> str:
    """Return a design's name on as many lines as it has parts."""
    return name.replace(" + ", "\n+ ").replace(", ", "\n", 1)
