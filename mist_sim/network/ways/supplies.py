"""Ways from memory below the GPUs to the ranks of engines: KV tiers, and weights of a start."""

from __future__ import annotations

from collections.abc import Sequence

from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.network.base import Store
from mist_sim.network.fair_shares import Path
from mist_sim.network.ways.routes import Routes

OF_THE_NODE = ("host", "storage")
"""Places that each node has: an engine on several nodes reads from each its own."""


class Supplies:
    """The links over which engines read, each GPU an equal part.

    The graph's links are shared with all traffic. A store's own limit counts as one link, shared by
    the GPUs of one engine. Links are numbered after those of the graph.

    capacities: bytes/s of the graph's links; those of stores are appended.
    """

    def __init__(self, routes: Routes, capacities: list[float]) -> None:
        self._routes = routes
        self._capacities = capacities
        self._paths: dict[tuple[tuple[str, ...], Store, bool], list[Path]] = {}

    def paths(self, gpus: Sequence[str], store: Store, *, back: bool = False) -> list[Path]:
        """Return the links from a store to each GPU of an engine; `back`: from each GPU to it.

        Raises ScenarioError for a place that is not there, or without a route.
        """
        key = tuple(gpus), store, back
        if key not in self._paths:
            routes = [self._route(gpu, store.at, back=back) for gpu in gpus]
            shared = self._own_link(store.bandwidth)
            own = [self._own_link(store.gpu_bandwidth) for _ in gpus]
            parts = zip(own, routes, strict=True)
            self._paths[key] = [(*shared, *each, *route) for each, route in parts]
        return self._paths[key]

    def _route(self, gpu: str, at: str, *, back: bool) -> Path:
        place = f"{gpu.rpartition('/')[0]}/{at}" if at in OF_THE_NODE else at
        graph = self._routes.graph
        if place not in graph:
            key = {"storage": "network.storage", "remote/storage": "network.remote_storage"}.get(at)
            hint = f"; set {key}" if key else did_you_mean(at, [*OF_THE_NODE, *graph])
            raise ScenarioError(f"at must be a place of {graph.name}, got {brief(at)}{hint}")
        try:
            ends = (gpu, place) if back else (place, gpu)
            return self._routes.between(*ends).path
        except ScenarioError as error:
            raise ScenarioError(
                f"at must have a route to {gpu}, got {brief(at)}: {error}"
            ) from None

    def _own_link(self, bandwidth: float | None) -> Path:
        if bandwidth is None:
            return ()
        self._capacities.append(bandwidth)
        return (len(self._capacities) - 1,)
