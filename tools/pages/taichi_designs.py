"""Designs that the searches of docs/background/taichi.md compare: pure ones, and many hybrids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from taichi_runs import Limits

from mist_sim import Scenario
from mist_sim.scenario.loading import as_data
from mist_sim.search.designs import USUAL, Fleet, Side, hybrid, ratios_to_try

Designs = dict[str, Scenario]
LARGE = USUAL[1:]  # chunks of P-heavy clients
SMALL = (128, USUAL[0])  # of D-heavy ones
WATERMARKS = (0.5, 0.95)
MORE = (128, 256)  # chunks of clients that do both, where hybrids with small ones look best


def served(
    lengths: dict[str, Any],
    arrivals: dict[str, Any],
    count: int,
    *,
    ahead: bool,
    model: str = "qwen2.5-14b",
) -> Scenario:
    """Return some A100s that do both, without limits yet. ahead: whether they plan ahead."""
    client = {"name": "llm", "gpu": "a100-80gb-sxm", "count": count, "async_scheduling": ahead}
    return Scenario.from_dict(
        {
            "model": model,
            "workload": {"lengths": lengths, "arrivals": arrivals},
            "clients": [client],
            "router": "least_outstanding",
        }
    )


def pures(scenario: Scenario, chunks: Sequence[int] = USUAL) -> Designs:
    """Return clients that do both, with each chunk, and every ratio of prompts and answers."""
    fleet = Fleet(scenario)
    found = {
        f"together {chunk}": fleet.having(fleet.divided(fleet.num_clients, Side(None, chunk), _D))
        for chunk in chunks
    }
    for num_p in range(1, fleet.num_clients):
        name = f"apart {num_p}:{fleet.num_clients - num_p}"
        clients = fleet.divided(num_p, Side("prefill", USUAL[-1]), _D)
        found[name] = fleet.having(clients, network=fleet.network, hand_over=fleet.hand_over)
    return found


_D = Side("decode")


def by_length(scenario: Scenario, limits: Limits) -> Designs:
    """Return clients that do both behind the hybrids' router.

    It looks at the tokens of prompts, so that hybrids may win by their router alone.
    """
    router = {"type": "length_aware", "ttft": f"{limits[0]!r} s", "if_none": "soonest"}
    return {
        f"{name}, by length": Scenario.from_dict(as_data(each), {"router": router})
        for name, each in pures(scenario, (MORE[-1], *USUAL)).items()
        if name.startswith("together")
    }


def hybrids(scenario: Scenario, limits: Limits) -> Iterator[tuple[str, Scenario]]:
    """Yield hybrids under some limits: ratios, chunks of both sides and watermarks.

    Every ratio comes before any comes again, so that the first few are unlike one another.
    """
    ttft, tpot = limits
    slo = {"ttft": f"{ttft!r} s", "tpot": f"{tpot!r} s"}
    fleet = Fleet(Scenario.from_dict(as_data(scenario), {"slo": slo}))
    kinds = product(WATERMARKS, LARGE, reversed(SMALL))
    for (watermark, s_p, s_d), num_p in product(kinds, ratios_to_try(fleet.num_clients)):
        made = as_data(hybrid(fleet, num_p, s_p, s_d))
        name = f"hybrid {num_p} x {s_p} + {fleet.num_clients - num_p} x {s_d}, {watermark}"
        yield name, Scenario.from_dict(made, {"hand_over.policy.watermark": watermark})
