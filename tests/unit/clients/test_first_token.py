"""The first token from the decode client: token times by hand, what waits for it, what is refused.

As in `test_hand_over.py`: a step takes 1/8 s with a prompt and 1/32 s without, a block of four
tokens 1/64 s on the link, and 1/128 s of latency.
"""

import numpy as np
import pytest

from mist_sim import Scenario, ScenarioError, simulate
from mist_sim.core.hand_over import HandOver
from mist_sim.metrics import Result
from mist_sim.models.speculative import SpeculativeConfig
from mist_sim.simulation import Simulation
from mist_sim.traces import Rows, TraceArrivals, TraceRow, Workload
from tests.reference.apart import bundle, engine, link
from tests.refusals import refused
from tests.unit.clients.test_hand_over import THREE, row
from tests.unit.scenario.test_roles import DATA

LATE = HandOver(first_token="decode")


def served(rows: list[TraceRow], *clients, **more: object) -> Result:
    return simulation(rows, *clients, **more).run()


def simulation(rows: list[TraceRow], *clients, **more: object) -> Simulation:
    return Simulation(
        clients=clients or [engine("prefill"), engine("decode")],
        workload=Workload(Rows(rows), TraceArrivals(), **more),
        network=link(),
        hand_over=LATE,
    )


def test_three_requests_by_hand():
    """Both first prompts are one step, to 1/8 s, and their blocks are there at 0.1953125 s.

    The decode client computes the last token of each prompt again, which gives the first token.
    The third answer is one token, which comes from there, too: its three blocks have memory when
    the last step of the first answer ends, and are there 3/64 + 1/128 s later.
    """
    result = served(THREE)
    assert [result.token_times(k).tolist() for k in range(3)] == [
        [0.2265625, 0.2578125, 0.2890625, 0.3203125],
        [0.2265625, 0.2578125, 0.2890625],
        [0.40625],
    ]
    requests = result.requests
    assert requests["ttft"].tolist() == [0.2265625, 0.2265625, 0.21875]
    assert requests["tpot"].tolist()[:2] == [1 / 32, 1 / 32]
    assert np.isnan(requests["tpot"][2])
    assert requests["num_output_tokens"].tolist() == [4, 3, 1]
    assert result.summary["mean_itl_ms"] == 1e3 / 32
    assert result.transfers["num_tokens"].tolist() == [7, 5, 11]


def test_both_visits_are_listed_as_stages():
    stages = served(THREE[:1]).stages
    assert stages["stage"].tolist() == ["prefill", "decode"]
    assert stages["finished_at"].tolist() == [0.125, 0.2890625]


def test_prompt_tokens_are_computed_once():
    summary = served(THREE).summary
    assert summary["total_input_tokens"] == 26
    assert summary["total_output_tokens"] == 8


def test_who_serves_alone_emits_where_it_prefills():
    result = served(THREE[:1], engine(None, name="both"), engine("prefill"))
    assert result.token_times(0).tolist()[0] == 0.125


def test_a_context_that_one_token_fills_ends_there():
    result = served([row(0.0, 8, 4)], engine("prefill"), engine("decode", max_model_len=9))
    assert result.requests["num_output_tokens"].tolist() == [1]
    assert result.requests["truncated"].tolist() == [True]
    assert result.requests["ttft"].tolist() == [0.125 + 2 / 64 + 1 / 128 + 1 / 32]


def test_drafts_and_bundles_do_not_begin_answers():
    drafts = SpeculativeConfig(method="ngram", num_speculative_tokens=2, acceptance_rate=0.5)
    clients = engine("prefill"), engine("decode", speculative_config=drafts)
    with pytest.raises(ScenarioError, match="since decode does not begin answers"):
        simulation(THREE, *clients)
    with pytest.raises(ScenarioError, match="since bundle does not begin answers"):
        simulation(THREE, engine("prefill"), bundle())


def test_in_a_file():
    late = Scenario.from_dict(DATA, {"hand_over.first_token": "decode"})
    assert Scenario.from_yaml(late.resolved()) == late
    early, late = simulate(Scenario.from_dict(DATA)), simulate(late)
    assert late.summary["mean_ttft_ms"] > early.summary["mean_ttft_ms"]
    assert late.summary["mean_tpot_ms"] < early.summary["mean_tpot_ms"]
    assert late.summary["total_output_tokens"] == early.summary["total_output_tokens"]
    assert late.summary["num_hand_overs"] == 200 >= early.summary["num_hand_overs"]


test_what_is_bad_is_said = refused(
    lambda changes: Scenario.from_dict(DATA, changes),
    ({"hand_over.first_token": "both"}, "hand_over.first_token: must be 'prefill' or 'dec"),
    ({"hand_over.token": "decode"}, "hand_over.token: unknown key"),
    (
        {
            "hand_over.first_token": "decode",
            "network": None,
            "clients.0.role": None,
            "clients.1.role": None,
        },
        "hand_over.first_token: has no effect: no client has a role",
    ),
)
