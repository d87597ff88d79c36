"""Nothing that a run says depends on how many records are put together, or read at a time."""

from contextlib import ExitStack
from typing import Any
from unittest import mock

import numpy as np
import pytest

from mist_sim import Result, simulate
from mist_sim.core import columns, recorder, step_ends
from mist_sim.metrics import requests as breakdown
from mist_sim.metrics import together
from tests.reference.scenarios import PRESSED, scenario

FEW = (
    (step_ends, "_PIECE", 8),
    (step_ends, "_MOST", 0),
    (step_ends, "_TOGETHER", 5),
    (columns, "_MOST_PACKED", 64),
    (recorder, "_MOST_ROWS", 4),
    (breakdown, "_TOGETHER", 3),
    (together, "_MOST", 0),
)
TABLES = ("requests", "stages", "steps", "clients", "transfers", "breakdown", "over_time")
ENGINE = "clients__0__"
CASES: dict[str, dict[str, Any]] = {
    "short of memory": {},
    "swapping": {f"{ENGINE}scheduler": {"type": "continuous", "preemption": "swap"}},
    "drafts": {
        f"{ENGINE}speculative_config": {
            "method": "ngram",
            "num_speculative_tokens": 3,
            "acceptance_rate": 0.5,
        }
    },
    "pipelines": {f"{ENGINE}pipeline_parallel_size": 2},
    "two engines, and a warm-up": {f"{ENGINE}data_parallel_size": 2, "warmup": "1 s"},
}


def told(result: Result) -> dict[str, object]:
    """Everything that a run says, as text or to the bit."""
    found: dict[str, object] = {"summary": repr(result.summary)}
    for table in TABLES:
        for name, values in result.columns(table).items():
            array = np.asarray(values)
            is_text = array.dtype == object
            found[f"{table} {name}"] = array.tolist() if is_text else array.tobytes()
    found["tokens"] = [result.token_times(k).tobytes() for k in range(len(result.requests))]
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_run_with_small_pieces_says_the_same(case):
    said = scenario(**(PRESSED | CASES[case]))
    expected = told(simulate(said))
    with ExitStack() as patches:
        for module, name, number in FEW:
            patches.enter_context(mock.patch.object(module, name, number))
        result = simulate(said)
        assert len(result.recorder.step_ends[0]) > 8
        assert told(result) == expected
