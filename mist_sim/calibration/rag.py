"""From timed searches of faiss to the seconds of a search's operations (`mist calibrate rag`).

Indexes and searches that `mist calibrate rag --measure` times: a few minutes on one core.

Three indexes of each kind are held out whole: their sizes, dimensions and lists occur in no fitted
index, so the error on them is that of a prediction.

Fits the seconds of a search's operations to timed searches, and scores them on held-out indexes.

Each kind of index is fitted on its own, on one thread: non-negative least squares of the relative
errors. The fit uses only the parameters of the index and of the call. Pairs of searches that differ
only in their threads give the exponent of the cores.

Times real searches of faiss on this machine, one thread for the law and two for its scaling.

Vectors are drawn: mixtures of Gaussians in 16 hidden dimensions, rotated into all dimensions with a
little noise, since text embeddings fill few of their dimensions. The lists of k-means on them are
realistically uneven. Each call uses new queries. Of several rounds over the same calls the fastest
counts. Times are processor seconds, divided evenly by the threads: the time of a search on an idle
machine, so that other load matters little.
"""

from __future__ import annotations

import csv
import io
import math
import os
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mist_sim.errors import ScenarioError, brief
from mist_sim.hardware.vector_search import (
    FlatIndex,
    HnswIndex,
    IvfPqIndex,
    SearchCoefficients,
    VectorIndex,
)
from mist_sim.hardware.vector_search.coefficients import Rates
from mist_sim.hardware.vector_search.indexes import QueryWork
from mist_sim.inputs import text_of
from mist_sim.rng import Streams
from mist_sim.spec_files import toml_string


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


_EF_CONSTRUCTION = 40  # faiss's default


class _Kind(NamedTuple):
    """What is particular to a kind of index.

    form: what predicts its searches. fitted: its operations whose seconds are fitted; the others do
    not occur in it, or grow with a fitted one. effort: of a search, and its values to time.
    columns, grid: the indexes to time, a row each; the last value tells which are held out.
    """

    form: type[FlatIndex | IvfPqIndex | HnswIndex]
    fitted: tuple[str, ...]
    effort: str
    efforts: tuple[int, ...]
    columns: tuple[str, ...]
    grid: tuple[tuple[int, ...], ...]


_KINDS = {
    "ivf_pq": _Kind(
        form=IvfPqIndex,
        fitted=(
            *("batches", "results", "queries", "scanned_values", "vectors", "lists"),
            *("table_entries", "codes", "code_bytes"),
        ),
        effort="num_probes",
        efforts=(1, 4, 16, 64),
        columns=("num_vectors", "dimensions", "num_lists", "pq_bytes", "is_held_out"),
        grid=(
            (100_000, 128, 256, 16, False),
            (200_000, 64, 1024, 8, False),
            (250_000, 96, 512, 24, True),
            (50_000, 384, 256, 48, False),
            (300_000, 64, 256, 32, False),
            (60_000, 384, 128, 32, True),
            (30_000, 768, 128, 64, False),
            (400_000, 64, 512, 8, False),
            (400_000, 96, 1024, 16, True),
        ),
    ),
    "hnsw": _Kind(
        form=HnswIndex,
        fitted=("batches", "results", "queries", "distances", "distance_values", "expansions"),
        effort="ef_search",
        efforts=(16, 64, 200),
        columns=("num_vectors", "dimensions", "num_links", "ef_construction", "is_held_out"),
        grid=(
            (20_000, 64, 16, _EF_CONSTRUCTION, False),
            (30_000, 128, 32, _EF_CONSTRUCTION, False),
            (30_000, 128, 16, _EF_CONSTRUCTION, True),
            (60_000, 64, 32, _EF_CONSTRUCTION, False),
            (20_000, 384, 16, _EF_CONSTRUCTION, False),
            (30_000, 96, 32, _EF_CONSTRUCTION, True),
            (10_000, 768, 32, _EF_CONSTRUCTION, False),
            (20_000, 384, 32, _EF_CONSTRUCTION, True),
        ),
    ),
    "flat": _Kind(
        form=FlatIndex,
        fitted=("batches", "results", "queries", "scanned_values", "vectors"),
        effort="",
        efforts=(),
        columns=("num_vectors", "dimensions", "is_held_out"),
        grid=(
            (100_000, 64, False),
            (50_000, 384, False),
            (100_000, 128, True),
            (400_000, 64, False),
            (20_000, 768, False),
            (30_000, 384, True),
            (150_000, 96, False),
            (800_000, 64, True),
        ),
    ),
}
KINDS = ("flat", "ivf_pq", "hnsw")


def indexes() -> Iterator[TimedSearch]:
    """Yield the indexes to build, without a search."""
    for name, kind in _KINDS.items():
        for row in kind.grid:
            values: dict[str, Any] = dict(zip(kind.columns, row, strict=True))
            yield TimedSearch(index=name, **values)


def searches(index: TimedSearch) -> Iterator[TimedSearch]:
    """Yield the searches of an index: by effort, batch, results and threads."""
    for effort in _efforts(index):
        for batch_size in (1, 4, 16, 64):
            yield replace(effort, batch_size=batch_size)
        yield replace(effort, batch_size=16, num_results=100)
        yield replace(effort, batch_size=16, num_threads=2)


def _efforts(index: TimedSearch) -> list[TimedSearch]:
    kind = _KINDS[index.index]
    found = [dict[str, Any]([(kind.effort, effort)]) for effort in kind.efforts]
    return [replace(index, **each) for each in found] or [index]


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
    if search.index not in _KINDS:
        raise ScenarioError(f"index must be one of {', '.join(KINDS)}, got {search.index!r}")
    form = _KINDS[search.index].form
    values: dict[str, Any] = {item.name: getattr(search, item.name, None) for item in fields(form)}
    found: VectorIndex = form(**values)
    return found


def fit_searches(
    searches: Sequence[TimedSearch], software: str, machine: str, date: str
) -> SearchFit:
    """Return the coefficients of timed searches. software, machine, date: what, where and when.

    Raises ScenarioError if a kind of index has too few searches, fitted or held out.
    """
    alone = [search for search in searches if search.num_threads == 1]
    rates, fitted, held_out = {}, {}, {}
    for kind in KINDS:
        of_kind, needed = [each for each in alone if each.index == kind], len(_KINDS[kind].fitted)
        fitted[kind] = [search for search in of_kind if not search.is_held_out]
        held_out[kind] = [search for search in of_kind if search.is_held_out]
        if len(fitted[kind]) < needed or not held_out[kind]:
            raise ScenarioError(
                f"searches must have {needed} rows of {kind} to fit on one thread, and "
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
    names = _KINDS[kind].fitted
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


Vectors = NDArray[np.float32]

_HIDDEN, _CENTRES, _NOISE = 16, 500, 0.1
_QUERIES = 512
_TRAINED_ON = 20_000
_ROUNDS = 3
_ROUND_SECONDS = 0.05


def measure(tell: Callable[[str], None]) -> Iterator[TimedSearch]:
    """Yield the searches of the grid with their seconds. tell: called with each next item.

    Raises ScenarioError if faiss is not installed.
    """
    faiss = _faiss()
    for index in indexes():
        tell(f"{index.index}: {index.num_vectors:,} vectors of {index.dimensions} dimensions")
        yield from _of_index(faiss, index)


def _faiss() -> Any:
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # idle threads leave the cores to others
    try:
        import faiss
    except ImportError:
        raise ScenarioError(
            "--measure needs faiss, which is not installed: pip install 'mist-sim[rag]'"
        ) from None
    return faiss


def _of_index(faiss: Any, index: TimedSearch) -> Iterator[TimedSearch]:
    vectors, queries = _vectors(index)
    faiss.omp_set_num_threads(1)
    built = _built(faiss, index, vectors)
    index = replace(index, index_bytes=int(faiss.serialize_index(built).nbytes))
    for search in searches(index):
        faiss.omp_set_num_threads(search.num_threads)
        _set_effort(built, search)
        yield _timed(faiss, built, search, queries)


def _vectors(index: TimedSearch) -> tuple[Vectors, Vectors]:
    """Return the vectors of an index, and queries like them."""
    rng = Streams(index.num_vectors).generator(f"vectors: {index.dimensions}")
    centres = rng.standard_normal((_CENTRES, _HIDDEN), dtype=np.float32)
    turn = rng.standard_normal((_HIDDEN, index.dimensions), dtype=np.float32) / _HIDDEN**0.5

    def draw(number: int) -> Vectors:
        hidden = 0.5 * rng.standard_normal((number, _HIDDEN), dtype=np.float32)
        hidden += centres[rng.integers(_CENTRES, size=number)]
        noise = rng.standard_normal((number, index.dimensions), dtype=np.float32)
        return np.ascontiguousarray(hidden @ turn + _NOISE * noise, dtype=np.float32)

    return draw(index.num_vectors), draw(_QUERIES)


def _built(faiss: Any, index: TimedSearch, vectors: Vectors) -> Any:
    if index.index == "flat":
        built = faiss.IndexFlatL2(index.dimensions)
    elif index.index == "hnsw":
        built = faiss.IndexHNSWFlat(index.dimensions, index.num_links)
        built.hnsw.efConstruction = index.ef_construction
    else:
        built = faiss.index_factory(index.dimensions, f"IVF{index.num_lists},PQ{index.pq_bytes}")
        built.cp.niter = 4
        built.pq.cp.niter = 4
        built.train(vectors[:_TRAINED_ON])
    built.add(vectors)
    return built


def _set_effort(built: Any, search: TimedSearch) -> None:
    if search.index == "ivf_pq":
        built.nprobe = search.num_probes
    if search.index == "hnsw":
        built.hnsw.efSearch = search.ef_search


def _timed(faiss: Any, built: Any, search: TimedSearch, queries: Vectors) -> TimedSearch:
    """Return a search with its seconds and its distances."""
    size, k = search.batch_size, search.num_results
    batches = [queries[start : start + size] for start in range(0, _QUERIES, size)]
    first = _seconds(built, batches[:1], search)
    _reset(faiss)
    counted = np.concatenate(batches[: max(1, int(_ROUND_SECONDS / first))])
    built.search(counted, k)
    distances = _distances(faiss, search, len(counted)) / len(counted)
    calls = batches[: max(1, min(len(batches), int(_ROUND_SECONDS / first)))]
    seconds = min(_seconds(built, calls, search) for _ in range(_ROUNDS)) / len(calls)
    return replace(search, seconds=seconds, num_distances=distances)


def _seconds(built: Any, batches: Sequence[Vectors], search: TimedSearch) -> float:
    begin = time.process_time()
    for batch in batches:
        built.search(batch, search.num_results)
    return (time.process_time() - begin) / search.num_threads


def _reset(faiss: Any) -> None:
    faiss.cvar.indexIVF_stats.reset()
    faiss.cvar.hnsw_stats.reset()


def _distances(faiss: Any, search: TimedSearch, num_queries: int) -> float:
    if search.index == "ivf_pq":
        return float(faiss.cvar.indexIVF_stats.ndis)
    if search.index == "hnsw":
        return float(faiss.cvar.hnsw_stats.ndis)
    return float(search.num_vectors * num_queries)


def machine_name() -> str:
    """Return the processor's name, and its number of cores."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text("utf-8").splitlines() if cpuinfo.is_file() else []
    said: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        said.setdefault(key.strip(), value.strip())
    name = said.get("model name") or platform.processor() or platform.machine()
    family = f", family {said['cpu family']}, model {said['model']}" if "cpu family" in said else ""
    cores = sum(line.startswith("processor") for line in lines)
    return f"{name}{family}" + (f", {cores} cores" if cores else "")


def faiss_version() -> str:
    """Return the version of faiss that is timed."""
    return str(_faiss().__version__)


_NOTES = ("software", "machine", "date")


def notes_of(software: str, machine: str, date: str) -> list[str]:
    """Return the comment lines of a CSV of searches."""
    plain = (re.sub(r'["\\\n]', " ", text) for text in (software, machine, date))
    return [f"{name}: {text}" for name, text in zip(_NOTES, plain, strict=True)]


def calibrate_rag(path: Path) -> SearchFit:
    """Return the coefficients of the searches in a CSV, whose comments name machine and date.

    Raises ScenarioError for another kind of file, or too few rows.
    """
    searches, notes = read_searches(path)
    said = dict(note.split(": ", 1) for note in notes if ": " in note)
    missing = [name for name in _NOTES if name not in said]
    if missing:
        raise ScenarioError(
            f"{path}: must begin with lines such as '# machine: AMD EPYC 9575F'; "
            f"missing: {', '.join(missing)}"
        )
    return fit_searches(searches, **{name: said[name] for name in _NOTES})
