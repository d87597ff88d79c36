"""How much latencies change with step times, while requests arrive by themselves.

Longer steps keep more requests in the system, and more requests make longer steps. Let a step take
t = a + c B with B decodes. Requests that come at a rate lambda and want n tokens each leave
B = lambda n t of them at a time (Little), so t = a / (1 - r) with r = lambda n c = 1 - a / t. Steps
that take s times as long make it s a / (1 - s r): t changes by the factor

    s (1 - r) / (1 - s r),

as long as seats, memory and tokens of a step suffice. Then the batch is full, and requests queue.
docs/background/error_bars.md shows how well simulations follow it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.batch import StepLimits
from mist_sim.core.recorder import Recorder
from mist_sim.metrics.latency import Array
from mist_sim.metrics.requests import RequestRows
from mist_sim.metrics.stability import relative_variance
from mist_sim.metrics.together import together

_CHANCE = 0.02  # of some thousand requests: 1 / sqrt(n) more or fewer come than in the mean
_FULL = 0.5  # of mean TTFT in the queue: most requests find a full batch
_LASTS = 0.5  # of a run: a queue that lasts as long is an overload, a shorter one a burst


class Sensitivity(NamedTuple):
    """What a client's load makes of an error of its step times.

    growing: r, the share of a step's time that grows with its decodes. fullest: the largest batch
    over the mean one. used: the share of its capacity that is asked for. queue: the share of mean
    TTFT in a queue, beyond the step under way. behind: half the time in which requests for its
    models arrive, over mean TTFT; where most wait, half the time that a queue lasts. own: mean TTFT
    of its requests, which these are shares of, over that of the run. draw: the part of the work of
    a whole run that comes more or less by chance; 0: not known.
    """

    growing: float = 0.0
    fullest: float = 1.0
    used: float = 0.0
    queue: float = 0.0
    behind: float = 0.0
    own: float = 1.0
    draw: float = 0.0

    def factor(self, metric: str, s: float) -> float:
        """Return by how much mean "ttft" or "tpot" changes if steps take s times as long."""
        rest = 1 - s * self.growing * max(1.0, self.used)
        step = s * (1 - self.growing) / rest if rest > 0 else inf
        step = min(step, s * (1 + self.growing * (self.fullest - 1)))
        if metric == "tpot":
            return step
        return (1 - self.queue) * step + self._queue(s)

    def steps(self, factor: float) -> float:
        """Return s from the factor of TPOT, where no batch is full."""
        return factor / (1 - self.growing + factor * self.growing)

    def longer(self, s: float, ttft: float, decode: float) -> float:
        """Return how much longer a run takes, in the unit of its means of TTFT and decoding.

        By what falls behind while requests arrive, and by the last request.
        """
        before, after = (max(0.0, each * self.used - 1) for each in (1.0, s))
        falls = 2 * self.behind * self.own * ttft
        return falls * (after - before) + decode * (self.factor("tpot", s) - 1)

    def _queue(self, s: float) -> float:
        """Return the time in the queue, over mean TTFT: M/G/1's, or what falls behind."""
        late = max(0.0, s * self.used - 1) * self.behind
        if self.used >= 1:
            left = self.queue + late - (self.used - 1) * self.behind
            return max(0.0, left, min(self.queue, self._by_chance(s * self.used)))
        idle = max(1 - s * self.used, min(_CHANCE, 1 - self.used))
        return s * s * self.queue * (1 - self.used) / idle + late

    def _by_chance(self, used: float) -> float:
        """Return half of Kingman's queue over mean TTFT, at least: seats are free now and then.

        Near capacity a run ends before its queue is so long; it is as in a random walk then.
        """
        idle = max(0.0, 1 - used) + self.draw
        return self.behind * (self.draw * used) ** 2 / idle if idle else 0.0


def sensitivities(
    recorder: Recorder, limits: Sequence[StepLimits | None], done: NDArray[np.bool_]
) -> list[Sensitivity]:
    """Return how each client's latencies follow its step times, over a whole run.

    limits: of each client; None: unknown. done: which rows of requests have a TTFT that counts.
    """
    visits = recorder.visits.columns()
    waits = visits["started_at"] - visits["queued_at"]
    begun = ~np.isnan(waits)
    waited, number = _sums(visits["client_id"][begun], len(limits), waits[begun], 1.0)
    mean_waits = (waited / np.maximum(number, 1)).tolist()
    found = []
    for client_id, (of, limit, wait, asked) in enumerate(
        zip(
            _steps(recorder, len(limits)),
            limits,
            mean_waits,
            _asked(recorder, len(limits), done),
            strict=True,
        )
    ):
        ttft, span = asked.ttft, asked.end - asked.begin
        if not (ttft > 0 and span / 2 / ttft > 0):  # none but the smallest span underflows
            found.append(Sensitivity())
            continue
        growing, fullest, step = 0.0, 1.0, 0.0
        if of.tokens and of.lone < inf:
            step, batch, filled = (each / of.tokens for each in (of.seconds, of.batch, of.filled))
            fullest = of.most / batch
            if limit is not None:
                seats = sum(limit.sequences) / len(limit.sequences)
                in_memory = fullest * limit.num_blocks / max(1, of.peak)
                fullest = max(1.0, min(seats / batch, limit.tokens / filled, in_memory))
            growing = max(0.0, 1 - of.lone / step)
            used = 1 / fullest + growing * (1 - 1 / fullest)
        else:
            tracks = recorder.mean_tracks(client_id, asked.begin, asked.end)
            used = of.busy / span / max(1.0, tracks)
        queue, draw = min(max(0.0, wait - step) / ttft, 1.0), 0.0
        behind = late = span / 2 / ttft
        if queue > _FULL:
            here = begun & (visits["client_id"] == client_id)
            late = min(behind, _together_in_queue(visits, here) / 2 / ttft)
            if late > _LASTS * behind:
                fullest, used = 1.0, 1 + queue / late
                work = (visits["finished_at"] - visits["started_at"])[here]
                draw = sqrt((asked.varies + relative_variance(work)) / 2 / asked.number)
        found.append(Sensitivity(growing, fullest, used, queue, late, asked.own, draw))
    return found


class _Asked(NamedTuple):
    """What a client is asked for.

    ttft: mean over its visits of the TTFT of their requests, seconds; of the run if none has one.
    own: that over the mean of the run. begin, end: seconds between which requests for the models
    that it serves arrive. number: of these. varies: relative variance of the gaps between them.
    """

    ttft: float
    own: float
    begin: float
    end: float
    number: int
    varies: float


def _asked(recorder: Recorder, num_clients: int, done: NDArray[np.bool_]) -> Iterator[_Asked]:
    """Yield what each client is asked for. done: as of `sensitivities`."""
    visits, requests = recorder.visits.columns(), recorder.requests.columns()
    arrival, model, client = requests["arrival_time"], requests["model"], visits["client_id"]
    rows = RequestRows(recorder)
    request = rows.of(requests["parent_id"][rows.of(visits["request_id"])])
    ttft = requests["first_token_at"] - arrival
    known = done & ~np.isnan(ttft)
    of_run = float(ttft[known].mean()) if known.any() else 0.0
    seen = known[request]
    seconds, number = _sums(client[seen], num_clients, ttft[request[seen]], 1.0)
    serves = np.zeros((num_clients, len(recorder.models.values)), bool)
    serves[client, model[request]] = True
    serves[~serves.any(axis=1)] = True
    of_models: dict[bytes, tuple[float, float, int, float]] = {}
    for mine, total, n in zip(serves, seconds.tolist(), number.tolist(), strict=True):
        if (key := mine.tobytes()) not in of_models:
            of_models[key] = _arrivals(arrival[mine[model]])
        mean = total / n if n else of_run
        yield _Asked(mean, mean / of_run if of_run else 1.0, *of_models[key])


def _arrivals(arrival: Array) -> tuple[float, float, int, float]:
    """Return begin, end, number and relative variance of the gaps of arrivals."""
    if len(arrival) < 2:
        return 0.0, 0.0, len(arrival), 0.0
    arrival = np.sort(arrival)
    return (
        float(arrival[0]),
        float(arrival[-1]),
        len(arrival),
        relative_variance(np.diff(arrival)),
    )


def _together_in_queue(visits: Mapping[str, Array], here: NDArray[np.bool_]) -> float:
    """Return how long a queue lasts in which a second of waiting falls, in the mean, seconds.

    here: the visits of one client that began. In a lasting overload it is the whole run, in bursts
    what one of them leaves.
    """
    order = np.argsort(visits["queued_at"][here], kind="stable")
    came, began = visits["queued_at"][here][order], visits["started_at"][here][order]
    empty_at = np.maximum.accumulate(began)
    first = np.flatnonzero(np.r_[True, came[1:] > empty_at[:-1]])
    lengths = np.maximum.reduceat(began, first) - came[first]
    return float((lengths**2).sum() / lengths.sum())


class _Steps(NamedTuple):
    """The steps of a client.

    tokens, seconds, batch, filled: of decodes, and sums over these tokens of their steps' seconds,
    decodes and tokens. busy: seconds of all steps. lone: mean seconds of those with the fewest
    decodes alone. most: decodes of a step. peak: KV blocks.
    """

    tokens: float
    seconds: float
    batch: float
    filled: float
    busy: float
    lone: float
    most: float
    peak: float


def _steps(recorder: Recorder, num_clients: int) -> Iterator[_Steps]:
    """Yield the steps of each client; nothing changes with the steps that a record joins."""
    sums = np.zeros((5, num_clients))
    alone = np.zeros((2, num_clients))  # seconds and number of steps with the fewest decodes
    fewest, most, peak = np.full(num_clients, inf), np.zeros(num_clients), np.zeros(num_clients)
    for tracks in together(recorder):
        runs = tracks.runs
        owners = [recorder.track_clients[number] for number in tracks.numbers]
        owner = np.repeat(owners, np.diff(tracks.run_cuts))
        batch, number = runs["num_decodes"], runs["num_steps"].astype(np.float64)
        time, tokens = tracks.run_ends() - runs["start"], number * batch
        filled = tokens * (runs["num_prefill_tokens"] + batch)
        sums += _sums(
            owner, num_clients, tokens, time * batch, tokens * batch, filled, runs["busy"]
        )
        np.maximum.at(most, owner, batch)
        np.maximum.at(peak, owner, runs["num_used_blocks"])
        decodes = (batch > 0) & (runs["num_chunks"] == 0)
        before, fewest = fewest, fewest.copy()
        np.minimum.at(fewest, owner[decodes], batch[decodes])
        these = decodes & (batch == fewest[owner])
        alone = np.where(fewest < before, 0.0, alone)
        alone += _sums(owner[these], num_clients, time[these], number[these])
    lone = np.where(alone[1] > 0, alone[0] / np.maximum(alone[1], 1), inf)
    yield from map(_Steps._make, np.stack([*sums, lone, most, peak], axis=1).tolist())


def _sums(owner: Array, num_clients: int, *values: Array | float) -> Array:
    """Return the sums of each of some values by owner, a row each."""
    each = [np.broadcast_to(value, owner.shape) for value in values]
    return np.array([np.bincount(owner, value, num_clients) for value in each])
