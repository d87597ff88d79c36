"""Searches that were timed: one row of a CSV each, with the index, the batch and the seconds."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from mist_sim.errors import ScenarioError, brief
from mist_sim.inputs.files import text_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedSearch:
    """Seconds of one call of an index's `search`.

    index: flat, ivf_pq or hnsw. num_lists, pq_bytes, num_probes: of IVF-PQ, else 0. num_links,
    ef_construction, ef_search: of HNSW, else 0. num_results: neighbours of each query.
    num_distances: distances that the index computed for a query, on average, as faiss counts them.
    index_bytes: of the index as faiss writes it. is_held_out: no fit may see it.
    """

    index: str
    num_vectors: int
    dimensions: int
    num_lists: int = 0
    pq_bytes: int = 0
    num_links: int = 0
    ef_construction: int = 0
    num_probes: int = 0
    ef_search: int = 0
    num_results: int = 10
    batch_size: int = 1
    num_threads: int = 1
    seconds: float = 0.0
    num_distances: float = 0.0
    index_bytes: int = 0
    is_held_out: bool = False


def read_searches(path: Path) -> tuple[list[TimedSearch], list[str]]:
    """Return the rows of a CSV, and its comment lines, which say where it comes from.

    Raises ScenarioError, naming the file and the line, for columns or values that are wrong.
    """
    lines = text_of(path).splitlines()
    notes = [line.removeprefix("#").strip() for line in lines if line.startswith("#")]
    numbered = [(k, line) for k, line in enumerate(lines, 1) if line and not line.startswith("#")]
    known = [item.name for item in fields(TimedSearch)]
    if not numbered or numbered[0][1].split(",") != known:
        raise ScenarioError(f"{path}: the columns must be {', '.join(known)}")
    rows = csv.reader(line for _, line in numbered[1:])
    return [_row(path, k, row) for (k, _), row in zip(numbered[1:], rows, strict=True)], notes


def _row(path: Path, line: int, cells: Sequence[str]) -> TimedSearch:
    names = fields(TimedSearch)
    if len(cells) != len(names):
        raise ScenarioError(f"{path}:{line}: must have {len(names)} values, got {len(cells)}")
    values: dict[str, Any] = {}
    for item, cell in zip(names, cells, strict=True):
        try:
            values[item.name] = _READ[str(item.type)](cell)
        except (KeyError, ValueError):
            raise ScenarioError(
                f"{path}:{line}: {item.name} must be of type {item.type}, got {brief(cell)}"
            ) from None
    search = TimedSearch(**values)
    if not 0 < search.seconds < float("inf"):
        raise ScenarioError(f"{path}:{line}: seconds must be > 0, got {search.seconds:g}")
    return search


_READ: dict[str, Any] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": {"True": True, "False": False}.__getitem__,
}


def searches_text(searches: Sequence[TimedSearch], notes: Sequence[str]) -> str:
    """Return the CSV of searches, with comment lines before it."""
    out = io.StringIO()
    out.writelines(f"# {note}\n" for note in notes)
    writer = csv.DictWriter(out, [item.name for item in fields(TimedSearch)], lineterminator="\n")
    writer.writeheader()
    for search in searches:
        row = asdict(search)
        row["seconds"], row["num_distances"] = (
            f"{search.seconds:.4g}",
            f"{search.num_distances:.6g}",
        )
        writer.writerow(row)
    return out.getvalue()
