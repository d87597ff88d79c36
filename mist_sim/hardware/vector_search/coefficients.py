"""Measured seconds of a search's operations on a core, and their scaling: TOML files.

The package's coefficients were fitted to faiss searches timed with one and two threads (`mist
calibrate rag`); the file names the machine, the date and the errors on held-out indexes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from mist_sim.checks import Checked, NotNegative, Share
from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.hardware.vector_search.indexes import (
    IvfPqIndex,
    QueryWork,
    SearchShape,
    VectorIndex,
)
from mist_sim.spec_files import load_toml, name_of, read_table, tables_in
from mist_sim.user_paths import user_path

DEFAULT = "faiss-1.15-epyc-9005"
"""The coefficients that hold where none are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates(Checked):
    """Seconds of the operations of a search in one kind of index (all >= 0).

    batches: per call. results: per neighbour that a query requests. The others are per unit of the
        `QueryWork` field of the same name.
    list_imbalance, link_distances, ef_exponent, link_exponent: see `SearchShape`.
    Raises ValueError for values out of range.
    """

    batches: NotNegative[float] = 0.0
    results: NotNegative[float] = 0.0
    queries: NotNegative[float] = 0.0
    scanned_values: NotNegative[float] = 0.0
    vectors: NotNegative[float] = 0.0
    lists: NotNegative[float] = 0.0
    table_entries: NotNegative[float] = 0.0
    codes: NotNegative[float] = 0.0
    code_bytes: NotNegative[float] = 0.0
    distances: NotNegative[float] = 0.0
    distance_values: NotNegative[float] = 0.0
    expansions: NotNegative[float] = 0.0
    list_imbalance: NotNegative[float] = 1.0
    link_distances: NotNegative[float] = 1.0
    ef_exponent: NotNegative[float] = 1.0
    link_exponent: NotNegative[float] = 1.0

    @property
    def shape(self) -> SearchShape:
        """How the searches that were measured depended on the vectors."""
        return SearchShape(
            self.list_imbalance, self.link_distances, self.ef_exponent, self.link_exponent
        )

    def query_seconds(self, index: VectorIndex, num_results: int) -> float:
        """Return a query's time on one core."""
        work = index.work(self.shape)
        seconds = num_results * self.results
        for name, amount in zip(QueryWork._fields, work, strict=True):
            seconds += float(getattr(self, name)) * amount
        return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchCoefficients(Checked):
    """Seconds of searches on the cores of one machine.

    machine, date, software: where and when they were measured, and with which program.
    flat, ivf_pq, hnsw: by the kind of index.
    core_exponent: c cores search c to this power times as fast as one (> 0, at most 1).
    errors: median errors on held-out indexes, by kind of index.
    """

    machine: str
    date: str
    software: str
    flat: Rates
    ivf_pq: Rates
    hnsw: Rates
    core_exponent: Share = 1.0
    errors: Mapping[str, float] = field(default_factory=dict, hash=False)

    def query_seconds(self, index: VectorIndex, num_results: int) -> float:
        """Return a query's time on one core. Raises ScenarioError as `rates` does."""
        seconds = self.rates(index).query_seconds(index, num_results)
        if isinstance(index, IvfPqIndex) and index.centroids is not None:
            seconds += self.hnsw.query_seconds(index.centroids, index.num_probes)
        return seconds

    def memory_traffic(self, index: VectorIndex) -> float:
        """Return the bytes that a query reads of an index. Raises ScenarioError as `rates` does."""
        self.rates(index)
        graph = self.hnsw.shape
        return index.memory_traffic(graph._replace(list_imbalance=self.ivf_pq.list_imbalance))

    def rates(self, index: VectorIndex) -> Rates:
        """Return the seconds of the operations in a kind of index. Raises ScenarioError."""
        kind = _KINDS.get(type(index).__name__, "")
        if not kind:
            raise ScenarioError(
                f"no seconds were measured of an index {type(index).__name__}; a latency_table "
                "takes the place of the model"
            )
        found: Rates = getattr(self, kind)
        return found


_KINDS = {"FlatIndex": "flat", "IvfPqIndex": "ivf_pq", "HnswIndex": "hnsw"}


def coefficient_names() -> list[str]:
    """Return the names of the coefficients that come with the package, sorted."""
    return sorted(_tables())


def load_coefficients(name_or_path: str) -> SearchCoefficients:
    """Return coefficients of the package by name, or those of a TOML file.

    Raises ScenarioError for an unknown name or a wrong file.
    """
    name = name_of(name_or_path, _tables())
    if name is not None:
        return _of_package(name)
    path = user_path(name_or_path)
    if path.suffix == ".toml" or path.is_file():
        return read_table(SearchCoefficients, load_toml(path), str(path))
    raise ScenarioError(
        f"no coefficients and no file are named {brief(name_or_path)}"
        f"{did_you_mean(name_or_path, _tables())} Known: {', '.join(coefficient_names())}; or give "
        "the path of a file that mist calibrate rag has written"
    )


@cache
def _tables() -> Mapping[str, Mapping[str, object]]:
    return tables_in("mist_sim.hardware.vector_search", "machines")


@cache
def _of_package(name: str) -> SearchCoefficients:
    return read_table(SearchCoefficients, _tables()[name], f"{name}.toml")
