"""Indexes of vectors: their kinds, their memory, and the work of a query.

A query's work is counted in operations whose seconds were measured one kind at a time
(`coefficients.py`), or follow from a GPU's peaks (`processors.py`). Memory is that of the index as
faiss keeps it: https://github.com/facebookresearch/faiss/wiki/Faiss-indexes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, NamedTuple, Protocol, runtime_checkable

from mist_sim.checks import Checked, Positive, Range, check_fields
from mist_sim.registry import Registry
from mist_sim.units import Bytes

INDEXES = Registry("vector_index")
"""Kinds of indexes of vectors (see `VectorIndex`)."""

_FLOAT, _ID, _LINK = 4, 8, 4  # bytes: of a value, of a vector's id, of a link in a graph
_CODES = 256  # values of a byte, the centroids of each part of a product quantizer
_TABLES = 2 * 2**30  # faiss's `precomputed_table_max_bytes`


class QueryWork(NamedTuple):
    """The work of one query on an index.

    queries: always 1. scanned_values: values of whole vectors compared one after the other.
    vectors: number of these. table_entries: entries of lookup tables, summed over lists.
    lists: lists scanned. codes, code_bytes: compressed vectors compared, and their bytes.
    distances, distance_values: comparisons with whole vectors anywhere in memory, and their values.
    expansions: expanded vertices of a graph.
    """

    queries: float = 1.0
    scanned_values: float = 0.0
    vectors: float = 0.0
    lists: float = 0.0
    table_entries: float = 0.0
    codes: float = 0.0
    code_bytes: float = 0.0
    distances: float = 0.0
    distance_values: float = 0.0
    expansions: float = 0.0


class SearchShape(NamedTuple):
    """How searches depend on the vectors, beside the parameters of an index.

    list_imbalance: vectors in the lists that are probed over the mean of all lists.
    distances, ef_exponent, link_exponent: a graph of M links computes about
        distances x efSearch^ef_exponent x (2 M)^link_exponent distances in its lowest layer. All 1:
        no two vertices share a neighbour.
    """

    list_imbalance: float = 1.0
    distances: float = 1.0
    ef_exponent: float = 1.0
    link_exponent: float = 1.0


PLAIN = SearchShape()


@runtime_checkable
class VectorIndex(Protocol):
    """An index of vectors, which a query searches for its neighbours."""

    @property
    def num_bytes(self) -> float:
        """Memory that it takes."""

    def memory_traffic(self, shape: SearchShape = PLAIN) -> float:
        """Return the bytes that a query reads of it, without caches."""

    def work(self, shape: SearchShape = PLAIN) -> QueryWork:
        """Return a query's work. shape: quantities that its parameters do not determine."""


@INDEXES.register("flat")
@dataclass(frozen=True, slots=True, kw_only=True)
class FlatIndex(Checked):
    """All vectors, compared one after the other: exact (faiss `IndexFlat`).

    num_vectors: in the index (>= 1).
    dimensions: 32-bit values of a vector (>= 1).
    """

    num_vectors: Positive[int]
    dimensions: Positive[int]

    @property
    def num_bytes(self) -> Bytes:
        """Memory of the vectors."""
        return float(_FLOAT * self.num_vectors * self.dimensions)

    def memory_traffic(self, shape: SearchShape = PLAIN) -> Bytes:
        """Return the bytes of all of them."""
        return self.num_bytes

    def work(self, shape: SearchShape = PLAIN) -> QueryWork:
        """Return a query's work."""
        values = float(self.num_vectors * self.dimensions)
        return QueryWork(scanned_values=values, vectors=self.num_vectors)


@INDEXES.register("ivf_pq")
@dataclass(frozen=True, slots=True, kw_only=True)
class IvfPqIndex:
    """Lists of compressed vectors, of which the nearest are scanned (faiss `IndexIVFPQ`).

    num_vectors: in the index (>= 1).
    dimensions: 32-bit values of a vector, before it is compressed (>= 1).
    num_lists: around centroids of a k-means (nlist; >= 1, at most the vectors).
    num_probes: lists that a query scans (nprobe; from 1 to num_lists).
    pq_bytes: of a compressed vector, one for each part of it (M; divides the dimensions).
    quantizer_ef_search: the nearest centroids are found in a graph of 32 links with this efSearch,
        as in indexes of a million lists; None: all centroids are compared.
    Source: Jégou, Douze and Schmid, "Product quantization for nearest neighbor search", 2011.
    """

    num_vectors: Positive[int]
    dimensions: Positive[int]
    num_lists: Positive[int]
    num_probes: Positive[int]
    pq_bytes: Positive[int]
    quantizer_ef_search: Positive[int] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.num_lists > self.num_vectors:
            raise ValueError(
                f"num_lists must be <= {self.num_vectors}, the vectors, got {self.num_lists}"
            )
        if self.num_probes > self.num_lists:
            raise ValueError(
                f"num_probes must be <= {self.num_lists}, the lists, got {self.num_probes}"
            )
        if self.dimensions % self.pq_bytes:
            raise ValueError(
                f"pq_bytes must divide the {self.dimensions} dimensions, got {self.pq_bytes}"
            )

    @property
    def centroids(self) -> HnswIndex | None:
        """The graph of the centroids; None where all are compared."""
        if self.quantizer_ef_search is None:
            return None
        return HnswIndex(
            num_vectors=self.num_lists,
            dimensions=self.dimensions,
            ef_search=self.quantizer_ef_search,
        )

    @property
    def num_bytes(self) -> Bytes:
        """Codes, ids, centroids, and the tables that faiss computes ahead up to 2 GiB of them."""
        codes = self.num_vectors * (self.pq_bytes + _ID)
        centroids = _FLOAT * self.dimensions * (self.num_lists + _CODES)
        tables = _FLOAT * self.num_lists * self.pq_bytes * _CODES
        graph = self.centroids
        links = graph.num_bytes - _FLOAT * self.dimensions * self.num_lists if graph else 0.0
        return codes + centroids + links + (tables if tables <= _TABLES else 0)

    def memory_traffic(self, shape: SearchShape = PLAIN) -> Bytes:
        """Return the bytes of centroids, and of the codes of the lists that are scanned."""
        scanned = self.work(shape).codes * (self.pq_bytes + _ID)
        graph = self.centroids
        whole = _FLOAT * self.num_lists * self.dimensions
        return scanned + (graph.memory_traffic(shape) if graph else whole)

    def work(self, shape: SearchShape = PLAIN) -> QueryWork:
        """Return a query's work: centroids, then a table and the codes of each list.

        Large lists attract more queries than small ones; the lists together hold all vectors. A
        graph of the centroids has its own work.
        """
        share = self.num_probes / self.num_lists
        codes = self.num_vectors * min(1.0, share * shape.list_imbalance)
        compared = self.num_lists if self.quantizer_ef_search is None else 0
        return QueryWork(
            scanned_values=float(compared * self.dimensions),
            vectors=compared,
            lists=self.num_probes,
            table_entries=float(self.num_probes * self.pq_bytes * _CODES),
            codes=codes,
            code_bytes=codes * self.pq_bytes,
        )


@INDEXES.register("hnsw")
@dataclass(frozen=True, slots=True, kw_only=True)
class HnswIndex(Checked):
    """A graph of whole vectors, walked towards the query (faiss `IndexHNSWFlat`).

    num_vectors: in the index (>= 1).
    dimensions: 32-bit values of a vector (>= 1).
    num_links: of a vertex (M; >= 2), twice as many in the lowest layer.
    ef_search: nearest vertices that a query keeps to expand (efSearch; >= 1).
    Source: Malkov and Yashunin, "Efficient and robust approximate nearest neighbor search using
    Hierarchical Navigable Small World graphs", 2018.
    """

    num_vectors: Positive[int]
    dimensions: Positive[int]
    num_links: Annotated[int, Range("[2, inf)")] = 32
    ef_search: Positive[int] = 16

    @property
    def num_bytes(self) -> Bytes:
        """Vectors and links; one vertex in M is in each layer above another."""
        upper = self.num_links / (self.num_links - 1)
        links = _LINK * (2 * self.num_links + upper)
        return self.num_vectors * (_FLOAT * self.dimensions + links + _LINK + _ID)

    @property
    def num_descended(self) -> float:
        """Distances on the way down: the links of a vertex in each layer."""
        return self.num_links * math.log(self.num_vectors) / math.log(self.num_links)

    def memory_traffic(self, shape: SearchShape = PLAIN) -> Bytes:
        """Return the bytes of vectors and links that a query meets."""
        work = self.work(shape)
        return _FLOAT * work.distance_values + 2 * _LINK * self.num_links * work.expansions

    def work(self, shape: SearchShape = PLAIN) -> QueryWork:
        """Return a query's work: a descent through the layers, then the expansions."""
        around = shape.distances * self.ef_search**shape.ef_exponent
        around *= (2 * self.num_links) ** shape.link_exponent
        distances = min(float(self.num_vectors), around + self.num_descended)
        return QueryWork(
            distances=distances,
            distance_values=distances * self.dimensions,
            expansions=self.ef_search,
        )
