"""Fits the seconds of a search's operations to timed searches, and scores them on held-out indexes.

Each kind of index is fitted on its own, on one thread: non-negative least squares of the relative
errors. The fit uses only the parameters of the index and of the call. Pairs of searches that differ
only in their threads give the exponent of the cores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import median

import numpy as np

from mist_sim.calibration.rag.searches import TimedSearch
from mist_sim.errors import ScenarioError
from mist_sim.hardware.vector_search import (
    FlatIndex,
    HnswIndex,
    IvfPqIndex,
    SearchCoefficients,
    VectorIndex,
)
from mist_sim.hardware.vector_search.coefficients import Rates
from mist_sim.hardware.vector_search.indexes import QueryWork
from mist_sim.spec_files import toml_string

KINDS = ("flat", "ivf_pq", "hnsw")

# fitted operations of each kind; the others do not occur in it, or grow with a fitted one
_FITTED = {
    "flat": ("batches", "results", "queries", "scanned_values", "vectors"),
    "ivf_pq": (
        "batches",
        "results",
        "queries",
        "scanned_values",
        "vectors",
        "lists",
        "table_entries",
        "codes",
        "code_bytes",
    ),
    "hnsw": ("batches", "results", "queries", "distances", "distance_values", "expansions"),
}


@dataclass(frozen=True, slots=True)
class SearchFit:
    """Coefficients, and how far off they are.

    num_fitted, fitted_errors: searches, and median errors, of the fit, by kind of index.
    num_held_out: searches of indexes that the fit did not see; `coefficients.errors` are theirs.
    """

    coefficients: SearchCoefficients
    num_fitted: Mapping[str, int]
    fitted_errors: Mapping[str, float]
    num_held_out: Mapping[str, int]


def index_of(search: TimedSearch) -> VectorIndex:
    """Return the index that a search was timed in."""
    size = {"num_vectors": search.num_vectors, "dimensions": search.dimensions}
    if search.index == "flat":
        return FlatIndex(**size)
    if search.index == "hnsw":
        return HnswIndex(**size, num_links=search.num_links, ef_search=search.ef_search)
    if search.index == "ivf_pq":
        return IvfPqIndex(
            **size,
            num_lists=search.num_lists,
            num_probes=search.num_probes,
            pq_bytes=search.pq_bytes,
        )
    raise ScenarioError(f"index must be one of {', '.join(KINDS)}, got {search.index!r}")


def fit_searches(
    searches: Sequence[TimedSearch], software: str, machine: str, date: str
) -> SearchFit:
    """Return the coefficients of timed searches. software, machine, date: what, where and when.

    Raises ScenarioError if a kind of index has too few searches, fitted or held out.
    """
    alone = [search for search in searches if search.num_threads == 1]
    rates, fitted, held_out = {}, {}, {}
    for kind in KINDS:
        of_kind = [search for search in alone if search.index == kind]
        fitted[kind] = [search for search in of_kind if not search.is_held_out]
        held_out[kind] = [search for search in of_kind if search.is_held_out]
        if len(fitted[kind]) < len(_FITTED[kind]) or not held_out[kind]:
            raise ScenarioError(
                f"searches must have {len(_FITTED[kind])} rows of {kind} to fit on one thread, and "
                f"one held out, got {len(fitted[kind])} and {len(held_out[kind])}"
            )
        rates[kind] = _rates(kind, fitted[kind])
    return SearchFit(
        SearchCoefficients(
            machine=machine,
            date=date,
            software=software,
            **rates,
            core_exponent=_core_exponent(searches),
            errors={kind: median(errors(rates[kind], held_out[kind])) for kind in KINDS},
        ),
        {kind: len(rows) for kind, rows in fitted.items()},
        {kind: median(errors(rates[kind], rows)) for kind, rows in fitted.items()},
        {kind: len(rows) for kind, rows in held_out.items()},
    )


def errors(rates: Rates, searches: Sequence[TimedSearch]) -> list[float]:
    """Return the relative errors of the seconds that rates say for searches on one thread."""
    found = []
    for search in searches:
        each = rates.query_seconds(index_of(search), search.num_results)
        seconds = rates.batches + search.batch_size * each
        found.append(abs(seconds / search.seconds - 1))
    return found


def _rates(kind: str, searches: Sequence[TimedSearch]) -> Rates:
    from scipy.optimize import nnls

    shape = replace(Rates(), **_shape(kind, searches))
    names = _FITTED[kind]
    rows = np.array([_amounts(shape, search, names) for search in searches])
    seconds = np.array([search.seconds for search in searches])
    relative = rows / seconds[:, None]
    scale = relative.max(axis=0)
    solution, _ = nnls(relative / scale, np.ones(len(seconds)))
    return replace(shape, **dict(zip(names, (solution / scale).tolist(), strict=True)))


def _shape(kind: str, searches: Sequence[TimedSearch]) -> dict[str, float]:
    """Return the shape parameters of a kind of index, estimated from counted distances."""
    if kind == "ivf_pq":
        ratios = [
            search.num_distances * search.num_lists / (search.num_vectors * search.num_probes)
            for search in searches
        ]
        return {"list_imbalance": max(1.0, float(np.median(ratios)))}
    if kind == "hnsw":
        return _graph_shape(searches)
    return {}


def _graph_shape(searches: Sequence[TimedSearch]) -> dict[str, float]:
    """Return the power law of the distances in a graph's lowest layer: least squares of logs."""
    rows, around = [], []
    for search in searches:
        index = index_of(search)
        down = index.num_descended if isinstance(index, HnswIndex) else 0.0
        around.append(max(search.num_distances - down, 0.1 * search.num_distances))
        rows.append([1.0, math.log(search.ef_search), math.log(2 * search.num_links)])
    (first, effort, links), *_ = np.linalg.lstsq(np.array(rows), np.log(around))
    return {
        "link_distances": math.exp(first),
        "ef_exponent": max(0.0, float(effort)),
        "link_exponent": max(0.0, float(links)),
    }


def _amounts(shape: Rates, search: TimedSearch, names: Sequence[str]) -> list[float]:
    """Return the operations of a call by name."""
    work = index_of(search).work(shape.shape)
    each = dict(zip(QueryWork._fields, work, strict=True))
    each["results"] = search.num_results
    return [1.0 if name == "batches" else search.batch_size * float(each[name]) for name in names]


def _core_exponent(searches: Sequence[TimedSearch]) -> float:
    """Return the exponent of the cores from searches on one thread and on two; 1 without pairs."""
    ours = [item.name for item in fields(TimedSearch)]
    ours = [name for name in ours if name not in ("num_threads", "seconds", "num_distances")]
    by_search: dict[tuple[object, ...], dict[int, float]] = {}
    for search in searches:
        key = tuple(getattr(search, name) for name in ours)
        by_search.setdefault(key, {})[search.num_threads] = search.seconds
    pairs = [times for times in by_search.values() if {1, 2} <= times.keys()]
    if not pairs:
        return 1.0
    speed = median(times[1] / times[2] for times in pairs)
    return min(1.0, max(math.log2(speed), 0.1))


def coefficients_text(fit: SearchFit) -> str:
    """Return the text of the file, without zeros and defaults."""
    found = fit.coefficients
    lines = [
        "# Seconds of the operations of a search on one core; fitted by mist calibrate rag.",
        f"machine = {toml_string(found.machine)}",
        f"date = {toml_string(found.date)}",
        f"software = {toml_string(found.software)}",
        f"core_exponent = {found.core_exponent:.4g}",
        "",
        "# Median errors on indexes that the fit did not see.",
        "[errors]",
        *(f"{kind} = {found.errors[kind]:.4g}" for kind in KINDS),
    ]
    for kind in KINDS:
        rates: Rates = getattr(found, kind)
        said = {item.name: getattr(rates, item.name) for item in fields(rates)}
        default = {item.name: item.default for item in fields(rates)}
        lines += ["", f"[{kind}]"]
        lines += [f"{key} = {value:.4g}" for key, value in said.items() if value != default[key]]
    return "\n".join(lines) + "\n"
