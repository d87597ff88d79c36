"""Drives searches for goodput side by side: each round of runs answers what all of them ask."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mist_sim.search.bracketing import Bracket
from mist_sim.search.sure_search import Asked, SureSearch, known
from mist_sim.search.verdicts.trials import Trial

SearchKey = tuple[int, int]
"""Position of a scenario, and a seed."""

Run = Callable[[Sequence[tuple[SearchKey, Asked]]], list[Trial | None]]
"""Runs what is asked, side by side; None for a run that failed."""

Trials = dict[SearchKey, list[Trial]]
Brackets = dict[SearchKey, Bracket]


def drive(
    searches: Mapping[SearchKey, SureSearch],
    run: Run,
    trials: Trials,
    may_end: Callable[[], Iterable[SearchKey]] = tuple,
) -> tuple[Brackets, set[SearchKey]]:
    """Run all searches to their end; return their brackets, and which of them were ended early.

    A search whose run fails ends without a bracket. trials: takes those of each search, one a rate.
    may_end: returns searches that need not go on, after each round.
    """
    ended: Brackets = {}
    early: set[SearchKey] = set()
    answers: dict[SearchKey, Any] = dict.fromkeys(searches)  # None: begin
    while answers:
        asked: dict[SearchKey, list[Asked]] = {}
        for key, answer in answers.items():
            try:
                asked[key] = searches[key].send(answer)
            except StopIteration as end:
                ended[key] = end.value
        for key in [key for key in may_end() if key in asked]:
            del asked[key]
            ended[key] = known(trials[key])
            early.add(key)
        pairs = [(key, each) for key, several in asked.items() for each in several]
        answers = {key: {} for key in asked}
        for (key, (rate, _)), trial in zip(pairs, run(pairs), strict=True):
            if trial is None:
                answers.pop(key, None)
            elif key in answers:
                take(trials[key], trial)
                answers[key][rate] = trial.seems_attained
    return ended, early


def take(trials: list[Trial], trial: Trial) -> None:
    """Add a trial, in place of another one at its rate."""
    trials[:] = [each for each in trials if each.rate != trial.rate] + [trial]
