"""Costs of KV transfers, from measured ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mist_sim.network import Connector


def fit_connector(
    num_bytes: Sequence[float],
    seconds: Sequence[float],
    bandwidth: float,
    connector: Connector | None = None,
) -> Connector:
    """Return a connector with a start and an efficiency fitted to transfers.

    Least squares of seconds = start + bytes / b, where b is efficiency times bandwidth. The
    connector's time for descriptors is not subtracted.

    num_bytes, seconds: of each transfer, alone on its route. bandwidth: of that route, bytes/s.
    connector: connector whose other figures are kept; None: a plain one.
    Raises ValueError for fewer than two transfers of different size, and if the best line has a
    speed above the bandwidth.
    """
    sizes, times = np.array(num_bytes), np.array(seconds)
    if len(set(num_bytes)) < 2:
        raise ValueError(f"num_bytes must have two different sizes or more, got {list(num_bytes)}")
    (start, slope), *_ = np.linalg.lstsq(np.stack([np.ones_like(sizes), sizes], 1), times)
    if not slope * bandwidth >= 1:
        raise ValueError(
            f"seconds must grow by 1 / bandwidth a byte or more, with a bandwidth of {bandwidth} "
            f"B/s, got {slope} s a byte"
        )
    return replace(
        connector or Connector(), start=max(float(start), 0.0), efficiency=1 / (slope * bandwidth)
    )
