"""Seconds in which clients were up, started, drained or were away, from records of their states."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf
from typing import Any, NamedTuple

from mist_sim.core.states import State
from mist_sim.metrics.records.recorder import STATUSES, ColumnRecorder
from mist_sim.metrics.tables.tabular import Columns, column, texts

POWERED: tuple[State, ...] = ("starting", "up", "draining")
"""In which GPUs draw power, if only idle."""
RESERVED: tuple[State, ...] = (*POWERED, "failed")
"""In which GPUs are paid for."""


class Period(NamedTuple):
    """A client was in a state from start to end, seconds."""

    client_id: int
    state: State
    start: float
    end: float


class Lives:
    """The states of all clients in a run; without records of states, all clients are up throughout.

    end: end of the run, seconds.
    """

    def __init__(self, recorder: ColumnRecorder, end: float) -> None:
        self.end = end
        self._of: dict[int, list[Period]] = {}
        rows = recorder.states.columns()
        names: list[Any] = recorder.state_names.values
        changes: dict[int, list[tuple[float, State]]] = {}
        columns = (rows[name].tolist() for name in ("client_id", "time", "state"))
        for client_id, time, state in zip(*columns, strict=True):
            changes.setdefault(client_id, []).append((time, names[state]))
        self._changes_of = changes
        for client_id, mine in changes.items():
            ends = [*(time for time, _ in mine[1:]), max(end, mine[-1][0])]
            self._of[client_id] = [
                Period(client_id, state, start, until)
                for (start, state), until in zip(mine, ends, strict=True)
                if until > start
            ]

    @property
    def is_told(self) -> bool:
        """Whether clients change their states."""
        return bool(self._of)

    @property
    def periods(self) -> list[Period]:
        """All periods, by client and in order of time."""
        return [period for client_id in sorted(self._of) for period in self._of[client_id]]

    def count(self, state: State, begin: float = 0.0) -> int:
        """Return how often clients came into a state from a time on, if only for an instant."""
        every = self._changes_of.values()
        return sum(each == state and time >= begin for mine in every for time, each in mine)

    @property
    def failures(self) -> list[tuple[float, float]]:
        """When clients failed, and when each was up again, seconds; infinite for good."""
        found = []
        for mine in self._changes_of.values():
            up = [time for time, each in mine if each == "up"]
            failed = [time for time, each in mine if each == "failed"]
            found += [(time, next((t for t in up if t > time), inf)) for time in failed]
        return found

    def seconds(self, client_id: int, states: Collection[State], begin: float = 0.0) -> float:
        """Return how long a client was in some states from a time on."""
        if client_id not in self._of:
            return max(self.end - begin, 0.0)
        return sum(
            max(period.end - max(period.start, begin), 0.0)
            for period in self._of[client_id]
            if period.state in states
        )


def states_columns(lives: Lives, client_names: Sequence[str]) -> Columns:
    """A row a period of a client in one state: off, starting, up, draining, failed.

    start, end: seconds. Empty where all clients are up all the time.
    """
    periods = lives.periods
    return {
        "client": texts(client_names[period.client_id] for period in periods),
        "state": texts(period.state for period in periods),
        "start": column(period.start for period in periods),
        "end": column(period.end for period in periods),
    }


def lives_summary(
    recorder: ColumnRecorder, lives: Lives, counted: dict[str, Any], begin: float
) -> dict[str, Any]:
    """Return failures, starts and losses of clients; empty if no client changed its state.

    counted: columns of the requests that count. begin: end of the warm-up; clients count from there
        on.

    num_lost: requests that ended because a client failed. num_lost_visits: visits lost with
    a client, num_retried_visits: of these, visits whose request continued at another client.
        lost_kv_tokens: tokens whose KV entries were lost. num_client_failures, num_client_starts:
        numbers of failures and starts.
    mean_clients_up: mean over time.
    """
    if not lives.is_told:
        return {}
    losses = recorder.losses.columns()
    ids = {period.client_id for period in lives.periods}
    seconds = max(lives.end - begin, 0.0)
    up = sum(lives.seconds(client_id, ("up", "draining"), begin) for client_id in ids)
    return {
        "num_lost": int((counted["status"] == STATUSES.index("lost")).sum()),
        "num_lost_visits": len(losses["time"]),
        "num_retried_visits": int(losses["retried"].sum()),
        "lost_kv_tokens": int(losses["num_tokens"].sum()),
        "num_client_failures": lives.count("failed", begin),
        "num_client_starts": lives.count("starting", begin),
        "mean_clients_up": up / seconds if seconds else 0.0,
    }
