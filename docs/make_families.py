"""Writes the tables and pictures of docs/background/families.md.

    python -m benchmarks.family_steps --write steps.parquet
    python docs/make_families.py steps.parquet

Needs matplotlib. `benchmarks/family_steps.py` says what a point is, and what it needs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from PIL import Image

HERE = Path(__file__).parent
PAGE, IMAGES = HERE / "background" / "families.md", HERE / "images"
BEGIN, END = "<!-- made by docs/make_families.py -->", "<!-- end -->"
_OFF = 0.22  # of groups in the last table, in the median
_SMALL = 1e-4  # seconds of experts below which a model has none


def percent(share: float) -> str:
    """Return a share in percent."""
    return f"{100 * share:.1f} %"


def table(titles: list[str], rows: list[list[str]]) -> list[str]:
    """Return a table in Markdown."""
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def score(ratio: pd.Series) -> list[str]:
    """Return points, median error, nine in ten, and median ratio."""
    error = (ratio - 1).abs()
    ninth = percent(error.quantile(0.9))
    return [f"{len(ratio):,}", percent(error.median()), ninth, f"{ratio.median():.2f}"]


def by_family(points: pd.DataFrame) -> list[str]:
    """Return the errors of whole steps, and apart of experts and of everything else."""

    def rows() -> Iterator[list[str]]:
        yield ["all", *_scores(points)]
        others = points[~points["is_own"]]
        yield ["models whose own mixers nothing was fitted to", *_scores(others)]
        for (family, step), part in points.groupby(["family", "step"], sort=False):
            yield [f"{family}, {step}", *_scores(part)]

    head = ["", "points", "median", "nine in ten", "ratio"]
    parts = ["experts: median", "nine in ten", "all else: median", "nine in ten"]
    return table([*head, *parts], list(rows()))


def _scores(part: pd.DataFrame) -> list[str]:
    has_experts = part["measured_experts"] > _SMALL
    experts = (part["computed_experts"] / part["measured_experts"])[has_experts]
    rest = part["computed"] - part["computed_experts"]
    rest = rest / (part["measured"] - part["measured_experts"])
    alone = score(experts)[1:3] if len(experts) else ["", ""]
    return [*score(part["computed"] / part["measured"]), *alone, *score(rest)[1:3]]


def far_off(points: pd.DataFrame) -> list[str]:
    """Return the models, GPUs and numbers of ranks that are far off."""
    rows = []
    ratio = points["computed"] / points["measured"]
    for (model, gpu, ranks, step), part in points.groupby(["model", "gpu", "ranks", "step"]):
        each = ratio[part.index]
        if (each - 1).abs().median() > _OFF:
            rows.append([str(model), str(gpu), str(ranks), str(step), f"{each.median():.2f}"])
    return table(["model", "GPU", "TP", "steps", "ratio"], rows)


def draw(points: pd.DataFrame) -> None:
    """Draw a heat map of each family: decodes by contexts, prompts by GPUs."""
    families = list(dict.fromkeys(points["family"]))
    figure, axes = plt.subplots(len(families), 2, figsize=(9, 2.2 * len(families)))
    ratio = points.assign(ratio=points["computed"] / points["measured"])
    for row, family in zip(axes, families, strict=True):
        of = ratio[ratio["family"] == family]
        decodes = of[of["step"] == "decodes"].pivot_table("ratio", "context", "number", "median")
        prompts = of[of["step"] == "prompt"].pivot_table("ratio", "gpu", "number", "median")
        _heat(row[0], decodes, f"{family}: decodes", "context")
        _heat(row[1], prompts, f"{family}: prompts", "")
    figure.suptitle("computed over measured, in the median over models, GPUs and ranks")
    figure.tight_layout(rect=(0, 0, 1, 0.985))
    path = IMAGES / "families_steps.png"
    figure.savefig(path, dpi=80, metadata={"Software": None})
    Image.open(path).convert("RGB").quantize(200).save(path, optimize=True)  # a third of the bytes


def _heat(axes: Axes, cells: pd.DataFrame, title: str, name: str) -> None:
    axes.imshow(cells.to_numpy(), cmap="RdBu_r", vmin=0.5, vmax=1.5, aspect="auto")
    axes.set_xticks(range(len(cells.columns)), [f"{number:,}" for number in cells.columns])
    labels = [f"{each:,}" if isinstance(each, int) else str(each) for each in cells.index]
    axes.set_yticks(range(len(cells.index)), labels)
    axes.set_title(title, fontsize=9)
    axes.set_ylabel(name)
    for (at, column), value in [
        ((at, column), cells.iloc[at, column])
        for at in range(cells.shape[0])
        for column in range(cells.shape[1])
    ]:
        if value == value:
            axes.text(column, at, f"{value:.2f}", ha="center", va="center", fontsize=8)


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("points", type=Path, help="of benchmarks.family_steps")
    points = pd.read_parquet(parser.parse_args().points)
    draw(points)
    lines = ["## Whole steps", "", *by_family(points)]
    lines += ["![Heat maps by family](../images/families_steps.png)", ""]
    lines += ["## Groups that are off by more than 22 % in the median", "", *far_off(points)]
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"{END}{after}", "utf-8")


if __name__ == "__main__":
    main()
