"""Data that moved for requests: their transfers, and answers that moved while decoding."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mist_sim.metrics.records.recorder import ColumnRecorder
from mist_sim.metrics.requests.retrievals import NO_LEVEL


def communication(recorder: ColumnRecorder, request_ids: NDArray[np.int64]) -> dict[str, Any]:
    """Return transfers, tokens, bytes and seconds of the KV entries moved for some requests.

    By kind: `hand_over`, `fetch`, `load`, `swap_out`, `swap_in`, and `retrieval` from a level of a
    retrieval client; kinds without transfers are absent. Seconds are summed, also over simultaneous
    transfers. Bytes are NaN if unknown for any transfer.
    """
    moves = recorder.moves.columns()
    counted = np.isin(moves["request_id"], request_ids)
    seconds = moves["end"] - moves["start"]
    found = {}
    for code in np.flatnonzero(np.bincount(moves["kind"][counted])).tolist():
        mine = counted & (moves["kind"] == code)
        found[str(recorder.move_names.values[code])] = {
            "transfers": int(mine.sum()),
            "tokens": int(moves["num_tokens"][mine].sum()),
            "bytes": float(moves["num_bytes"][mine].sum()),
            "seconds": float(seconds[mine].sum()),
        }
    found |= _retrieved(recorder, request_ids)
    return {"communication": found} if found else {}


def _retrieved(recorder: ColumnRecorder, request_ids: NDArray[np.int64]) -> dict[str, Any]:
    """Return the seconds of entries that came from levels of retrieval clients."""
    rows = recorder.retrievals.columns()
    mine = np.isin(rows["request_id"], request_ids) & (rows["level"] != NO_LEVEL)
    if not mine.any():
        return {}
    came = {
        "transfers": int(mine.sum()),
        "tokens": round(float(rows["num_tokens"][mine].sum())),
        "bytes": float(rows["num_bytes"][mine].sum()),
        "seconds": float((rows["end"] - rows["start"])[mine].sum()),
    }
    return {"retrieval": came}


def answers_moved(recorder: ColumnRecorder, request_ids: NDArray[np.int64]) -> dict[str, Any]:
    """Return how often answers moved: the mean over all requests, and the largest number.

    The hand-over from the client of the prompt to the first decode client does not count. Empty if
    no answer moved.
    """
    visits = recorder.visits.columns()
    pipelines: list[Any] = recorder.pipelines.values
    num_stages = np.array([len(kinds) for kinds in pipelines], dtype=int)
    left_some = visits["num_served_stages"] < num_stages[visits["stages"]]
    movers = visits["request_id"][visits["served"] & left_some]
    movers = movers[np.isin(movers, request_ids)]
    if not len(movers):
        return {}
    _, counts = np.unique(movers, return_counts=True)
    return {
        "mean_moves_per_request": len(movers) / len(request_ids),
        "max_moves_per_request": int(counts.max()),
    }
