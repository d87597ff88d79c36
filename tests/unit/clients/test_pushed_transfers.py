"""Transfers that prefill clients push: the decode client reserves memory before the prompt.

As in `test_hand_over.py`: a step takes 1/8 s with a prompt and 1/32 s without, a block of four
tokens 1/64 s on the link, and 1/128 s of latency.
"""

import pytest

from mist_sim import Link, Scenario, ScenarioError, simulate
from mist_sim.core.hand_over import HandOver
from mist_sim.metrics import Result
from mist_sim.simulation import Simulation
from mist_sim.traces import Rows, TimeLimits, TraceArrivals, TraceRow, Workload
from tests.reference.apart import bundle, engine, link
from tests.reference.engines import assert_all_is_free
from tests.unit.clients.test_hand_over import THREE, row
from tests.unit.scenario.test_roles import DATA

PUSH = HandOver(transfer="push")
LATE = HandOver(transfer="push", first_token="decode")


def served(rows: list[TraceRow], *clients, hand_over: HandOver = PUSH, **more: object) -> Result:
    return simulation(rows, *clients, hand_over=hand_over, **more).run()


def simulation(
    rows: list[TraceRow], *clients, hand_over: HandOver = PUSH, network=None, **more: object
) -> Simulation:
    return Simulation(
        clients=clients or [engine("prefill"), engine("decode")],
        workload=Workload(Rows(rows), TraceArrivals(), **more),
        network=network or link(),
        hand_over=hand_over,
    )


def test_with_room_for_all_tokens_come_as_when_pulled():
    pushed, pulled = served(THREE[:2]), served(THREE[:2], hand_over=HandOver())
    for number in (0, 1):
        assert pushed.token_times(number).tolist() == pulled.token_times(number).tolist()
    assert pushed.transfers.equals(pulled.transfers)


def test_a_transfer_does_not_wait_for_a_step_of_the_decode_client():
    """The prompts are done at 1/8 and at 9/32 s; then the first decodes, in steps of 1/32 s.

    The first blocks are there at 0.1640625 s, so that steps end at 0.2890625 and 0.3203125 s.
    """
    rows = [row(0.0, 8, 20), row(0.15625, 8, 2)]
    pushed, pulled = served(rows), served(rows, hand_over=HandOver())
    assert pulled.transfers["start"].tolist() == [0.125, 0.2890625]
    assert pushed.transfers["start"].tolist() == [0.125, 0.28125]


def test_a_full_decode_client_keeps_prompts_from_beginning():
    """Three blocks: the second prompt begins when the first answer is done, at 0.2578125 s.

    When its blocks are pulled it is computed beside the first one, and its blocks wait.
    """
    rows = [row(0.0, 8, 4), row(0.0, 8, 2)]
    pushed, pulled = (
        served(rows, engine("prefill"), engine("decode", num_gpu_blocks=3), hand_over=hand_over)
        for hand_over in (PUSH, HandOver())
    )
    assert pulled.requests["ttft"].tolist() == [0.125, 0.125]
    assert pushed.requests["ttft"].tolist() == [0.125, 0.3828125]
    assert pushed.transfers["start"].tolist() == [0.125, 0.3828125]
    assert pushed.requests["queued"].tolist() == [0.0, 0.2578125]


def test_a_full_decode_client_stops_pulled_prompts_by_the_memory_of_the_prefill_client():
    """Two blocks hold one prompt there until its blocks are fetched: the third one waits."""
    rows = [row(0.0, 8, 8), row(0.0, 8, 2), row(0.0, 8, 2)]
    clients = engine("prefill", num_gpu_blocks=2), engine("decode", num_gpu_blocks=3)
    result = served(rows, *clients, hand_over=HandOver())
    prefills = result.stages[result.stages["stage"] == "prefill"]["started_at"].tolist()
    first_done = result.token_times(0)[-1]
    assert prefills[0] == 0.0
    assert prefills[1] == result.transfers["end"].tolist()[0]
    assert prefills[2] == result.transfers["end"].tolist()[1] > first_done


def test_layers_travel_while_prompts_are_computed_also_where_memory_was_scarce():
    """The second prompt waits for memory, and then all but its last layer is sent in its 1/8 s.

    When it is pulled the same is left, but it waits for memory behind the prompt.
    """
    rows, starts, ends = [row(0.0, 8, 4), row(0.0, 8, 2)], [], []
    for hand_over in (PUSH, HandOver()):
        layers = Link(bandwidth=64_000.0, granularity="layerwise")
        clients = engine("prefill"), engine("decode", num_gpu_blocks=3)
        result = served(rows, *clients, hand_over=hand_over, network=layers)
        starts.append(result.transfers["start"].tolist()[1] - result.token_times(1)[0])
        ends.append((result.transfers["end"] - result.transfers["start"]).tolist()[1])
    assert starts[0] == 0.0 < starts[1]
    assert ends[0] == ends[1]


def test_who_can_never_be_held_is_rejected_before_its_prompt():
    result = served([row(0.0, 16, 4)], engine("prefill"), engine("decode", num_gpu_blocks=3))
    assert result.requests["status"].tolist() == ["rejected"]
    assert result.requests["reason"].tolist()[0].startswith("decode: ")
    assert not len(result.steps)


def test_an_answer_that_the_context_cuts_at_its_first_token_is_done():
    result = served([row(0.0, 8, 4)], engine("prefill"), engine("decode", max_model_len=9))
    assert result.requests["status"].tolist() == ["finished"]
    assert result.requests["num_output_tokens"].tolist() == [1]
    assert result.requests["truncated"].tolist() == [True]
    assert result.requests["finished_at"].tolist() == [0.125]


@pytest.mark.parametrize("hand_over", [PUSH, LATE])
@pytest.mark.parametrize("limit", [0.05, 0.125, 0.15, 0.2])
def test_who_gives_up_leaves_no_memory_taken(hand_over, limit):
    """In the prompt, at its end, while entries move, and in the answer; and the next one, too."""
    clients = engine("prefill", num_gpu_blocks=2), engine("decode", num_gpu_blocks=3)
    limits = TimeLimits(timeout=limit)
    rows = [row(0.0, 8, 4), row(1.0, 8, 40), row(2.0, 8, 1)]
    result = served(rows, *clients, hand_over=hand_over, time_limits=limits)
    assert result.requests["status"].tolist()[:2] == ["timed_out"] * 2
    assert result.requests["finished_at"].tolist()[:2] == [limit, 1.0 + limit]
    for client in clients:
        core = client.lanes[0].core
        kept = core.num_abandoned + core.num_coming + core.num_held + len(core.moved)
        assert kept <= 1  # of the last request
        assert core.num_promised == 0
        assert kept or core.blocks.num_free == core.blocks.num_blocks


def test_who_is_rejected_by_the_prefill_client_leaves_its_reservation():
    clients = engine("prefill", num_gpu_blocks=2), engine("decode")
    result = served([row(0.0, 12, 4), row(1.0, 8, 2)], *clients)
    assert result.requests["status"].tolist() == ["rejected", "finished"]
    assert_all_is_free(clients[1])


def test_a_first_token_from_prefill_ends_the_limit_of_both_visits():
    """It is out at 1/8 s; the blocks are there at 0.1640625 s, behind the limit."""
    limits = TimeLimits(ttft_timeout=0.13)
    assert served([row(0.0, 8, 4)], time_limits=limits).requests["status"].tolist() == ["finished"]
    late = served([row(0.0, 8, 4)], hand_over=LATE, time_limits=limits)
    assert late.requests["status"].tolist() == ["timed_out"]


def test_bundles_reserve_nothing():
    with pytest.raises(ScenarioError, match="must be pull, since bundle reserves no memory"):
        simulation(THREE, engine("prefill"), bundle())


def test_in_a_file():
    pushed = Scenario.from_dict(DATA, {"hand_over.transfer": "push"})
    assert Scenario.from_yaml(pushed.resolved()) == pushed
    assert simulate(pushed).summary["num_hand_overs"] == 200
    with pytest.raises(ScenarioError, match="hand_over.transfer: must be 'pull' or 'push', got"):
        Scenario.from_dict(DATA, {"hand_over.transfer": "fetch"})
