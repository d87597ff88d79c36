"""The GPUs of a graph that clients have: where they say, or packed in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.network.base import Tenant

if TYPE_CHECKING:
    from networkx import DiGraph


def find_places(
    graph: DiGraph[str], tenants: Sequence[Tenant], *, spans_nodes: bool = False
) -> list[list[str]]:
    """Return the GPUs of every client, in their order.

    Clients that name a place come first. The others, in order, get the first free GPUs of the
    first node that has enough. spans_nodes: whether a client may have GPUs of several nodes.
    Raises ScenarioError for a place that is not there or taken, and where there is no room.
    """
    rooms = _Rooms(graph, spans_nodes)
    gpus_of: dict[int, list[str]] = {}
    for k, tenant in sorted(enumerate(tenants), key=lambda item: item[1].place is None):
        gpus_of[k] = rooms.admit(tenant)
    return [gpus_of[k] for k in range(len(tenants))]


class _Rooms:
    """The GPUs of a graph, node by node, with their owners."""

    def __init__(self, graph: DiGraph[str], spans_nodes: bool) -> None:
        self._name = graph.name
        self._spans_nodes = spans_nodes
        self._nodes: dict[str, list[str]] = {}
        for place, kind in graph.nodes(data="kind"):
            if kind == "gpu":
                self._nodes.setdefault(place.rpartition("/")[0], []).append(place)
        self._taken: dict[str, str] = {}

    def admit(self, tenant: Tenant) -> list[str]:
        """Give a client its GPUs, and return them."""
        largest = max(map(len, self._nodes.values()))
        if tenant.num_gpus > largest and not self._spans_nodes:
            raise ScenarioError(
                f"{tenant.title}: needs {tenant.num_gpus} GPUs and a node of {self._name} has "
                f"{largest}; network.spans_nodes: true lets a client have GPUs of several nodes"
            )
        gpus = self._at(tenant, tenant.place) if tenant.place else self._packed(tenant)
        self._taken.update(dict.fromkeys(gpus, tenant.title))
        return gpus

    def _packed(self, tenant: Tenant) -> list[str]:
        free = {node: self._free(gpus) for node, gpus in self._nodes.items()}
        for gpus in free.values():
            if len(gpus) >= tenant.num_gpus:
                return gpus[: tenant.num_gpus]
        everywhere = [gpu for gpus in free.values() for gpu in gpus]
        if self._spans_nodes and len(everywhere) >= tenant.num_gpus:
            return everywhere[: tenant.num_gpus]
        raise ScenarioError(
            f"{tenant.title}: needs {tenant.num_gpus} GPUs, and no node of {self._name} has as "
            f"many left ({len(everywhere)} in all); set network.nodes, or `place`"
        )

    def _at(self, tenant: Tenant, place: str) -> list[str]:
        """Return the GPUs from a place on: a node's first free ones, or those from a GPU on."""
        names = list(self._nodes)
        node, _, gpu = place.partition("/")
        if node not in self._nodes or (gpu and place not in self._nodes[node]):
            known = [*self._nodes, *(gpu for gpus in self._nodes.values() for gpu in gpus)]
            raise ScenarioError(
                f"{tenant.title}: {self._name} has no place {brief(place)}"
                f"{did_you_mean(place, known)} Nodes: {names[0]} to {names[-1]}, "
                f"GPUs: such as {known[-1]}"
            )
        own = self._nodes[node]
        later = [gpu for name in names[names.index(node) + 1 :] for gpu in self._nodes[name]]
        row = own[own.index(place) :] if gpu else self._free(own)
        if self._spans_nodes:
            row = row + (later if gpu else self._free(later))
        if len(row) < tenant.num_gpus:
            raise ScenarioError(
                f"{tenant.title}: place {place} must have {tenant.num_gpus} GPUs"
                f"{' from there on' if gpu else ' left'}, got {len(row)}"
            )
        gpus = row[: tenant.num_gpus]
        for one in gpus:
            if one in self._taken:
                raise ScenarioError(
                    f"{tenant.title}: place {place} must not be taken, and {self._taken[one]} "
                    f"has {one}"
                )
        return gpus

    def _free(self, gpus: Iterable[str]) -> list[str]:
        return [gpu for gpu in gpus if gpu not in self._taken]
