"""Tracks put together: many clients have few steps each, and NumPy is called more than it works."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.columns import JoinedColumns
from mist_sim.core.recorder import Recorder
from mist_sim.core.step_ends import Ends, StepEnds

_OF_FIRST = (
    "start",
    "num_chunks",
    "num_prefill_tokens",
    "num_decodes",
    "context_sum",
    "chunk_context_sum",
)
_OF_LAST = ("num_waiting", "num_used_blocks")
_SUMMED = ("num_steps", "num_prefill_pairs", "num_extrapolated")
_MOST = 65_536  # steps put together: few enough for a processor's cache


class Tracks(NamedTuple):
    """Successive tracks as if they were one: their runs and steps, one track after the other.

    numbers: of the tracks. runs: columns of their runs. ends: of the steps of each. run_cuts,
    step_cuts: where each track begins in the runs and the steps, and where the last one ends.
    """

    numbers: Sequence[int]
    runs: Mapping[str, Any]
    ends: Sequence[StepEnds]
    run_cuts: list[int]
    step_cuts: list[int]

    def pieces(self) -> Iterator[tuple[int, Ends]]:
        """Yield the ends of some successive steps, each time with the number of the first one."""
        if len(self.ends) == 1:
            yield from self.ends[0].pieces()
        elif self.step_cuts[-1]:
            yield 0, self.between(0, self.step_cuts[-1])

    def between(self, first: int, last: int) -> Ends:
        """Return the ends of the steps from `first` to the one before `last`."""
        if len(self.ends) == 1:
            return self.ends[0][first:last]
        return np.concatenate([ends.all() for ends in self.ends])[first:last]

    def run_ends(self) -> Ends:
        """Return when each run ended, seconds."""
        last_steps = np.cumsum(self.runs["num_steps"]) - 1
        if len(self.ends) == 1:
            return self.ends[0].of(last_steps)
        ends: Ends = self.between(0, self.step_cuts[-1])[last_steps]
        return ends

    def number_until(self, times: Ends, cuts: Sequence[int]) -> NDArray[np.int64]:
        """Return, for some times of each track, the first step that has not ended then.

        cuts: where the times of each track begin, and where the last ones end.
        """
        return np.concatenate(
            [
                begin + ends.number_until(times[first:last])
                for ends, begin, (first, last) in zip(
                    self.ends, self.step_cuts, pairwise(cuts), strict=False
                )
            ]
        )


def merged(recorder: Recorder, tracks: Tracks) -> Tracks:
    """Return tracks whose runs are as long as they can be, however their engines cut them.

    A run goes on in the next one if that begins when it ends, with equal pieces of prompts and as
    many decodes, and with the contexts that have come about by then. With drafts, whose steps give
    different numbers of tokens, runs stay as they are.
    """
    rows = tracks.runs
    starts, ends, steps = rows["start"], tracks.run_ends(), rows["num_steps"]
    if len(starts) < 2 or any(recorder.step_tokens[number] for number in tracks.numbers):
        return tracks
    goes_on = starts[1:] == ends[:-1]
    for context, more in (
        ("context_sum", "num_decodes"),
        ("chunk_context_sum", "num_prefill_tokens"),
    ):
        given = rows[more]
        goes_on &= given[1:] == given[:-1]
        goes_on &= rows[context][1:] == (rows[context] + steps * given)[:-1]
    goes_on &= rows["num_chunks"][1:] == rows["num_chunks"][:-1]
    goes_on[[cut - 1 for cut in tracks.run_cuts if 0 < cut < len(starts)]] = False
    firsts = np.concatenate([[0], np.flatnonzero(~goes_on) + 1])
    lasts = np.append(firsts[1:], len(starts)) - 1
    busy, whole = rows["busy"], ends - starts
    found: dict[str, Any] = {name: rows[name][firsts] for name in _OF_FIRST}
    found |= {name: np.add.reduceat(rows[name], firsts) for name in _SUMMED}
    found |= {name: rows[name][lasts] for name in _OF_LAST}
    found["busy"] = np.where(
        np.logical_and.reduceat(busy == whole, firsts),
        ends[lasts] - starts[firsts],
        np.add.reduceat(busy, firsts),
    )
    cuts = np.searchsorted(firsts, tracks.run_cuts).tolist()
    return tracks._replace(runs=found, run_cuts=cuts)


def together(recorder: Recorder, numbers: Sequence[int] | None = None) -> Iterator[Tracks]:
    """Yield tracks of a run in order: several short ones at a time, or one long one.

    numbers: of the tracks; by default all.
    """
    numbers = range(len(recorder.steps)) if numbers is None else numbers
    lengths = [len(recorder.step_ends[number]) for number in numbers]
    first = num_steps = 0
    for place, length in enumerate([*lengths, _MOST + 1]):
        if num_steps + length > _MOST and first < place:
            yield joined_tracks(recorder, numbers[first:place])
            first, num_steps = place, 0
        num_steps += length


def joined_tracks(recorder: Recorder, numbers: Sequence[int]) -> Tracks:
    """Return one or more tracks of a run joined into one."""
    runs = JoinedColumns([recorder.steps[number] for number in numbers])
    ends = [recorder.step_ends[number] for number in numbers]
    cuts = [list(accumulate(each, initial=0)) for each in (runs.num_rows, map(len, ends))]
    return Tracks(numbers, runs, ends, *cuts)


def sum_each(values: Ends, cuts: Sequence[int]) -> list[float]:
    """Return the sum of each part of an array, rounded as that of the part alone.

    cuts: where each part begins, and where the last one ends.
    """
    return [float(values[first:last].sum()) for first, last in pairwise(cuts)]
