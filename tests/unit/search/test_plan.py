"""What to buy and how to set it: `plan` against exhaustive simulation, and what it refuses."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest
from typer.testing import CliRunner

from mist_sim import Scenario, ScenarioError
from mist_sim.cli.app import app
from mist_sim.core import result_warnings as kinds
from mist_sim.core.batch import StepBatch
from mist_sim.errors import first_problem
from mist_sim.metrics.spending import HOURS_A_MONTH
from mist_sim.metrics.tables import UnansweredError
from mist_sim.report.elements import good_share
from mist_sim.report.presenters import folder_page
from mist_sim.rng import Streams
from mist_sim.scenario import build
from mist_sim.scenario.loading import as_data
from mist_sim.search import PlanOptions, plan
from mist_sim.search.planning.bounds import Demand, alone, demand_of, fewest, least_of
from mist_sim.search.planning.candidates import candidates, engines_of, scenario_of
from mist_sim.search.planning.deployment import deployment_of
from mist_sim.search.planning.hunt import Budget, Hunt, confidence_of
from mist_sim.search.planning.question import Question
from mist_sim.studies.driver import Driver
from mist_sim.studies.verdicts.trials import Trial, try_rate
from tests.reference.deployed import read_back
from tests.reference.scenarios import of_profile
from tests.refusals import refused

ASKED = {
    "model": "llama-3.1-8b",
    "workload": of_profile(60, "20 /s", name="azure-conv-2023"),
    "clients": [{"name": "llm", "gpu": "h100-sxm"}],
    "slo": {"ttft": "500 ms", "tpot": "25 ms"},
}
SHORT = {"designs": ("together", "apart"), "max_gpus": 2, "as_is": True}


def asked(**changes):
    return Scenario.from_dict(ASKED, changes)


def measured(scenario, options):
    """Return a question, its engines and its candidates."""
    question = Question(scenario, options)
    shop = engines_of(question)
    question.measure(shop.engines[0].built)
    return question, shop, list(candidates(shop.engines, question))


def verdict(candidate, question, most=None):
    """Return whether a candidate keeps the limits, by a simulation of its own."""
    try:
        scenario = scenario_of(candidate, question)
        num = question.num_requests
        found = try_rate(
            as_data(scenario), {}, scenario.seed, question.rate, question.target, num, most
        )
    except ScenarioError:
        return False
    return found.attained is True


def random_task(number):
    """Return a small question drawn from a number: two GPUs of three, a rate, limits."""
    rng = Streams(number).generator("plans")
    gpus = tuple(rng.choice(["h100-sxm", "l40s", "a100-80gb-sxm"], 2, replace=False).tolist())
    scenario = asked(
        **{
            "workload.lengths.name": str(rng.choice(["azure-conv-2023", "sharegpt-300"])),
            "workload.arrivals.rate": f"{rng.uniform(2, 60):.3g} /s",
            "slo.ttft": f"{rng.choice([100, 300, 1000])} ms",
            "slo.tpot": f"{rng.choice([12, 20, 40])} ms",
        }
    )
    return scenario, PlanOptions(gpus=gpus, tensor_parallel_sizes=(1, 2), **SHORT)


def hunted(question, shop, space):
    hunt = Hunt(question, demand_of(question, shop.engines[0]), space, Driver("plan", 1))
    hunt.search()
    return hunt


def check_against_all(number):
    """A hunt finds a price as low as that of the cheapest of all candidates that attain."""
    question, shop, space = measured(*random_task(number))
    hunt = hunted(question, shop, space)
    prices = [each.rank[0] for each in space if verdict(each, question)]
    best = hunt.best.candidate.rank[0] if hunt.best else inf
    assert best == min(prices, default=inf)
    return bool(prices)


@pytest.mark.parametrize("first", range(0, 6, 2))
def test_nothing_cheaper_is_passed_over(first):
    for number in range(first, first + 2):
        check_against_all(number)


def test_options_that_vary_make_engines_of_their_own():
    vary = {"pipeline_parallel_size": (1, 2), "kv_cache.kv_cache_dtype": ("auto", "fp8")}
    options = PlanOptions(gpus=("h100-sxm",), tensor_parallel_sizes=(1,), vary=vary, **SHORT)
    question, shop, space = measured(asked(), options)
    sizes = [(each.name, each.num_gpus) for each in shop.engines]
    assert sorted(sizes) == [
        ("h100-sxm PP 2 kv_cache_dtype=auto", 2),
        ("h100-sxm PP 2 kv_cache_dtype=fp8", 2),
        ("h100-sxm kv_cache_dtype=auto", 1),
        ("h100-sxm kv_cache_dtype=fp8", 1),
    ]
    for each in space:
        for client in scenario_of(each, question).clients:
            said = client.parameters()
            had = said["pipeline_parallel_size"], said["kv_cache"].kv_cache_dtype
            assert had == tuple(value for _, value in each.engine.settings)
    prices = [each.price for each in space if verdict(each, question)]
    assert hunted(question, shop, space).best.candidate.price == min(prices)
    assert len({each.family for each in space if each.design == "together"}) == 12


@pytest.mark.deep
def test_nothing_cheaper_is_passed_over_in_fifty_spaces():
    assert sum(check_against_all(number) for number in range(100, 150)) > 15


def test_hybrids_are_all_looked_at_before_one_runs_long(monkeypatch):
    """First runs of slow designs are short; what tells nothing comes last when runs get longer."""
    options = PlanOptions(
        gpus=("h100-sxm",), max_gpus=2, designs=("apart", "hybrid"), tensor_parallel_sizes=(1,)
    )
    question, shop, space = measured(asked(), options)
    hunt = Hunt(question, demand_of(question, shop.engines[0]), space, Driver("plan", 1))
    nothing = Trial(1.0, 0, None, nan, is_whole=True, margins=(-inf, inf))
    near = replace(nothing, attainment=0.89, margins=(-0.1, 0.2))
    runs = []

    def trials(chosen, most, rate):
        runs.extend((each.design, most) for each in chosen)
        return {each: near if each.design == "apart" else nothing for each in chosen}

    monkeypatch.setattr(hunt, "_trials", trials)
    hunt.run(space)
    assert {most for design, most in runs if design == "hybrid"} == {1500}
    assert {most for design, most in runs if design == "apart"} == {6000}
    order = [each.candidate.design for each in hunt._undecided()]
    assert order == sorted(order)
    assert set(order) == {"apart", "hybrid"}
    longer = {(each.design, tried.may_tell) for each, tried in hunt.tried.items()}
    assert longer == {("apart", 30_000), ("hybrid", 6_000)}


def test_the_cheapest_of_each_gpu_is_looked_for(monkeypatch):
    """A roomy one of eight that keeps the limits ends no search among fewer."""
    gpus = ("h100-sxm", "a100-80gb-sxm")
    options = PlanOptions(gpus=gpus, max_gpus=8, designs=("together",), tensor_parallel_sizes=(1,))
    question, shop, space = measured(asked(), options)
    hunt = Hunt(question, demand_of(question, shop.engines[0]), space, Driver("plan", 1))
    told = Trial(1.0, 6000, None, nan, is_whole=True, margins=(-1.0, -1.0))

    def keeps(each):
        return hunt.estimate(each) >= 1.3 * hunt.rate

    def trials(chosen, most, rate):
        return {each: replace(told, attained=keeps(each)) for each in chosen}

    monkeypatch.setattr(hunt, "_trials", trials)
    hunt.search()
    hunt.other_gpus()
    for gpu in gpus:
        prices = [each.price for each in space if each.engine.gpu == gpu and keeps(each)]
        assert len(set(prices)) > 1
        assert hunt.cheapest(gpu).candidate.price == min(prices)


def test_one_that_seems_to_keep_runs_longer_before_slow_designs_are_tried(monkeypatch):
    """Runs of hybrids take most of the time; one that seems to keep needs a longer run only."""
    options = PlanOptions(
        gpus=("h100-sxm",), max_gpus=4, designs=("apart", "hybrid"), tensor_parallel_sizes=(1,)
    )
    question, shop, space = measured(asked(), options)
    hunt = Hunt(question, demand_of(question, shop.engines[0]), space, Driver("plan", 1))
    nothing = Trial(1.0, 0, None, nan, is_whole=True, margins=(-inf, inf))
    seems = replace(nothing, attainment=0.95, margins=(-0.3, 0.1))
    missed = replace(nothing, attained=False, attainment=0.2, margins=(0.5, 0.9))
    runs = []

    def trials(chosen, most, rate):
        runs.extend((each.design, most) for each in chosen)
        told = {"hybrid": nothing, "apart": seems if most == 6_000 else missed}
        return {each: told[each.design] for each in chosen}

    monkeypatch.setattr(hunt, "_trials", trials)
    hunt.search()
    short, long, brief = (
        [place for place, run in enumerate(runs) if run == kind]
        for kind in (("apart", 6_000), ("apart", 30_000), ("hybrid", 1_500))
    )
    assert short
    assert long
    assert max(short + long) < min(brief)


@pytest.mark.parametrize(
    ("needs", "most_requests", "lengths"),
    [
        (45_000, None, [6_000, 30_000, 120_000]),
        (200_000, None, [6_000, 30_000]),  # more than the longest run would have
        (None, None, [6_000, 30_000]),
        (45_000, 30_000, [6_000, 30_000]),  # the user has said how long a run may be
    ],
)
@pytest.mark.parametrize("seems", [True, False])
def test_one_near_its_limits_runs_longer_where_that_may_tell(
    needs, most_requests, lengths, seems, monkeypatch
):
    options = PlanOptions(
        gpus=("h100-sxm",), max_gpus=1, tensor_parallel_sizes=(1,), most_requests=most_requests
    )
    question, shop, space = measured(asked(), options)
    hunt = Hunt(question, demand_of(question, shop.engines[0]), space, Driver("plan", 1))
    margins = (-0.2, 0.1) if seems else (-0.1, 0.2)
    near = Trial(1.0, 0, None, 0.91, is_whole=True, margins=margins, needs=needs)
    runs = []

    def trials(chosen, most, rate):
        runs.append(most)
        return dict.fromkeys(chosen, near)

    monkeypatch.setattr(hunt, "_trials", trials)
    hunt.search()
    assert sorted(set(runs)) == lengths


def in_a_world(enough, monkeypatch, budget=None, **more):
    """A hunt where `enough` GPUs keep the limits, which runs of 30,000 tell; and its runs."""
    options = PlanOptions(tensor_parallel_sizes=(1,), **{"gpus": ("h100-sxm", "l40s")} | more)
    question, shop, space = measured(asked(), options)
    hunt = Hunt(question, demand_of(question, shop.engines[0]), space, Driver("plan", 1), budget)
    runs = []

    def trial(each, most):
        distance = (each.num_gpus - enough + 0.5) / 8
        is_known = abs(distance) > 0.2 or most >= 30_000
        return Trial(
            1.0,
            0,
            distance > 0 if is_known else None,
            0.9 + distance / 10,
            is_whole=True,
            margins=(-distance - 0.3, -distance + 0.3),
            num_requests=most,
        )

    def trials(chosen, most, rate):
        runs.extend((each, most) for each in chosen)
        return {each: trial(each, most) for each in chosen}

    monkeypatch.setattr(hunt, "_trials", trials)
    hunt.search()
    return hunt, runs


def test_a_roomy_candidate_of_each_kind_comes_first(monkeypatch):
    hunt, runs = in_a_world(3, monkeypatch, max_gpus=8, designs=("together", "apart", "hybrid"))
    most = {}
    for each in hunt.possible:
        if each.design != "hybrid":
            kind = each.engine.gpu, each.design
            most[kind] = max(most.get(kind, 0.0), hunt.estimate(each))
    first = [each for each, _ in runs[: len(most)]]
    assert {(c.engine.gpu, c.design): hunt.estimate(c) for c in first} == most
    assert hunt.best.candidate.num_gpus == 3


def test_the_answer_is_the_best_that_seems_to_keep_when_no_run_tells(monkeypatch):
    hunt, runs = in_a_world(3, monkeypatch, max_gpus=8, most_requests=6_000)
    assert hunt.best.candidate.num_gpus == 3
    assert not hunt.best.attained
    assert hunt.sure.candidate.price > hunt.best.candidate.price
    assert {most for _, most in runs} <= {1_500, 6_000}


def test_longer_runs_go_where_they_may_change_answer(monkeypatch):
    hunt, runs = in_a_world(3, monkeypatch, max_gpus=8, designs=("together",))
    assert hunt.best.attained
    assert not hunt.left
    long = [each for each, most in runs if most > 6_000]
    assert long
    assert max(each.price for each in long) <= hunt.best.candidate.price


def test_a_search_ends_when_its_requests_are_spent(monkeypatch):
    whole = sum(most for _, most in in_a_world(3, monkeypatch, max_gpus=16)[1])
    hunt, runs = in_a_world(3, monkeypatch, Budget(requests=60_000), max_gpus=16)
    one_less = 30_000  # that one is always tried
    assert sum(most for _, most in runs) <= 60_000 + 4 * 6_000 + one_less < whole
    assert hunt.best


def test_what_a_bound_leaves_out_misses():
    excluded = 0
    for number in range(20, 26):
        question, shop, space = measured(*random_task(number))
        hunt = Hunt(question, demand_of(question, shop.engines[0]), space, Driver("plan", 1))
        out = [each for each in space if each not in hunt.open]
        excluded += len(out)
        assert not any(verdict(each, question) for each in out)
        assert sum(hunt.excluded.values()) == len(out)
    question, shop, space = measured(
        asked(**{"slo.tpot": "5 ms"}), PlanOptions(gpus=("l40s",), **SHORT)
    )
    hunt = Hunt(question, demand_of(question, shop.engines[0]), space, Driver("plan", 1))
    out = [each for each in space if each not in hunt.open]
    assert len(out) >= 3
    assert not any(verdict(each, question) for each in out)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b", "gemma-3-12b", "deepseek-v3"])
@pytest.mark.parametrize("gpu", ["h100-sxm", "l40s", "b200", "mi300x", "a100-80gb-sxm", "rubin"])
def test_no_step_is_faster_than_its_bound(gpu, model):
    width = 8 if model == "deepseek-v3" else 2
    scenario = asked(model=model, **{"clients.0.gpu": gpu})
    options = PlanOptions(gpus=(gpu,), tensor_parallel_sizes=(width,), prices={gpu: 1.0})
    shop = engines_of(Question(scenario, options))
    if not shop.engines:
        assert "does not fit" in shop.left_out[next(iter(shop.left_out))]
        return
    (engine,) = shop.engines
    least = least_of(engine)
    rng = Streams(1).generator(gpu + model)
    for _ in range(200):
        decodes = int(rng.integers(0, 300))
        chunks = tuple((int(rng.integers(1, 4000)), 0) for _ in range(rng.integers(0, 3)))
        keys = int(decodes * rng.integers(1, 4000))
        batch = StepBatch(chunks=chunks, num_decodes=decodes, context_sum=keys)
        tokens = decodes + sum(new for new, _ in chunks)
        if tokens:
            assert engine.step_time(batch) >= least.step(tokens, keys)


def demand(prompts, answers, **changes):
    slo = asked().slo.make()
    given = {"rate": 10.0, "share": 0.9, "limits": slo} | changes
    return Demand(np.array(prompts, float), np.array(answers, float), **given)


def test_engines_for_cheapest_that_have_to_be_good():
    work = np.array([1.0] * 9 + [100.0])
    standing = demand([1] * 10, [1] * 10, is_steady=False, span=2.5)
    assert standing.engines_for(work) == pytest.approx(9 / (2.5 + 0.5))  # the last is due at TTFT
    steady = demand([1] * 10, [1] * 10)
    assert steady.engines_for(np.full(10, 0.3)) == pytest.approx(10 * 0.3 * 0.9)
    assert steady.engines_for(work) <= 10 * 0.9


LINEAR = {"type": "linear", "step": "1 ms", "prefill_token": "1 us", "decode": "1 us"}


def test_times_that_are_no_roofline_have_no_bounds():
    scenario = asked(**{"clients.0.predictor": LINEAR})
    shop = engines_of(Question(scenario, PlanOptions(gpus=("h100-sxm",), **SHORT)))
    assert all(least_of(engine) is None for engine in shop.engines)


def test_bound_knows_when_request_alone_is_too_late():
    question, shop, _ = measured(asked(**{"slo.tpot": "1 ms"}), PlanOptions(gpus=("l4",), **SHORT))
    least = least_of(shop.engines[0])
    shares = alone(least, demand_of(question, shop.engines[0]))
    assert shares["tpot"] < 0.1 < 0.9 < shares["ttft"]
    needs = fewest(least, demand_of(question, shop.engines[0]))
    assert needs.together >= needs.prompts >= 1


QUICK = PlanOptions(gpus=("h100-sxm", "l40s"), **SHORT)


@pytest.fixture(scope="module")
def found():
    return plan(asked(), QUICK, jobs=1)


def test_answer_is_cheapest_that_was_seen_to_attain(found):
    attained = [row for row in found.tried if row["verdict"] == "attained"]
    assert found.usd_per_hour == min(row["usd_per_hour"] for row in attained)
    assert found.name in [row["name"] for row in attained]
    assert found.summary["vllm"]
    assert found.runner_up
    assert {line.confidence for line in found.lines} <= {"sure", "likely", "unsure", ""}


@pytest.mark.parametrize("margin", [0.99, 1.01])
def test_beyond_the_price_at_which_both_cost_as_much_the_other_wins(margin):
    """A question asked again at a price next to that at which two GPUs cost as much."""
    options = {"gpus": ("h100-sxm", "a100-80gb-sxm"), "tensor_parallel_sizes": (1,), **SHORT}
    options["designs"] = ("together",)
    scenario = asked(**{"slo.tpot": "40 ms", "workload.arrivals.rate": "6 /s"})
    before = plan(scenario, PlanOptions(**options), jobs=1)
    ((other, at),) = before.summary["break_even"].items()
    price = margin * at["costs_as_much_at"]
    after = plan(scenario, PlanOptions(prices={other: price}, **options), jobs=1)
    assert other not in before.name
    assert (other in after.name) == (margin < 1)
    assert (after.name == before.name) == (margin > 1)
    assert f"Both cost as much at {at['costs_as_much_at']:.3g} $ a GPU-hour of {other}" in " ".join(
        before.runner_up.split()
    )


def test_the_answer_runs_again_as_it_was(found, tmp_path):
    found.save(tmp_path / "out")
    again = Scenario.load(tmp_path / "out" / "scenario.yaml")
    assert again == found.scenario
    limits = build(again).run().summary["slo"]
    assert {name: each["value"] for name, each in limits.items()} == {
        name: each["value"] for name, each in found.at_rate["slo"].items()
    }
    saved = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert saved["name"] == found.name
    assert (tmp_path / "out" / "tried.csv").read_text().count("\n") == len(found.tried) + 1


def test_a_report_names_answer_and_shows_each_candidate(found, tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra report")
    (panel,) = found.plot("tried").panels
    marks = [len(mark.x) for mark in panel.marks]
    assert f"buy: {found.name}; {found.usd_per_hour:.2f} $/h" in panel.rows
    assert sum(marks) == len([row for row in found.tried if row["attainment"] >= 0])
    told = f"Buy {found.name}."
    assert told in found.report(tmp_path / "own.html").read_text(encoding="utf-8")
    found.save(tmp_path / "out")
    page = folder_page(tmp_path / "out", "plan")
    assert told in page.html()
    sheet = page.sheet()
    assert told in sheet
    assert re.search(r"<h1>What serves \S+ at \S+ /s within its limits", sheet)
    others = [each for each in page.told if each.of and not page.brief.concerns(each)]
    assert all((each.detail or each.text) not in sheet for each in others)
    assert f"{HOURS_A_MONTH * found.usd_per_hour:,.0f} <small>$ a month" in sheet


def test_an_assumed_host_is_named(found):
    assert "l40s TP 2: Host of the GPUs assumed: host-bridge" in found._repr_html_()
    hosts = [each for each in found.warnings if each.kind is kinds.ASSUMED_HOST]
    assert hosts
    assert not any("h100-sxm" in name for each in hosts for name in each.of)


def test_dollars_are_those_of_the_rate(found):
    """Without ramp and end: what the GPUs cost an hour, over the tokens of an hour."""
    cost = "cost_per_million_output_tokens_usd"
    at_rate = found.at_rate
    tokens = at_rate["output_throughput"] * at_rate["duration"] / at_rate["completed"]
    hour = 3600 * found.rate * tokens
    assert at_rate[cost] == pytest.approx(1e6 * found.usd_per_hour / hour)
    at_goodput = found.at_goodput
    hour = 3600 * at_goodput["output_tokens_per_s"]
    assert at_goodput[cost] == pytest.approx(1e6 * found.usd_per_hour / hour)
    assert at_goodput["output_tokens_per_s"] == pytest.approx(found.goodput.rate * tokens, rel=0.1)
    names = {line.name: line.text for line in found.lines}
    assert names["$ a million tokens"].startswith(f"{at_rate[cost]:.3g} at this rate")


@pytest.mark.parametrize("name", ["h100", "h100-sxm", "H100-SXM"])
@pytest.mark.parametrize("gpu", ["h100", "h100-sxm"])
def test_a_price_is_that_of_a_gpu_by_any_of_its_names(gpu, name):
    options = PlanOptions(gpus=(gpu,), prices={name: 7.0})
    (engine, *_) = engines_of(Question(asked(), options)).engines
    assert engine.dollars == pytest.approx(7.0)


def test_a_price_is_that_of_gpu_in_file(tmp_path):
    (tmp_path / "x1.toml").write_text('based_on = "h100"\n', "utf-8")
    file = str(tmp_path / "x1.toml")
    for name in ("x1", file):
        options = PlanOptions(gpus=(file, "l40s"), prices={name: 5.0}, max_gpus=1)
        found = {each.gpu: each.dollars for each in engines_of(Question(asked(), options)).engines}
        assert found[file] == pytest.approx(5.0)
        assert found["l40s"] != pytest.approx(5.0)


def test_a_plan_goes_on_with_its_journal(found, tmp_path):
    runs = []
    again = plan(asked(), QUICK, jobs=1, journal=tmp_path / "j", progress=runs.append)
    more = []
    third = plan(asked(), QUICK, jobs=1, journal=tmp_path / "j", resume=True, progress=more.append)
    assert again.summary == third.summary == found.summary
    assert len(more) == len(runs)


def test_two_processes_and_a_slow_machine_find_same(found, monkeypatch):
    assert plan(asked(), QUICK, jobs=2).summary == found.summary
    times = iter(range(0, 10**9, 10_000))
    monkeypatch.setattr("mist_sim.search.planning.hunt.monotonic", lambda: next(times))
    assert plan(asked(), QUICK, jobs=1).summary == found.summary


SERVERS = [
    ("together", 3, 0, (512,)),
    ("together", 1, 0, (8192,)),
    ("apart", 1, 2, (8192, 8192)),
    ("apart", 2, 1, (8192, 8192)),
]


@pytest.mark.parametrize("engine", [None, "vllm-0.14"])
@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize(("design", "first", "second", "chunks"), SERVERS)
def test_the_commands_read_back_give_the_same_clients(
    design, first, second, chunks, width, engine, tmp_path
):
    own = {"max_model_len": 8192, "kv_cache.gpu_memory_utilization": 0.8, "quantization": "fp8"}
    own |= {"scheduler.order": "priority", "kv_cache.enable_prefix_caching": False}
    clients = {f"clients.0.{key}": value for key, value in own.items()}
    scenario = asked(**clients, **({"engine": engine} if engine else {}))
    options = PlanOptions(gpus=("h100-sxm",), tensor_parallel_sizes=(width,), max_gpus=8)
    question, _, space = measured(scenario, options)
    (candidate,) = [
        each
        for each in space
        if (each.design, each.first, each.second, each.chunks) == (design, first, second, chunks)
    ]
    planned = scenario_of(candidate, question)
    deployment = deployment_of(planned)
    data = as_data(planned)
    again = read_back(planned, deployment, tmp_path / "deploy.sh")
    assert again["model"] == "meta-llama/Llama-3.1-8B"
    assert again | {"model": data["model"]} == data
    assert len(deployment.commands) == first + second
    assert bool(deployment.proxy) == (design == "apart")


@pytest.mark.parametrize(
    ("named", "checkpoint"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Llama-3.3-70B-Instruct"),
        ("llama-3.3-70b", "meta-llama/Llama-3.3-70B-Instruct"),
        ("llama3.3-70b", "meta-llama/Llama-3.3-70B-Instruct"),
        ("Llama-3.1-70B", "meta-llama/Llama-3.1-70B"),
        ("deepseek-r1-distill-llama-70b", "deepseek-ai/DeepSeek-R1-Distill-Llama-70B"),
        ("gemma-4-31b-it", "google/gemma-4-31B-it"),  # its sizes are another repository's
    ],
)
def test_a_server_loads_the_checkpoint_that_was_named(named, checkpoint):
    """Llama 3.3 has the sizes of 3.1, whose entry of the catalog times it."""
    (command,) = deployment_of(
        asked(**{"model": named, "clients.0.tensor_parallel_size": 2})
    ).commands
    assert command.startswith(f"vllm serve {checkpoint} ")


def test_a_run_that_told_nothing_has_no_share():
    assert good_share({"attainment": nan, "is_whole": False}) == "-"
    assert good_share({"attainment": 0.25, "is_whole": False}) == "≤ 25.0 %"


def test_the_first_problem_has_no_place_in_a_file_that_nobody_wrote():
    error = ScenarioError("override clients.0: x does not fit\nclients.1: y")
    assert first_problem(error) == "x does not fit"


def test_designs_that_vllm_has_not_have_no_commands():
    _, _, space = measured(asked(), PlanOptions(gpus=("h100-sxm",), max_gpus=2))
    question = measured(asked(), PlanOptions(gpus=("h100-sxm",), max_gpus=2))[0]
    hybrid = next(each for each in space if each.design == "hybrid")
    deployment = deployment_of(scenario_of(hybrid, question))
    assert not deployment.commands
    assert "TaiChi" in deployment.notes[0]
    assert "length_aware" in deployment.notes[0]


def test_bundles_are_planned_where_there_are_experts():
    scenario = asked(model="qwen3-30b-a3b")
    options = PlanOptions(gpus=("h100-sxm",), designs=("afd",), max_gpus=4)
    question, _, space = measured(scenario, options)
    assert space
    types = {client.type_ for client in scenario_of(space[-1], question).clients}
    assert types == {"llm", "afd"}


def test_words_of_confidence():
    summary = {
        "expected_errors": {"a": {"ttft": {"low": -0.1, "high": 0.1}}},
        "mean_ttft_ms": 1.0,
        "mean_e2el_ms": 2.0,
        "slo": {"p90_ttft_ms": {"verdict": "pass"}},
    }
    assert confidence_of(summary) == "sure"
    assert (
        confidence_of(summary | {"slo": {"p90_ttft_ms": {"verdict": "within error"}}}) == "likely"
    )
    assert confidence_of(summary | {"expected_errors": {}}) == "unsure"
    assert confidence_of(summary | {"slo": {"p90_tpot_ms": {"verdict": "pass"}}}) == "unsure"


test_options_that_make_no_search = refused(
    lambda options: plan(asked(), PlanOptions(**{"gpus": ("h100",)} | options)),
    ({"gpus": ()}, "gpus must be one or more"),
    ({"gpus": ("h100", "h100")}, "gpus must be one or more that differ"),
    (
        {"designs": ("split",)},
        "designs must be of together, apart, hybrid, afd, reshard, got 'split'",
    ),
    ({"max_gpus": 0}, "max_gpus must be in"),
    ({"max_usd_per_hour": -1.0}, "max_usd_per_hour must be finite and > 0, got -1"),
    ({"rate": 0.0}, "rate must be finite and > 0"),
    ({"seconds": float("nan")}, "seconds must be finite"),
    ({"total_requests": -5}, "total_requests must be >= 1, got -5"),
    ({"attainment": 2.0}, "attainment"),
    ({"most_requests": 0}, "most_requests must be >= 1000, got 0"),
    ({"routers": ("nobody",)}, "nobody"),
    ({"tensor_parallel_sizes": (0,)}, "tensor_parallel_sizes must be >= 1"),
    ({"vary": {"tensor_parallel_size": (1, 2)}}, "vary must be of options that a plan leaves"),
    ({"vary": {"scheduler.max_num_batched_tokens": (1, 2)}}, "the plan finds it"),
    ({"vary": {"pipeline_parallel_size": (1, 1)}}, "vary pipeline_parallel_size must be one or"),
    ({"prices": {"l4": 1.0}}, "prices must be of GPUs that are asked for, h100, got 'l4'"),
    ({"prices": {"h100": 0.0}}, "prices.h100 must be finite and > 0"),
)


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        ({}, {"gpus": ("h1000",)}, "no accelerator and no file is named 'h1000'"),
        ({}, {"gpus": ("h100", "h100-sxm")}, "gpus must differ"),
        ({}, {"gpus": ("rubin",)}, "gpu_price must be given for rubin"),
        ({"slo": {}}, {}, "slo must set a limit"),
        ({"workload.arrivals": {"type": "all_at_once"}}, {}, "must have a rate"),
        ({"model": "llama-3.1-405b"}, {"gpus": ("l4",)}, "memory excludes 4 of 4, such as l4"),
        ({}, {"max_usd_per_hour": 1.0}, "the budget excludes 4 of 4, such as h100-sxm: costs"),
        ({}, {"vary": {"no_option": (1,)}}, "no_option"),
        ({}, {"tensor_parallel_sizes": (3,)}, "the model's sizes excludes 1 of 1"),
        ({}, {"designs": ("apart",), "max_gpus": 1}, "within the budget of 1 GPU: apart, hybrid"),
        ({"slo.tpot": "1 us"}, {}, "cannot keep TPOT even for a request alone"),
        ({}, {"rate": 500.0, "max_gpus": 1}, "within 1 GPU keeps the limits at 500 /s"),
    ],
)
def test_questions_without_an_answer(changes, options, said):
    with pytest.raises(ScenarioError) as caught:
        plan(asked(**changes), PlanOptions(**{"gpus": ("h100",)} | options))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


LOAD = ["--profile", "azure-conv-2023", "--rate", "5", "--ttft-ms", "500", "--tpot-ms", "30"]
SMALL = ["--max-gpus", "1", "--as-is", "--jobs", "1", "-q"]


def run(*words):
    return CliRunner().invoke(app, ["plan", *words])


def test_a_plan_from_the_command_line(tmp_path):
    place = tmp_path / "answer.yaml"
    done = run("--model", "llama-3.1-8b", "--gpus", "h100", *LOAD, *SMALL, "--write", str(place))
    assert done.exit_code == 0, done.output
    assert "vllm serve meta-llama/Llama-3.1-8B" in done.output
    assert Scenario.load(place).clients[0].parameters()["gpu"] == "h100"


def test_a_plan_of_a_server_that_there_is():
    command = "vllm serve Qwen/Qwen2.5-7B -tp 2 --max-model-len 4096"
    done = run("--from-vllm", command, "--gpus", "h100", "--json", *LOAD, *SMALL)
    assert done.exit_code == 0, done.output
    (server,) = json.loads(done.output)["vllm"]
    assert server.startswith("vllm serve Qwen/Qwen2.5-7B ")
    assert "--max-model-len 4096" in server
    assert "-tensor-parallel" not in server  # the plan decides that


OPTIONS = """
    --gpus l40s, --max-gpus 3, --max-usd-per-hour 9, --price h100=1.5, --model qwen2.5-7b,
    --rate 6, --ttft-ms 400, --tpot-ms 20, --e2el-ms 9000, --attainment 0.95,
    --profile azure-code-2023, --tp 2, --designs apart, --routers round_robin, --seconds 5,
    --vary pipeline_parallel_size=2,
    --total-requests 5000, --most-requests 5000, --as-is, --set seed=3
"""


@pytest.mark.parametrize("words", OPTIONS.split(","), ids=str.strip)
def test_every_option_of_the_command_line_changes_what_is_asked(words, monkeypatch):
    found = []

    def find(scenario, options, **_):
        found.append((scenario.resolved(), options))
        raise ScenarioError("asked")

    monkeypatch.setattr("mist_sim.search.planning.plan", find)
    for more in ("", words):
        options = ["--model", "llama-3.1-8b", "--gpus", "h100", *LOAD, *more.split()]
        assert run(*options).exit_code == 2
    assert len(found) == 2
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "model is required"),
        (["--model", "llama-3.1-8b"], "workload is required"),
        (["--model", "llama-3.1-8b", *LOAD], "--gpus is required"),
        (["--model", "x", "--gpus", "h100", *LOAD], "x"),
        (["--model", "llama-3.1-8b", "--gpus", "h100", "--trace", "no.csv"], "no file no.csv"),
        (["--input-len", "5", *LOAD], "--profile must not be given with --input-len"),
        (["--input-len", "5", "--rate", "1"], "--input-len and --output-len must be given"),
        (["--profile", "azure-conv-2023"], "--rate, --users or --day is required with --profile"),
        (["demo", "--gpus", "h100,,l4"], "--gpus must be words"),
        (["demo", "--price", "h100"], "--price must be GPU=DOLLARS"),
        (["demo", "--tp", "two"], "--tp must be whole numbers"),
        (["demo", "--write", "."], "is there already"),
        (["demo", "--write", "nowhere/x.yaml"], "no folder nowhere"),
        (["demo", "--max-gpus", "1", "--rate", "900"], "keeps the limits at"),
    ],
)
def test_bad_input_is_one_message(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(*words)
    assert done.exit_code == 2
    assert said in done.output
    assert "Traceback" not in done.output
    assert not list(tmp_path.iterdir())


def test_one_engine_less_is_judged_by_a_run_without_it():
    scenario = asked(**{"workload.arrivals.rate": "100 /s"})
    options = PlanOptions(
        gpus=("h100-sxm",),
        max_gpus=6,
        designs=("together",),
        tensor_parallel_sizes=(1,),
        as_is=True,
    )
    found = plan(scenario, options, jobs=1)
    question, _, several = measured(scenario, options)
    chosen = next(each for each in several if each.name == found.name)
    assert chosen.first > 1
    left = chosen.without_one["one less"]
    said = found.one_less["one less"]
    assert said["attains"] == verdict(left, question)
    line = next(line for line in found.lines if line.name == "one less")
    assert line.text.startswith("still keeps the limits") == said["attains"]
    assert not said["attains"]
    assert 0 < said["goodput"] < 100
    assert line.text.endswith(f"; enough up to {said['goodput']:.4g} /s")
    for rate, is_enough in ((said["goodput"], True), (1.08 * said["goodput"], False)):
        at = replace(options, rate=rate)
        assert verdict(left, measured(scenario, at)[0]) == is_enough


@pytest.mark.parametrize("late_after", [1, 3])
def test_a_plan_ends_when_its_time_is_up(late_after, monkeypatch):
    """Only the figures of the answer are run then; what is missing is said."""
    done = []
    for module in ("studies.driver", "search.planning.hunt"):
        clock = f"mist_sim.{module}.monotonic"
        monkeypatch.setattr(clock, lambda: inf if len(done) > late_after else 0.0)
    options = PlanOptions(gpus=("h100-sxm",), tensor_parallel_sizes=(1,), seconds=1.0, **SHORT)
    found = plan(asked(), options, jobs=1, progress=done.append)
    assert len(done) == late_after + 2
    assert found.goodput.status == "stopped"
    (note,) = [each for each in found.notes if "--seconds was up" in each]
    assert "not run: the goodput, what binds" in note


def test_a_plan_whose_time_is_up_before_any_run_has_no_answer():
    options = PlanOptions(gpus=("h100-sxm",), tensor_parallel_sizes=(1,), seconds=1e-9, **SHORT)
    with pytest.raises(UnansweredError, match="--seconds may tell"):
        plan(asked(), options, jobs=1)


def test_an_answer_keeps_its_limits_over_whole_workload():
    """A run of the first 1,000 requests ends before the peak, which one H100 does not carry."""
    scenario = Scenario.from_dict(
        {
            "model": "llama-3.1-8b",
            "workload": {
                "lengths": {
                    "type": "synthetic",
                    "num_requests": 3000,
                    "prompt": {"type": "fixed", "tokens": 3000},
                    "output": {"type": "fixed", "tokens": 20},
                },
                "arrivals": {"type": "day", "peak": "23 /s", "low": "1 /s", "peak_at": "180 s",
                             "period": "240 s"},
            },
            "clients": [{"name": "llm", "gpu": "h100-sxm"}],
            "slo": {"ttft": "1 s"},
        }
    )  # fmt: skip
    options = PlanOptions(gpus=("h100-sxm",), designs=("together",), max_gpus=2, most_requests=1000)
    found = plan(scenario, options)
    texts = " ".join(warning.text for warning in found.warnings)
    missed = {row["name"] for row in found.tried if row["verdict"] == "missed"}
    assert all(each["kept"] for each in found.at_rate["slo"].values())
    assert found.name not in missed
    assert missed
    assert all(f"{name} (" in texts for name in missed if "seemed to keep" in texts)
    assert "seemed to keep the limits in the run that judged it" in texts
    assert not found.one_less["one less"]["attains"]
