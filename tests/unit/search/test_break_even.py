"""The price at which two scenarios cost the same per token: by hand, and against a run at it."""

from math import nan

import pytest

from mist_sim import Scenario
from mist_sim.search.compared_case import Priced, break_even
from mist_sim.search.comparison import compare
from tests.reference.scenarios import of_profile

DATA = {
    "model": "llama-3.1-8b",
    "workload": of_profile(60, "5 /s"),
    "clients": [{"name": "llm", "gpu": "h100-sxm", "gpu_price": "4 $/h"}],
    "slo": {"ttft": "2 s", "tpot": "100 ms"},
    "cost": {},
}


def priced(name, cost, electricity, price, gpus=()):
    return Priced(name, cost, electricity, frozenset(gpus or (name,)), price)


def test_by_hand():
    """Of 0.5 $ a tenth is electricity: 0.45 of rent at 3 $/h must fall to 0.15."""
    cases = [priced("a", 0.2, 0.0, 2.0), priced("b", 0.5, 0.1, 3.0), priced("c", 9.0, 0.1, 3.0)]
    most, line, by_electricity = break_even(cases, "here")
    assert most == "a stays cheaper a token than b up to 5 $ a GPU-hour (now 2), here"
    assert line == "b costs as much a token as a at 1 $ a GPU-hour (now 3), here"
    assert by_electricity == "c costs more than a even at no rent, by its electricity, here"
    alike = priced("d", 0.5, 0.0, 2.0, gpus=("a",))
    assert break_even([cases[0], alike], "here") == [], "another layout of the same GPUs"
    assert break_even([priced("a", 0.2, 0.0, 2.0), priced("b", nan, 0.0, 3.0)], "") == []
    assert break_even([priced("a", 0.2, 0.0, 2.0), priced("b", 0.2, 0.0, 3.0)], "") == []


@pytest.mark.parametrize("electricity", ["0 $/kWh", "0.3 $/kWh"])
def test_at_that_price_both_cost_the_same(electricity):
    one = Scenario.from_dict(DATA, {"cost.electricity": electricity})
    other = one.changed({"clients.0.gpu": "l40s", "clients.0.gpu_price": "1 $/h"})
    found = compare({"h100": one, "l40s": other}, jobs=1)
    _, line = found.summary["break_even"]
    assert line.startswith("h100 costs as much a token as l40s at ")
    price = float(line.split(" at ")[1].split()[0])
    assert price < 4.0
    assert line.endswith(", both at this rate")
    at = compare(
        {"h100": one.changed({"clients.0.gpu_price": f"{price} $/h"}), "l40s": other}, jobs=1
    )
    costs = at.table["cost_per_million_output_tokens_usd"]
    assert costs["h100"] == pytest.approx(costs["l40s"], rel=6e-3)  # three digits are printed


def test_without_prices_there_is_none():
    free = {key: value for key, value in DATA.items() if key != "cost"}
    cases = {
        name: Scenario.from_dict(
            free, {"clients": [{"name": "llm", "gpu": "l40s", "count": count}]}
        )
        for name, count in (("one", 1), ("two", 2))
    }
    assert "break_even" not in compare(cases, jobs=1).summary
