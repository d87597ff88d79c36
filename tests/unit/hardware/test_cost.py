"""Dollars of a run: machines, electricity, an API; by client and by request."""

from itertools import pairwise
from math import isnan

import pytest

from mist_sim import ApiPrices, CostOptions, ScenarioError, simulate
from mist_sim.core.result_warnings import NO_PRICE
from mist_sim.explain import HandBatch, explain_batch
from mist_sim.hardware import gpu_names
from mist_sim.hardware.prices import offers, price_of
from mist_sim.scenario.build import build
from mist_sim.studies.built import Built
from tests.reference.scenarios import scenario
from tests.refusals import refused

PRICE = {"clients__0__gpu_price": "3.6 $/h"}  # 0.001 $ a second


def refusal(**overrides: object) -> str:
    with pytest.raises(ScenarioError) as caught:
        build(scenario(**overrides))
    return str(caught.value)


def test_every_offer_is_of_a_known_gpu():
    assert {offer.gpu for offer in offers()} <= set(gpu_names())
    for offer in offers():
        assert offer.date
        assert offer.source
        assert 0 < (offer.spot or 0.01) < (offer.on_demand or 1e3) < 20


def test_the_catalog_takes_the_median():
    verda, nebius, lambda_, google = 2.29, 2.95, 31.92 / 8, 11.0612
    price = price_of("h100-sxm", "on_demand")
    assert price.dollars == pytest.approx(sorted([verda, nebius, nebius, lambda_, google])[2])
    whose = "Google Cloud, Lambda, Nebius, Verda; 2025-03-06, 2025-2026"
    assert price.origin == f"on demand, median of 5 ({whose})"
    assert price_of("h100-sxm", "on_demand", "Lambda").dollars == pytest.approx(lambda_)
    assert price_of("h100-sxm", "spot", "Verda").dollars == pytest.approx(0.8015)


def test_longer_commitments_cost_less():
    """Google lists A100s for 1,689.37 $ a month of 730 h for a year, 938.57 $ for three."""
    kinds = ("on_demand", "reserved_1y", "reserved_3y")
    prices = [price_of("a100-40gb-sxm", kind, "Google Cloud") for kind in kinds]
    hours = [3.673385, 1689.3711392 / 730, 938.56707798 / 730]
    assert [price.dollars for price in prices] == pytest.approx(hours, abs=1e-4)
    assert prices[1].origin == "1-year reserved (Google Cloud; 2025-03-06)"
    gpu = {"clients__0__gpu": "a100-40gb-sxm", "cost__provider": "Google Cloud"}
    costs = [simulate(scenario(**gpu, cost__price=kind)).summary["cost_usd"] for kind in kinds]
    assert [cost / costs[0] for cost in costs] == pytest.approx([h / hours[0] for h in hours], 1e-4)


@pytest.mark.parametrize(
    ("figure", "said"),
    [
        ("", "/h, on demand"),
        ("based_on = 'l40s'\nprefill.mfu = 0.6", "/h, that of l40s, on which it is based"),
    ],
)
def test_a_measured_gpu_has_price_of_its_base(tmp_path, figure, said):
    (tmp_path / "own.toml").write_text(figure, "utf-8")
    gpu = str(tmp_path / "own.toml") if figure else "l40s"
    (origin,) = simulate(scenario(clients__0__gpu=gpu, cost={})).summary["price_origins"]
    assert said in origin


@pytest.mark.parametrize("name", ["own", "h100-sxm"])  # a file's name makes no price
@pytest.mark.parametrize("base", ["h100-sxm", "l40s", ""])
def test_a_gpu_of_ones_own_has_no_price(tmp_path, name, base):
    link = 'interconnect = {kind = "pcie", bandwidth = "32 GB/s"}'
    figures = f'memory = "96 GB"\nmemory_bandwidth = "2.5 TB/s"\nflops.bf16 = "600 TFLOP/s"\n{link}'
    path = tmp_path / f"{name}.toml"
    path.write_text(f'based_on = "{base}"\n{figures}' if base else figures, "utf-8")
    for gpu in (str(path), {"based_on": base or str(path), "memory_bandwidth": "5 TB/s"}):
        asked = scenario(clients__0__gpu=gpu, cost={})
        (told,) = (each for each in simulate(asked).warnings if each.kind == NO_PRICE)
        assert "gpu_price must be given for " in told.text
        assert "own" in told.text
        assert isnan(Built(asked).gpu_price)
        priced = scenario(clients__0__gpu=gpu, clients__0__gpu_price="2 $/h", cost={})
        assert Built(priced).gpu_price == 2


def test_who_reserves_for_years_pays_while_a_client_is_off():
    scaled = {
        "clients__0__count": 2,
        "clients__0__gpu": "l4",
        "lifecycle": {
            "autoscaling": [{"clients": ["llm"], "policy": {"type": "queue_length", "target": 2}}]
        },
    }
    by_hour, by_year = (
        simulate(scenario(**scaled, cost={"price": kind, "provider": "Google Cloud"}))
        for kind in ("on_demand", "reserved_1y")
    )
    off = by_hour.client_states.query("state == 'off'")
    seconds = (off["end"] - off["start"]).sum()
    end = by_hour.ledger.end
    assert 0 < seconds < end
    assert by_hour.summary["cost_usd"] == pytest.approx((2 * end - seconds) * 0.8536 / 3600)
    assert by_year.summary["cost_usd"] == pytest.approx(2 * end * 0.5378 / 3600)
    assert by_hour.summary["mean_usd_per_hour"] < by_hour.summary["usd_per_hour"] == 2 * 0.8536
    hours = by_hour.summary["duration"] / 3600
    paid = by_hour.summary["cost_usd"] / hours
    assert by_hour.summary["mean_usd_per_hour"] == pytest.approx(paid)
    assert by_year.summary["mean_usd_per_hour"] == pytest.approx(2 * 0.5378)
    for result in (by_hour, by_year):
        shares = result.requests["cost"].sum() + result.clients["idle_cost"].sum()
        assert shares == pytest.approx(result.clients["cost"].sum(), rel=1e-12)
        assert shares == pytest.approx(result.summary["cost_usd"], rel=1e-12)


def test_a_price_of_ones_own():
    result = simulate(scenario(**PRICE, cost={}))
    end = result.ledger.end
    assert result.summary["cost_usd"] == pytest.approx(end * 1e-3)
    million = result.summary["total_output_tokens"] / 1e6
    found = result.summary["cost_per_million_output_tokens_usd"]
    assert found == pytest.approx(end * 1e-3 / million)
    assert result.summary["prices"] == {"llm": "3.6 $/h, given"}
    assert simulate(scenario(cost={})).summary["cost_usd"] != result.summary["cost_usd"]


def test_use_pays_for_steps_alone():
    found = simulate(scenario(**PRICE, cost={"billing": "use"}))
    client = found.clients.iloc[0]
    assert client["cost"] == pytest.approx(client["busy"] * 1e-3)
    assert client["idle_cost"] == 0
    assert found.summary["cost_usd"] == pytest.approx(client["cost"])
    assert found.requests["cost"].sum() == pytest.approx(client["cost"])


def test_electricity_comes_on_top():
    free, paid = (
        simulate(scenario(**PRICE, cost=cost, power={"pue": 1.2}))
        for cost in ({}, {"electricity": "0.36 $/kWh"})
    )
    on_top = paid.summary["cost_usd"] - free.summary["cost_usd"]
    assert on_top == pytest.approx(paid.summary["energy_j"] * 1e-7)


def test_good_tokens_by_dollar_and_by_joule():
    slo = {"ttft": "1 s", "tpot": "35 ms"}
    result = simulate(scenario(**PRICE, cost={}, slo=slo))
    requests = result.requests
    good = (requests["ttft"] <= 1) & ~(requests["tpot"] > 0.035)
    tokens = requests["num_output_tokens"][good].sum()
    assert 0 < good.sum() < len(good)
    summary = result.summary
    assert summary["good_tokens_per_usd"] == pytest.approx(tokens / summary["cost_usd"])
    assert summary["good_tokens_per_j"] == pytest.approx(tokens / summary["energy_j"])


def test_what_an_api_asks():
    api = {"input": "1 $/Mtok", "cached_input": "0.1 $/Mtok", "output": "10 $/Mtok"}
    lengths = {
        "type": "prefix_repetition",
        "num_requests": 40,
        "num_prefixes": 2,
        "prefix_len": 320,
        "suffix": {"type": "fixed", "tokens": 50},
        "output": {"type": "fixed", "tokens": 20},
    }
    result = simulate(scenario(workload__lengths=lengths, cost={"api": api}))
    requests = result.requests
    cached = requests["num_cached_tokens"]
    assert cached.sum() > 0
    fresh = requests["num_prompt_tokens"] - cached
    each = (fresh + 0.1 * cached + 10 * requests["num_output_tokens"]) * 1e-6
    assert requests["api_cost"].tolist() == pytest.approx(each.tolist())
    assert result.summary["api_cost_usd"] == pytest.approx(each.sum())
    without = ApiPrices(input=1.0, output=10.0)
    assert without.cached_input is None


def test_more_load_makes_tokens_cheaper():
    costs = [
        simulate(scenario(cost={}, workload__arrivals__rate=f"{rate} /s")).summary
        for rate in (0.5, 2, 8)
    ]
    for less, more in pairwise(costs):
        for name in ("cost_per_million_output_tokens_usd", "energy_per_output_token_j"):
            assert more[name] < less[name]


test_bad_input = refused(
    lambda overrides: build(scenario(**overrides)),
    ({"cost": {"provider": "Nebbius"}}, "provider has no 'Nebbius'; did you mean 'Nebius'?"),
    ({"cost": {"electricity": "-1 $/kWh"}}, "electricity"),
    ({"cost": {"electricity": 0.1}}, "needs a number and a unit, such as '1 $/kWh'"),
    ({"cost": {"api": {"input": "1 $/Mtok"}}}, "cost.api.output: is required"),
    ({"cost": {}, "clients__0__gpu_price": "-1 $/h"}, "gpu_price: must be finite and >= 0"),
    ({"cost": {}, "clients__0__gpu_price": "dear"}, "a price needs a number and a unit"),
    ({"cost": {"price": "-1 $/h"}}, "price: must be 'on_demand', 'spot', "),
    ({"power": {"pue": 0.5}}, "power.pue: must be finite and >= 1, got 0.5"),
    ({"cost": {"price": "reserved_3y", "billing": "use"}}, "billing: must be reservation with"),
    ({"cost": {"prize": "spot"}}, "cost.prize: unknown key; did you mean 'price'?"),
)


def test_a_price_asks_for_the_cost():
    for said in ({}, {"cost": None}):
        asked = scenario(**PRICE, **said)
        assert asked == scenario(**PRICE, cost={})
    assert scenario().cost is None


def test_options_made_in_python_are_checked():
    with pytest.raises(ValueError, match=r"electricity must be finite and >= 0 \$/kWh"):
        CostOptions(electricity=float("inf"))
    with pytest.raises(ValueError, match=r"output must be finite and >= 0 \$/Mtok"):
        ApiPrices(input=1.0, output=-1.0)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"cost": {}, "clients__0__gpu": "mi300x"}, "gpu_price must be given for mi300x"),
        ({"cost": {"price": "spot"}}, "gpu_price must be given for l40s: the catalog has no spot"),
        ({"cost": {"provider": "AWS"}}, "no on demand price of AWS for it; there are offers of"),
        ({"cost": {"price": "reserved_1y"}}, "the catalog has no 1-year reserved price for it"),
    ],
)
def test_without_a_price_all_but_dollars_is_told(overrides, message):
    asked = scenario(**overrides)
    found = simulate(asked)
    plain = simulate(scenario(**(overrides | {"cost": None}))).summary
    told = [each for each in found.warnings if each.kind == NO_PRICE]
    assert len(told) == 1
    assert message in told[0].text
    assert found.bill is None
    dollars = {"usd_per_hour", "price_origins"}  # on demand, where no other price is asked for
    assert not dollars & set(found.summary)
    compared = plain.keys() - dollars - {"warnings"}
    assert {name: found.summary[name] for name in compared} == {
        name: plain[name] for name in compared
    }
    step = explain_batch(asked, HandBatch(decodes=4, context=100))
    assert step.seconds > 0
    assert isnan(Built(asked).gpu_price)
