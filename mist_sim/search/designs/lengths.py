"""Lengths of a scenario's requests, for designs that are chosen by them."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mist_sim.rng import Streams
from mist_sim.scenario import Scenario
from mist_sim.traces import TraceReader

_ROWS = 10_000  # of a workload: the requests a worker of the AFD paper's runs


def lengths_of(scenario: Scenario) -> NDArray[np.float64]:
    """Return tokens of prompts and of answers of the first requests, shape (n, 2)."""
    source: Any = scenario.workload.source.make()
    rows = (
        source.rows()
        if isinstance(source, TraceReader)
        else source.sample_rows(Streams(scenario.seed).generator("lengths"))
    )
    return np.array([row[:2] for row in islice(rows, _ROWS)], dtype=float).reshape(-1, 2)
