"""TaiChi's sliders that move during a run: what stays as it was, who looks when, and bad input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim import Scenario, ScenarioError, Simulation, simulate
from mist_sim.clients import LlmClient
from mist_sim.clients.engine import lane
from mist_sim.core.request import Request
from mist_sim.core.sliders import Sliders
from mist_sim.metrics import Result
from mist_sim.reconfiguration import Change, OnChange, Reconfigure, Traffic, TrafficWatch
from mist_sim.reconfiguration.reconfigurer import Reconfigurer
from mist_sim.scenario.build import build
from mist_sim.stages import completion
from tests.effort import examples
from tests.unit.test_taichi import said

AS_IT_IS = {"num_p": 2, "s_p": 1024, "s_d": 256}
SLO = {"ttft": "3 s", "tpot": "45 ms"}


def scenario(reconfigure: Any = None, num_requests: int = 150, **changes: Any) -> Scenario:
    everything = said() | changes | {"reconfigure": reconfigure}
    everything["workload"]["lengths"]["num_requests"] = num_requests
    return Scenario.from_dict(everything)


def at(*times: float, **position: int) -> dict[str, Any]:
    """A schedule that says the same at some times."""
    return {"schedule": [{"at": f"{time} s", **(AS_IT_IS | position)} for time in times]}


def same(one: Result, other: Result) -> bool:
    """Whether two runs are the same to the bit: every token, every step, every transfer.

    How energy is shared out within a run of steps depends on where the run was cut.
    """
    shared = ["energy", "gpu_seconds"]
    ids = one.requests["request_id"]
    ends = zip(one.recorder.step_ends, other.recorder.step_ends, strict=True)
    return (
        one.requests.drop(columns=shared).equals(other.requests.drop(columns=shared))
        and one.transfers.equals(other.transfers)
        and all(mine == theirs for mine, theirs in ends)
        and all(np.array_equal(one.token_times(k), other.token_times(k)) for k in ids)
    )


def assert_nothing_is_lost(simulation: Simulation, result: Result) -> None:
    assert len(result.requests) == result.summary["completed"]
    for row in result.requests.itertuples():
        times = result.token_times(row.request_id)
        assert len(times) == row.num_output_tokens
        assert (np.diff(times) > 0).all()
    for client in simulation.clients:
        assert isinstance(client, LlmClient)
        for state in client.lane_states:
            assert not [*state.held, *state.loading, *state.moved, *state.waiting]
            assert not [*state.running, *state.prefilling]
            assert state.num_promised == state.pool.num_used == 0


# --- what stays as it was ---------------------------------------------------------------------


def test_where_the_sliders_stay_the_records_are_those_without():
    fixed = simulate(scenario())
    stays = simulate(scenario(at(0.0, 3.3)))
    assert same(fixed, stays)
    assert stays.sliders == ()
    assert stays.summary["reconfigurations"] == []
    assert "reconfigurations" not in fixed.summary


def test_steps_that_are_planned_anew_and_rules_that_begin_anew_change_nothing(monkeypatch):
    """Every client is told its own role and chunk again, in the middle of its steps."""

    def tell_again(self: Reconfigurer, _: Sliders) -> None:
        told.append(self._env.now)
        for client in self._clients:
            assert client.view.role is not None
            client._engines.turn(client.scheduler, self._policy.flow(client.view.role))

    told: list[float] = []
    fixed = simulate(scenario())
    assert set(fixed.transfers["client"].str[0]) == {"p", "d"}  # answers flow both ways
    monkeypatch.setattr(Reconfigurer, "_move", tell_again)
    again = simulate(scenario(at(*(0.5 + 0.37 * k for k in range(40)))))
    assert len(told) == 40
    assert same(fixed, again)


def test_sliders_that_move_at_0_are_those_of_the_clients():
    """Where clients end up with the roles of others, they do what these do."""
    moved = simulate(scenario(at(0.0, num_p=2, s_p=512, s_d=128)))
    everything = said()
    for client, chunk in zip(everything["clients"], (512, 128), strict=True):
        client["scheduler"]["max_num_batched_tokens"] = chunk
    everything["workload"]["lengths"]["num_requests"] = 150
    assert same(simulate(Scenario.from_dict(everything)), moved)
    assert moved.sliders == ((0.0, Sliders(num_p=2, num_d=2, s_p=512, s_d=128)),)


# --- any positions at any times -----------------------------------------------------------------


@st.composite
def schedules(draw: st.DrawFn) -> Reconfigure:
    times = sorted(draw(st.sets(st.floats(0, 30), min_size=1, max_size=4)))
    chunks = st.sampled_from([128, 200, 256, 512, 2048])
    changes = []
    for time in times:
        s_d, s_p = sorted([draw(chunks), draw(chunks)])
        changes.append(Change(at=time, num_p=draw(st.integers(1, 3)), s_p=s_p, s_d=s_d))
    return Reconfigure(schedule=tuple(changes))


@examples(40)
@given(schedules(), st.integers(0, 99), st.sampled_from(["pull", "push"]))
def test_nothing_is_lost_and_the_length_of_runs_changes_nothing(reconfigure, seed, transfer):
    plain = scenario(
        num_requests=60,
        seed=seed,
        hand_over={
            "first_token": "decode",
            "transfer": transfer,
            "policy": {"type": "flowing", "tpot": "40 ms"},
        },
    )
    simulation = build(plain)
    simulation.reconfigure = reconfigure
    result = simulation.run()
    assert_nothing_is_lost(simulation, result)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lane, "_FIRST_RUN", 1)
        patch.setattr(lane, "_LONGEST_RUN", 1)
        assert same(result, simulation.run())
