"""Interference: prompts that are computed in the steps in which a request decodes.

Source: TaiChi (Wang et al., 2025), §2.3.1 and figure 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mist_sim.metrics.clients.step_figures import sum_before
from mist_sim.metrics.latency import Array
from mist_sim.metrics.records.recorder import ColumnRecorder
from mist_sim.units import Seconds


def interference(recorder: ColumnRecorder) -> Array:
    """Return the interference intensity of each row of the requests.

    It is the prompt tokens that the engine of the answer computed between the answer's first and
    last token, divided by the output tokens after the first. TPOT counts the same tokens (the paper
    divides by all output tokens), so TPOT is linear in the intensity wherever step time is linear
    in prompt tokens. Time outside the batch, as after a preemption, does not count. Like TPOT it
    describes the last attempt, and is NaN without a second token.
    """
    requests = recorder.requests.columns()
    tokens = recorder.tokens.columns()
    order = np.argsort(requests["request_id"])
    place = np.searchsorted(requests["request_id"], tokens["request_id"], sorter=order)
    ended = place < len(order)  # others are still under way where a run was ended early
    ended[ended] = requests["request_id"][order[place[ended]]] == tokens["request_id"][ended]
    computed = np.zeros(len(order))
    for track in range(len(recorder.steps)):
        mine = ended & (tokens["track"] == track)
        rows = order[place[mine]]
        sent = requests["sent_at"][rows]
        stay = tokens["first_step"][mine], tokens["end_step"][mine]
        np.add.at(computed, rows, _prefill_tokens(recorder, track, stay, sent))
    num_gaps = requests["num_gaps"]
    none = np.full(len(order), np.nan)
    result: Array = np.divide(computed, num_gaps, out=none, where=num_gaps > 0)
    return result


def _prefill_tokens(
    recorder: ColumnRecorder,
    track: int,
    stay: tuple[NDArray[np.int64], NDArray[np.int64]],
    sent: Array,
) -> Array:
    """Return the prompt tokens that a track computed in the steps of some stays.

    stay: the first step of each, and the one after its last. sent: seconds; earlier steps belong
    to an attempt before.
    """
    steps = recorder.steps[track].columns()
    if not len(steps["num_steps"]):
        return np.zeros(len(sent))
    first = np.clip(recorder.step_ends[track].number_until(sent), *stay)
    computed = steps["num_prefill_tokens"].astype(np.int64)
    before, after = (sum_before(steps["num_steps"], computed, step) for step in (first, stay[1]))
    found: Array = after - before
    return found


@dataclass(frozen=True)
class InterferenceLaw:
    """TPOT as a line in interference intensity.

    slope: seconds for each prompt token an output token. intercept: seconds of a decode that no
    prompt disturbs. r_squared: the share of TPOT's variance that the line explains.
    """

    slope: Seconds
    intercept: Seconds
    r_squared: float

    @classmethod
    def fit(cls, intensity: Array, tpot: Array) -> InterferenceLaw:
        """Return the least-squares line through requests; NaNs are left out.

        intensity: prompt tokens per output token. tpot: seconds.
        Raises ValueError if fewer than two intensities differ.
        """
        from scipy.stats import linregress  # only now: it takes long to import

        known = ~(np.isnan(intensity) | np.isnan(tpot))
        x, y = np.asarray(intensity)[known], np.asarray(tpot)[known]
        if not len(x) or x.min() == x.max():
            raise ValueError(
                "intensity must have two values that differ, of requests with a TPOT, "
                f"got {len(x)} requests"
            )
        line = linregress(x, y)
        return cls(float(line.slope), float(line.intercept), float(line.rvalue) ** 2)

    def most(self, tpot: Seconds) -> float:
        """Return the intensity (prompt tokens an output token) at which TPOT reaches a value."""
        return (tpot - self.intercept) / self.slope
