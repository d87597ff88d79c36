"""Demand of a workload: the lengths of its requests, and when they are due."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mist_sim.errors import ScenarioError
from mist_sim.metrics.goodput import Limits
from mist_sim.search.designs import rows_of
from mist_sim.search.planning.engines import Engine
from mist_sim.search.planning.question import Question
from mist_sim.search.verdicts.request_times import Target
from mist_sim.search.verdicts.steady_runs import lengthened
from mist_sim.studies.built import Built
from mist_sim.traces import TraceArrivals

Array = NDArray[np.float64]

_ROWS = 20_000  # of a workload that is drawn
_ERRORS = 4.0  # standard errors of a mean of drawn rows that are left as room: one in 30,000 is off


@dataclass(frozen=True)
class Demand:
    """The requests of a workload.

    prompts, answers: tokens of each (of a drawn workload, of its first ones). rate: requests per
        second. share: required share of good requests. limits: limits of a good request. is_steady:
        whether it is judged in steady state rather than as it stands. span: seconds from the first
        arrival to the last of a workload as it stands; infinite if unknown. cached: whether a
        prefix cache may have parts of prompts. is_plain: whether each request is just a prompt and
        its answer.
    """

    prompts: Array
    answers: Array
    rate: float
    share: float
    limits: Limits
    is_steady: bool = True
    span: float = inf
    cached: bool = False
    is_plain: bool = True

    @property
    def mean_prompt(self) -> float:
        """Tokens."""
        return float(self.prompts.mean())

    @property
    def mean_answer(self) -> float:
        """Tokens."""
        return float(self.answers.mean())

    def engines_for(self, work: Array) -> float:
        """Return the least number of engines for good requests, if each works without a pause.

        work: least engine seconds of each request. The required share of requests must be served
            whole, and the least demanding ones bound it from below. In steady state as many are
            served as arrive, since seats limit those under way.
        For a workload as it stands, all are served between the first arrival and the last deadline.
        """
        number = int(self.share * len(work))
        least = np.partition(work, number - 1)[:number] if number else work[:0]
        if not self.is_steady:
            return float(least.sum()) / (self.span + self._latest)
        return self.rate * self._each_takes(work, least)

    def most_rate(self, work: Array, num_engines: int) -> float:
        """Return the rate (requests per second) at which that many engines never pause.

        work: as in `engines_for`. Infinite if no bound is proved.
        """
        number = int(self.share * len(work))
        least = np.partition(work, number - 1)[:number] if number else work[:0]
        if self.is_steady:
            each = self._each_takes(work, least)
            return num_engines / each if each > 0 else inf
        span = float(least.sum()) / num_engines - self._latest if num_engines else inf
        if self.span == inf or span <= 0:
            return inf
        return self.rate * self.span / span

    def _each_takes(self, work: Array, least: Array) -> float:
        """Return the seconds that a request takes at least on average in steady state."""
        number = len(least)
        capped = np.minimum(work, least.max()) if number else work
        room = _ERRORS * float(capped.std()) / sqrt(len(work))
        return max(float(least.sum()) / len(work) - room, 0.0)

    @property
    def _latest(self) -> float:
        """Seconds after its arrival by which any good request has ended; infinite: any time."""
        limits, found = self.limits, [inf]
        if limits.e2el is not None:
            found.append(limits.e2el)
        if limits.ttft is not None and limits.tpot is not None:
            found.append(limits.ttft + limits.tpot * float(self.answers.max() - 1))
        return min(found)


def demand_of(question: Question, engine: Engine) -> Demand:
    """Return the demand of a question. engine: any one, with which the workload is built.

    Raises ScenarioError for a workload without requests.
    """
    as_is = question.options.as_is
    return demand_on(engine.built, question.target, question.rate, as_is=as_is)


def demand_on(built: Built, target: Target, rate: float, *, as_is: bool = False) -> Demand:
    """Return the demand on a scenario at a rate (requests per second).

    target: the condition to attain. as_is: for the workload as it stands, not in steady state.
    Raises ScenarioError for a workload without requests.
    """
    simulation = built.simulation
    workload: Any = simulation.workload
    longer = lengthened(simulation, target, _ROWS)
    is_steady = longer is not None and not as_is
    drawn: Any = longer.source if longer is not None and is_steady else workload.source
    rows = _rows(built, drawn, _ROWS if is_steady else None)
    times = [row.arrival_time for row in rows if row.arrival_time is not None]
    span = inf
    if isinstance(workload.arrivals, TraceArrivals) and times:
        span = (len(rows) - 1) / rate
    return _of_rows(
        built,
        rows,
        rate=rate,
        share=target.least_asked,
        limits=target.slo.loosest,
        is_steady=is_steady,
        span=span,
    )


def own_demand(built: Built, rate: float) -> Demand:
    """Return the demand of all requests of a scenario, whenever they end, at their rate (1/s)."""
    rows = _rows(built, built.workload.source, None)
    return _of_rows(built, rows, rate=rate, share=1.0, limits=Limits())


def _rows(built: Built, source: Any, most: int | None) -> list[Any]:
    """Return the rows of a trace, or the first ones that the scenario's own seed draws.

    Raises ScenarioError where there are none.
    """
    rows = rows_of(source, built.simulation.streams.seed, most)
    if not rows:
        raise ScenarioError("workload must have a request, got none")
    return rows


def _of_rows(built: Built, rows: list[Any], **more: Any) -> Demand:
    lengths = np.array([row[:2] for row in rows], dtype=float)
    return Demand(
        prompts=lengths[:, 0],
        answers=lengths[:, 1],
        cached=any(row.content for row in rows),
        is_plain=built.scenario.workload.pipeline == ("prefill", "decode"),
        **more,
    )
