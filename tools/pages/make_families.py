"""Prints errors of whole steps by family of models; docs/background/roofline.md tells some.

    python -m benchmarks.family_steps --write steps.parquet
    python tools/pages/make_families.py steps.parquet

`benchmarks/family_steps.py` says what a point is, and what it needs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

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


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("points", type=Path, help="of benchmarks.family_steps")
    points = pd.read_parquet(parser.parse_args().points)
    lines = ["## Whole steps", "", *by_family(points)]
    lines += ["## Groups that are off by more than 22 % in the median", "", *far_off(points)]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
