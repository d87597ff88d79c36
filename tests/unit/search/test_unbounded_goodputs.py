"""A search where some configurations attain all rates tried: no other one is the best for sure."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mist_sim import Scenario, ScenarioError
from mist_sim.search import GoodputOptions, find_goodput
from mist_sim.search.goodput_result import _rates
from mist_sim.search.planning.plan_result import _headroom
from mist_sim.search.spaces import SearchOptions, search_space
from tests.reference.random_spaces import ASKED, space

SCENARIO = ASKED | {"slo": {"ttft": "1 s"}}  # two H100 serve these 60 requests at any rate
UP_TO = "2.097e+07 /s"


def found(objectives, scenario=SCENARIO):
    asked = space(objectives, vary={"clients.0.count": [1, 2]}, scenario=scenario)
    return search_space(asked, SearchOptions(as_is=True), jobs=1)


def test_one_that_attains_all_rates_is_undecided_and_named_before_the_best():
    result = found("goodput_per_usd")
    one, two = result.rows
    assert (one["status"], two["status"]) == ("front", "undecided")
    assert two["at_least"]["goodput"] == pytest.approx(20 * 2**20, rel=1e-5)
    assert UP_TO in two["reason"]
    assert result.sentence.startswith(
        f"Undecided: count=2 attains all rates tried, up to {UP_TO}, and is ahead of count=1, the "
        "other one: goodput_per_usd "
    )


def test_its_lower_end_is_in_the_tables(capsys):
    found("goodput").show()
    shown = capsys.readouterr().out
    assert "The best of the others" in shown
    assert "≥ 20,97" in shown
    assert "failed" not in shown


def test_it_may_be_ahead_in_what_needs_its_goodput():
    sentence = found("energy_per_output_token_at_goodput_j").sentence
    assert "count=2 attains all rates tried" in sentence
    assert "and may be ahead of count=1" in sentence


def test_it_may_be_on_a_front():
    sentence = found(["goodput", "num_gpus"]).sentence
    assert sentence.endswith(f"count=2 attains all rates tried, up to {UP_TO}, and may be on it.")


def test_where_all_do_so_that_is_the_message():
    with pytest.raises(ScenarioError, match="of 2 configurations, 2 attain all rates") as told:
        found("goodput", ASKED | {"slo": {"ttft": "20 s"}})
    assert UP_TO in str(told.value)
    assert "failed" not in str(told.value)


def test_its_page_says_that_it_is_not_drawn():
    pytest.importorskip("matplotlib")
    from mist_sim.report.space import search_page

    page = search_page(found(["goodput", "num_gpus"]).summary, "space.yaml")
    titles = [panel.title for panel in page.figures[0].figure.panels]
    assert titles == ["num gpus over goodput; not drawn: 1 without an upper end"]


def test_its_picture_says_so_too():
    pytest.importorskip("matplotlib")
    from mist_sim.report.pictures.findings import front_picture

    def drawn(summary):
        return front_picture(summary).as_bytes("png")

    summary = found(["goodput", "num_gpus"]).summary
    assert drawn(summary) != drawn({**summary, "statuses": {"front": 1}})


FEW_SEATS = {
    "model": "llama-3.1-8b",
    "workload": {
        "lengths": {
            "type": "synthetic",
            "num_requests": 400,
            "prompt": {"type": "fixed", "tokens": 500},
            "output": {"type": "fixed", "tokens": 20},
        },
        "arrivals": {"type": "poisson", "rate": "60 /s"},
    },
    "clients": [
        {
            "name": "llm",
            "gpu": "h100-sxm",
            "max_model_len": 1024,
            "scheduler": {"type": "chunked", "max_num_seqs": 4, "max_num_batched_tokens": 512},
        }
    ],
    "slo": {"tpot": "30 ms"},
}


def test_limits_that_see_no_queues_are_not_tried_up_to_a_million_times_the_rate():
    found = find_goodput(Scenario.from_dict(FEW_SEATS), GoodputOptions(most_requests=2000), jobs=1)
    highest = found.bounds[0]
    assert found.status == "all attained"
    assert highest <= 16 * 60
    blind = "TPOT alone does not see queues; add a limit on TTFT"
    first, *others = [each.text for each in found.warnings]
    assert first.endswith(f"more may arrive than is served: {blind}.")
    assert not any("most-requests" in each for each in others)
    line = _headroom(found, SimpleNamespace(rate=60.0), "likely")
    assert line.text == (
        f"not known: limits are kept at any rate tried, up to {highest:.4g} /s; {blind}"
    )


@pytest.mark.parametrize(
    ("slo", "sees"),
    [
        ({"tpot": "30 ms"}, False),
        ({"tpot": "30 ms", "itl": "50 ms"}, False),
        ({"tpot": "30 ms", "ttft": "1 s"}, True),
        ({"e2el": "9 s"}, True),
        ({"tpot": "30 ms", "classes": {"chat": {"ttft": "1 s", "priority": 0}}}, True),
    ],
)
def test_limits_see_queues_if_one_is_on_a_time_with_a_wait(slo, sees):
    scenario = Scenario.from_dict(FEW_SEATS | {"slo": slo})
    assert GoodputOptions().target(scenario).sees_queues == sees


def test_many_rates_are_a_few_and_how_far_they_go():
    trials = [SimpleNamespace(rate=10.0 * 2**k) for k in range(20)]
    assert _rates(trials[:3]) == "10, 20, 40 /s"
    assert _rates(trials) == "10, 20, 40, 80 and 16 more up to 5.24288e+06 /s"
