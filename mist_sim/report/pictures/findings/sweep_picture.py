"""One figure over one key or two: a line over one, a heat map over two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, isnan
from typing import Any

import numpy as np

from mist_sim.report.elements.metric_cells import metric_cell, metric_title
from mist_sim.report.pictures.marks import Band, Bars, Cells, Line, Mark
from mist_sim.report.pictures.picture import Panel, Picture

_ROW = 0.34  # inches, of a row of cells or a bar


def sweep_picture(summary: Mapping[str, Any]) -> Picture:
    """Return the figure of a sweep over its keys. summary: `Sweep.summary`."""
    metric, labels, title = summary["metric"], summary["labels"], sweep_title(summary)
    if len(summary["keys"]) == 2:
        cells = {tuple(point["values"]): point["mean"] for point in summary["points"]}
        return heat_map(cells, metric, labels, title)
    points = [point for point in summary["points"] if not isnan(point["mean"])]
    texts, means = ([p["values"][0] for p in points], [p["mean"] for p in points])
    at = [_number(text) for text in texts]
    if any(isnan(each) for each in at):
        shown = [metric_cell(metric, mean) for mean in means]
        bars = Bars(range(len(means)), means, texts=shown)
        return Picture([Panel(title, [bars], height=_ROW * len(texts), rows=texts)])
    marks: list[Mark] = []
    low, high = ([point[name] for point in points] for name in ("low", "high"))
    if all(map(isfinite, (*low, *high))):
        marks.append(Band(at, low, high))
    marks.append(Line(at, means, has_points=True))
    return Picture([Panel(title, marks, across=labels[0], height=3.0)])


def sweep_title(summary: Mapping[str, Any]) -> str:
    """Return the data of a sweep's picture."""
    what = ", ".join(filter(None, metric_title(summary["metric"])))
    return f"{what} over {' and '.join(summary['labels'])}"


def heat_map(
    means: Mapping[tuple[str, ...], float], metric: str, labels: Sequence[str], title: str
) -> Picture:
    """Return a cell for each pair of values, with its figure; empty where a run failed.

    means: by the values of the two keys. labels: of the keys, the first one down.
    """
    down, across = (list(dict.fromkeys(each[place] for each in means)) for place in (0, 1))
    values = np.array([[means.get((row, one), np.nan) for one in across] for row in down])
    texts = [["-" if isnan(v) else metric_cell(metric, v) for v in row] for row in values.tolist()]
    first, second = labels
    height = _ROW * len(down)
    panel = Panel(title, [Cells(values, texts)], second, first, height, rows=down, columns=across)
    return Picture([panel])


def _number(text: str) -> float:
    """Return a value as a position on a scale, without its unit; NaN if it is not a number."""
    try:
        return float(text.split(maxsplit=1)[0])
    except (ValueError, IndexError):
        return float("nan")
