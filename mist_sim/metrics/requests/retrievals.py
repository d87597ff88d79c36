"""KV entries that were asked for instead of computed: which level had them."""

from __future__ import annotations

from typing import Any

import numpy as np

from mist_sim.metrics import stats
from mist_sim.metrics.records.recorder import ColumnRecorder
from mist_sim.metrics.tables.tabular import Coded, Columns, in_order

_MS = 1e3
NO_LEVEL = 0
"""Code of what no level had."""


def retrievals_summary(recorder: ColumnRecorder, request_ids: Any) -> dict[str, Any]:
    """Return the hits of retrievals of some requests; empty without retrievals.

    retrieval_hit_rate: share of the tokens asked for that any level had. retrieval_hit_rates: the
    same by level. mean_retrieval_ms: of a batch, waiting not included.
    """
    rows = recorder.retrievals.columns()
    mine = np.isin(rows["request_id"], request_ids)
    if not mine.any():
        return {}
    level, num_tokens = rows["level"][mine], rows["num_tokens"][mine]
    asked, by_level = num_tokens.sum(), np.bincount(level, num_tokens, len(_names(recorder)))
    found = asked - by_level[NO_LEVEL]
    visits = np.stack([rows[name][mine] for name in ("request_id", "client_id", "start", "end")])
    _, _, start, end = np.unique(visits, axis=1)
    return {
        "num_retrievals": len(start),
        "retrieved_tokens": float(found),
        "retrieval_hit_rate": stats.share(found, asked),
        "retrieval_hit_rates": {
            name: stats.share(by_level[code], asked)
            for code, name in enumerate(_names(recorder))
            if code != NO_LEVEL
        },
        "mean_retrieval_ms": float((end - start).mean()) * _MS,
    }


def retrievals_columns(recorder: ColumnRecorder, client_names: list[str]) -> Columns:
    """Return a row for each level that had entries of a requested context, by start.

    client: the retrieving client. level: empty for entries that no level had and an engine
        computes.
    num_tokens: tokens whose entries these are, a mean with expected hits. num_bytes: bytes from the
        level.
    start, end: of the batch, seconds.
    """
    c = recorder.retrievals.columns()
    columns: Columns = {
        "request_id": c["request_id"],
        "client": Coded(c["client_id"], client_names),
        "level": Coded(c["level"], _names(recorder)),
        **{name: c[name] for name in ("num_tokens", "num_bytes", "start", "end")},
    }
    return in_order(columns, np.argsort(c["start"], kind="stable"))


def _names(recorder: ColumnRecorder) -> list[str]:
    """Return the levels by code."""
    return ["" if name is None else str(name) for name in recorder.level_names.values]
