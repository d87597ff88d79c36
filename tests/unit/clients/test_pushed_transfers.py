"""Transfers that prefill clients push: the decode client reserves memory before the prompt.

As in `test_hand_over.py`: a step takes 1/8 s with a prompt and 1/32 s without, a block of four
tokens 1/64 s on the link, and 1/128 s of latency.
"""

import pytest

from mist_sim import Link, Scenario, ScenarioError, simulate
from mist_sim.core.hand_over import HandOver
from mist_sim.metrics import Result
from mist_sim.simulation import Simulation
from mist_sim.traces import Rows, TraceArrivals, TraceRow, Workload
from tests.reference.apart import bundle, engine, link
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


def test_bundles_reserve_nothing():
    with pytest.raises(ScenarioError, match="must be pull, since bundle reserves no memory"):
        simulation(THREE, engine("prefill"), bundle())


def test_in_a_file():
    pushed = Scenario.from_dict(DATA, {"hand_over.transfer": "push"})
    assert Scenario.from_yaml(pushed.resolved()) == pushed
    assert simulate(pushed).summary["num_hand_overs"] == 200
    with pytest.raises(ScenarioError, match="hand_over.transfer: must be 'pull' or 'push', got"):
        Scenario.from_dict(DATA, {"hand_over.transfer": "fetch"})
