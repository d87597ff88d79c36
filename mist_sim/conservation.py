"""Conservation: each request that enters a run leaves it once, and clients keep nothing.

The two sides of each law are counted independently. Entries are counted as the workload hands
requests over; ends are the recorder's rows; work still held is read from the clients' views; and
visits returned to the walks are compared with the visits that clients recorded.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from mist_sim.clients import Client
from mist_sim.core.recorder import Recorder
from mist_sim.core.request import Request
from mist_sim.load_generation import LoadGenerator

Ids = NDArray[np.int64]


class Conservation:
    """Counts the requests that enter one run, and accounts for each of them at its end.

    requests: the workload's requests, in order of sending.
    """

    def __init__(self, requests: Iterator[Request]) -> None:
        self._requests = requests
        self._entered: array[int] = array("q")

    def entering(self) -> Iterator[Request]:
        """Hand over the requests of the workload, and count each."""
        for request in self._requests:
            self._entered.append(request.request_id)
            yield request

    def enter(self, request: Request) -> None:
        """Count a request that does not come from the workload, such as the child of another.

        The request has its own id, and must end like a request of the workload.
        """
        self._entered.append(request.request_id)

    def broken_law(
        self, load: LoadGenerator, recorder: Recorder, clients: Sequence[Client]
    ) -> str | None:
        """Return what a finished run has lost or counted twice, and where; None if nothing.

        clients: position is the client_id of the records.
        """
        return (
            self._never_sent()
            or self._not_ended_once(recorder, clients)
            or _still_held(clients)
            or _visits_unlike_records(load, recorder, clients)
            or _stages_not_served(load, recorder, clients)
        )

    def _never_sent(self) -> str | None:
        """Every row of the workload is sent."""
        request = next(self._requests, None)
        if request is None:
            return None
        return f"request {request.request_id} was never sent: load generation stopped before it"

    def _not_ended_once(self, recorder: Recorder, clients: Sequence[Client]) -> str | None:
        """Check that the ended requests have one row for each that entered, and no other row."""
        entered, ended = _ints(self._entered), recorder.requests.columns()["request_id"]
        if np.array_equal(_sorted(entered), _sorted(ended)) and (np.diff(_sorted(ended)) > 0).all():
            return None
        if twice := _repeated(entered, "entered") or _repeated(ended, "ended"):
            return twice
        if (lost := np.setdiff1d(entered, ended)).size:
            place = _whereabouts(lost[0], recorder, clients)
            return f"{lost.size} of {entered.size} requests never ended, first {lost[0]} ({place})"
        return f"request {np.setdiff1d(ended, entered)[0]} ended and never entered"


def _repeated(request_ids: Ids, what: str) -> str | None:
    """Each id occurs once."""
    ids, times = np.unique(request_ids, return_counts=True)
    if (repeated := np.flatnonzero(times > 1)).size:
        return f"request {ids[repeated[0]]} {what} {times[repeated[0]]} times"
    return None


def _still_held(clients: Sequence[Client]) -> str | None:
    """No visit waits, runs, or is outstanding at a client."""
    for client in clients:
        view = client.view
        if view.num_waiting or view.num_running or view.num_outstanding:
            return (
                f"client {client.name!r} still counts {view.num_waiting} waiting, "
                f"{view.num_running} running, {view.num_outstanding} outstanding"
            )
    return None


def _visits_unlike_records(
    load: LoadGenerator, recorder: Recorder, clients: Sequence[Client]
) -> str | None:
    """For every request, clients have recorded as many visits as its walks got back."""
    ids: Ids = recorder.requests.columns()["request_id"]
    visited: Ids = recorder.visits.columns()["request_id"]
    rows = _rows_of(visited, ids)
    if (unknown := visited[ids[rows] != visited]).size:
        place = _whereabouts(unknown[0], recorder, clients)
        return f"request {unknown[0]} has visits and never entered ({place})"
    recorded = np.bincount(rows, minlength=ids.size)
    walked = _ints(load.num_visits)
    if walked.size != ids.size:
        return f"{ids.size} requests ended, and load generation counts {walked.size}"
    if (wrong := np.flatnonzero(recorded != walked)).size:
        row = wrong[0]
        place = _whereabouts(ids[row], recorder, clients)
        return (
            f"clients recorded {recorded[row]} visits of request {ids[row]}, and its walks got "
            f"back {walked[row]} ({place})"
        )
    return None


def _stages_not_served(
    load: LoadGenerator, recorder: Recorder, clients: Sequence[Client]
) -> str | None:
    """A request that finished was served in each of its stages, and once when it was sent once.

    One that was sent again may have been served in some stages before.
    """
    requests, visits = recorder.requests.columns(), recorder.visits.columns()
    ids: Ids = requests["request_id"]
    rows = _rows_of(visits["request_id"], ids)
    num_served = np.bincount(rows, visits["num_served_stages"], ids.size).astype(np.int64)
    num_stages = _ints(load.num_stages)
    too_many = (num_served > num_stages) & (requests["num_attempts"] == 1)
    wrong = (requests["status"] == 0) & ((num_served < num_stages) | too_many)
    if (found := np.flatnonzero(wrong)).size:
        row = found[0]
        place = _whereabouts(ids[row], recorder, clients)
        return (
            f"request {ids[row]} has finished with {num_served[row]} of its {num_stages[row]} "
            f"stages served ({place})"
        )
    return None


def _whereabouts(request_id: np.int64, recorder: Recorder, clients: Sequence[Client]) -> str:
    """Return the client of a request's last recorded visit, and the clients that hold any."""
    visits = recorder.visits.columns()
    mine = visits["client_id"][visits["request_id"] == request_id]
    last = f"at client {clients[mine[-1]].name!r}" if mine.size else "nowhere"
    holding = [repr(client.name) for client in clients if client.view.num_outstanding]
    held = f"; clients that still hold visits: {', '.join(holding)}" if holding else ""
    return f"its last recorded visit was {last}{held}"


def _rows_of(request_ids: Ids, ids: Ids) -> NDArray[np.intp]:
    """Return where each of some request ids is in `ids`, which has it once; else any place."""
    order = np.argsort(ids, kind="stable")
    places = np.searchsorted(ids[order], request_ids)
    return order[np.minimum(places, ids.size - 1)]


def _sorted(ids: Ids) -> Ids:
    """Return ids in order; a stable sort is fast where most of them are."""
    return np.sort(ids, kind="stable")


def _ints(values: Sequence[int]) -> Ids:
    return np.array(values, dtype=np.int64)
