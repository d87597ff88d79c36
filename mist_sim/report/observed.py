"""The latencies of an observed server as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from rich.console import Group, RenderableType

from mist_sim.metrics.latency import SHORT_NAMES
from mist_sim.report.elements import columns, in_ms, section

_PERCENTILES = (50, 90, 99)


def observed_table(seconds: Mapping[str, Sequence[float]], number: int) -> RenderableType:
    """Return the latencies of answers. seconds: by metric, such as ttft. number: of answers."""
    titles = ["", "mean", *(f"p{each}" for each in _PERCENTILES)]
    body = columns(titles, _rows(seconds), right=range(1, len(titles)))
    return Group(*section(f"Latency of the {number:,} requests that were answered, ms", body))


def _rows(seconds: Mapping[str, Sequence[float]]) -> Iterator[list[str]]:
    for key, name in SHORT_NAMES.items():
        if found := seconds[key]:  # answers of one token have no gaps
            figures = (np.mean(found), *np.percentile(found, _PERCENTILES))
            yield [name, *(in_ms(float(each) * 1e3) for each in figures)]
