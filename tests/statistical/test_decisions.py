"""Three comparisons that a short run decides wrongly, held against long runs.

Each was found in earlier versions, which judged a workload as it stood: stars by dollars in the
reverse order of dollars at goodput; a star from 400 requests, less than three seconds of traffic,
on the worst of three designs; goodputs that fell as the workload grew.
"""

from itertools import pairwise
from typing import Any

import pytest

from benchmarks.long_runs import LongRuns
from mist_sim.scenario import Scenario
from mist_sim.search import GoodputOptions, compare, find_goodputs
from tests.reference.scenarios import of_profile

pytestmark = pytest.mark.deep

CHATS: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "workload": of_profile(400, "2 /s", name="azure-conv-2023"),
    "slo": {"ttft": "1 s", "tpot": "40 ms"},
}


def on(clients: list[dict[str, Any]], **more: Any) -> Scenario:
    return Scenario.from_dict(CHATS | {"clients": clients, "cost": {}} | more)


def test_dollars_are_starred_at_goodput():
    """At 2 requests a second the cheapest GPU idles least; at what they serve, a large one wins."""
    gpus = ("l40s", "a100-80gb-sxm", "h100-sxm")
    scenarios = {gpu: on([{"name": "llm", "gpu": gpu}]) for gpu in gpus}
    found = compare(scenarios, goodput=GoodputOptions())
    cost = "cost_per_million_output_tokens"
    star = found.best[f"{cost}_at_goodput_usd"]
    assert len(star) == 1
    price = {}
    for name, scenario in scenarios.items():
        rate = found.table["goodput"][name]
        hour = found.table[f"{cost}_at_goodput_usd"][name] * rate
        price[name] = hour / LongRuns().goodput(scenario, rate)[0]
    assert star == [min(price, key=price.__getitem__)]
    assert found.best[f"{cost}_usd"] != star


def test_a_light_load_gives_worst_design_no_star():
    """Three engines for prompts and one for answers, at a rate that its queue has not felt yet."""

    def apart(prompts: int, answers: int) -> Scenario:
        roles = {"prefill": prompts, "decode": answers}
        parts = [
            {"name": role, "gpu": "h100-sxm", "role": role, "count": count}
            for role, count in roles.items()
        ]
        return on(parts, network={"bandwidth": "50 GB/s", "latency": "10 us"}, slo=limits)

    limits = {"ttft": "300 ms", "tpot": "30 ms"}
    scenarios = {f"{count}:{4 - count}": apart(count, 4 - count) for count in (1, 2, 3)}
    found = compare(scenarios, goodput=GoodputOptions())
    rates = found.table["goodput"]
    for name in found.best["goodput"]:
        bar = 1.03 * LongRuns().goodput(scenarios[name], rates[name])[0]
        others = {other: each for other, each in scenarios.items() if other != name}
        assert LongRuns().attaining(others, bar) == []
    assert found.best["goodput"] != [min(rates.index, key=rates.__getitem__)]


def test_a_goodput_does_not_fall_as_workload_grows():
    sizes = (400, 1_000, 2_000, 6_000)
    scenarios = [
        Scenario.from_dict(
            CHATS | {"clients": [{"name": "llm", "gpu": "h100-sxm", "count": 2}]},
            {"workload.lengths.num_requests": size},
        )
        for size in sizes
    ]
    found = find_goodputs(scenarios)
    for one, other in pairwise(found):
        assert one.interval[0] <= other.interval[1]
        assert other.interval[0] <= one.interval[1]
    rates = [each.rate for each in found]
    assert max(rates) / min(rates) < 1.05
