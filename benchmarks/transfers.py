"""What it costs that a transfer begins or ends among thousands, in T."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.unit import bare_timeout_s
from mist_sim.network import load_topology
from mist_sim.network.flows import Flows, Path
from mist_sim.network.ways import Routes
from mist_sim.rng import Streams

_CHANGES = 40
_CASES = ((1, 1, 20), (20, 20, 20), (10_000, 100, 100), (10_000, 10_000, 1000))


def cost_of_a_change(topology: str, num_flows: int, num_paths: int) -> float:
    """Return the CPU time of one start or end, in T, with so many flows in flight.

    One of them ends, and another begins, at 40 instants each.
    """
    rng = Streams(1).generator("transfers")
    graph = load_topology(topology).graph()
    routes = Routes(graph)
    gpus = [place for place, kind in graph.nodes(data="kind") if kind == "gpu"]
    paths: set[Path] = set()
    while len(paths) < num_paths + (_CHANGES if num_paths == num_flows else 0):
        one, other = rng.choice(len(gpus), 2, replace=False)
        paths.add(routes.between(gpus[one], gpus[other]).path)
    links = sorted(graph.edges.values(), key=lambda link: link["number"])
    return _measured([link["bandwidth"] for link in links], sorted(paths), num_flows)


def _measured(capacities: Sequence[float], paths: Sequence[Path], num_flows: int) -> float:
    rng = Streams(2).generator("transfers")
    order = rng.permutation(len(paths))
    flows: Flows[int] = Flows(capacities)
    for number in range(num_flows):
        flows.begin(paths[order[number % len(paths)]], float(rng.uniform(1e6, 1e9)), number)
    now, spent = flows.settle(0.0), 0.0
    for number in range(num_flows, num_flows + _CHANGES):
        start = time.process_time()
        assert flows.ended(now)
        end = flows.settle(now)
        now = float(np.nextafter(now, end))
        flows.begin(paths[order[number % len(paths)]], 1e8, number)
        now = flows.settle(now)
        spent += time.process_time() - start
    return spent / (2 * _CHANGES) / bare_timeout_s()


def transfers() -> Iterator[tuple[str, str, str]]:
    """Yield what was measured, its budget, and the cost of a start or an end."""
    for topology in ("racks-h100", "pod-h100"):
        for num_flows, num_paths, budget in _CASES:
            cost = cost_of_a_change(topology, num_flows, num_paths)
            what = f"{num_flows:,} transfers on {num_paths:,} paths of {topology}"
            yield what, f"a start or an end <= {budget:,} T", f"{cost:,.0f} T"
