"""Times at which an engine took each request in, between two of its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mist_sim.errors import ScenarioError
from mist_sim.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd

    from mist_sim.metrics import Result

Array = NDArray[np.float64]


def intakes(scenario: Scenario, result: Result, arrivals: pd.Series[float]) -> Array:
    """Return when the engine took in each request: at once if it was idle.

    Otherwise as its step ended; with replicas in lockstep, as the step of all ended. Requests
    without a token count from their arrival.
    arrivals: seconds by request id, which rises.
    Raises ScenarioError for pipelines, in which several steps are under way at once.
    """
    engines = {
        name: engine
        for client in scenario.clients
        if (engine := client.engine)
        for name in client.names
    }
    if any(engine.pipeline_parallel_size > 1 for engine in engines.values()):
        raise ScenarioError("starts_at: intake needs engines with pipeline_parallel_size 1")
    tracks = _first_tracks(result, arrivals.index.to_numpy())
    found = np.array(arrivals, dtype=np.float64)
    names = result.steps.groupby("track")["client"].first()
    for track in np.unique(tracks[tracks >= 0]):
        client = names[track]
        members = [track]
        if engines[client].lockstep:
            members = names.index[names == client].tolist()
        mine = tracks == track
        found[mine] = _next_boundary(result, members, found[mine])
    return found


def as_of_engines(requests: pd.DataFrame, result: Result) -> pd.DataFrame:
    """Return requests with the engines' own times, without the front end.

    requests: of the result, by id. `queued_at` is when a request reached its first client, or
        arrived, if it reached none.
    """
    import pandas as pd

    visits = pd.DataFrame(dict(result.recorder.visits.columns())).groupby("request_id")
    came, first, over = visits["queued_at"], visits["first_token_at"], visits["finished_at"]
    found = pd.DataFrame({"queued_at": came.min(), "first_token_at": first.min()})
    found = found.assign(finished_at=over.max()).reindex(requests.index)
    found["queued_at"] = found["queued_at"].fillna(requests["arrival_time"])
    return requests.drop(columns=["first_token_at", "finished_at"]).join(found)


def _first_tracks(result: Result, request_ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the track of the engine that gave each request its first token; -1 for none."""
    tokens = result.recorder.tokens.columns()
    ids, first = np.unique(tokens["request_id"], return_index=True)
    tracks = np.full(len(request_ids), -1)
    has_token = np.isin(request_ids, ids)
    tracks[has_token] = tokens["track"][first[np.searchsorted(ids, request_ids[has_token])]]
    return tracks


def _next_boundary(result: Result, tracks: list[int], times: Array) -> Array:
    """Return the end of the step under way at each time, or the time itself if there is none."""
    steps = result.steps[result.steps["track"].isin(tracks)].sort_values("start")
    ends = np.unique(np.concatenate([result.recorder.step_ends[track][:] for track in tracks]))
    place = np.minimum(ends.searchsorted(times), len(ends) - 1)
    starts, run_ends = steps["start"].to_numpy(), steps["end"].to_numpy()
    run = np.maximum(starts.searchsorted(times, "right") - 1, 0)
    is_busy = (starts[run] < times) & (times < run_ends[run])
    return np.asarray(np.where(is_busy, ends[place], times))
