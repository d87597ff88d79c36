"""Transfers for requests: their number, bytes and seconds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mist_sim.metrics.records.recorder import ColumnRecorder


def communication(recorder: ColumnRecorder, request_ids: NDArray[np.int64]) -> dict[str, Any]:
    """Return transfers, tokens, bytes and seconds of KV entries that moved for some requests.

    By kind: `hand_over`, `load`, `swap_out`, `swap_in`; nothing where none moved. Seconds are added
    up, also of transfers at the same time. Bytes are NaN where they are not known of all.
    """
    moves: dict[str, Any] = recorder.moves.columns()
    counted = np.isin(moves["request_id"], request_ids)
    seconds = moves["end"] - moves["start"]
    found = {}
    for code in np.unique(moves["kind"][counted]).tolist():
        mine = counted & (moves["kind"] == code)
        found[str(recorder.move_names.values[code])] = {
            "transfers": int(mine.sum()),
            "tokens": int(moves["num_tokens"][mine].sum()),
            "bytes": float(moves["num_bytes"][mine].sum()),
            "seconds": float(seconds[mine].sum()),
        }
    return {"communication": found} if found else {}
