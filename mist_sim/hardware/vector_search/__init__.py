"""Approximate nearest-neighbour search: indexes, their memory, and how long searches take."""

from mist_sim.hardware.vector_search.coefficients import (
    SearchCoefficients,
    coefficient_names,
    load_coefficients,
)
from mist_sim.hardware.vector_search.indexes import (
    INDEXES,
    FlatIndex,
    HnswIndex,
    IvfPqIndex,
    VectorIndex,
)
from mist_sim.hardware.vector_search.processors import (
    SEARCHERS,
    SearchCores,
    Searcher,
    SearchGpu,
)

__all__ = [
    "INDEXES",
    "SEARCHERS",
    "FlatIndex",
    "HnswIndex",
    "IvfPqIndex",
    "SearchCoefficients",
    "SearchCores",
    "SearchGpu",
    "Searcher",
    "VectorIndex",
    "coefficient_names",
    "load_coefficients",
]
