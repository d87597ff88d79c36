"""TaiChi's sliders that move during a run: what stays as it was, who looks when, and bad input."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim import Scenario, ScenarioError, Simulation, simulate
from mist_sim.clients import LlmClient
from mist_sim.clients.engine import stepped
from mist_sim.core.request import Request
from mist_sim.core.sliders import Sliders
from mist_sim.metrics import Result
from mist_sim.reconfiguration import (
    Change,
    OnChange,
    Reconfigure,
    Reconfigurer,
    Seen,
    Traffic,
    TrafficWatch,
    differ,
)
from mist_sim.scenario.build import build
from mist_sim.stages import completion
from tests.effort import examples
from tests.reference.engines import assert_all_is_free
from tests.refusals import refused
from tests.unit.clients.test_taichi import said

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
        and all(list(mine) == list(theirs) for mine, theirs in ends)
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
        assert_all_is_free(client)


# --- what stays as it was ---------------------------------------------------------------------


def test_where_the_sliders_stay_records_are_those_without():
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
        patch.setattr(stepped, "FAST_FORWARD", False)
        assert same(result, simulation.run())


# --- when the workload has changed ---------------------------------------------------------------


def traffic(rate: int, prompt: int, answer: int) -> Traffic:
    """Ten seconds of it; of every second request the answer is known."""
    known = (answer, None)
    return Traffic(10.0, tuple(Seen(k / rate, prompt, known[k % 2]) for k in range(10 * rate)))


@pytest.mark.parametrize(
    ("seen", "differs"),
    [
        (traffic(8, 100, 200), False),
        (traffic(12, 100, 200), False),  # off by exactly half
        (traffic(13, 100, 200), True),
        (traffic(3, 100, 200), True),
        (traffic(8, 151, 200), True),
        (traffic(8, 100, 301), True),
        (traffic(8, 149, 299), False),
    ],
)
def test_a_change_is_significant_when_one_figure_is_off_by_more_than_the_part(seen, differs):
    known = traffic(8, 100, 200).figures
    assert known == (8.0, 100.0, 200.0)
    assert differ(seen.figures, known, 0.5) is differs


def test_a_gateway_knows_the_answers_of_those_alone_that_have_ended():
    watch = TrafficWatch()
    requests = [Request(k, 0.0, completion(8, 9), 10 * (k + 1), 999) for k in range(4)]
    child = replace(requests[0], parent_id=0)
    watch.sent(requests[3], 99.0)
    watch.begin(100.0)
    for number, request in enumerate([*requests[:3], child]):
        watch.sent(request, 104.0 + number)
    assert watch.seen(110.0).figures is None
    with pytest.raises(ValueError, match="whose answer is known"):
        watch.seen(110.0).rows()
    for request, num_tokens in ((requests[1], 7), (child, 500), (requests[3], 800)):
        watch.served(request, num_tokens)
    seen = watch.seen(110.0)
    assert seen == Traffic(10.0, (Seen(4.0, 10), Seen(5.0, 20, 7), Seen(6.0, 30)))
    assert seen.figures == (0.3, 20.0, 7.0)
    assert [row[:3] for row in seen.rows()] == [(10, 7, 0.0), (20, 7, 1.0), (30, 7, 2.0)]
    watch.served(requests[0], 5)
    assert [row[:2] for row in watch.seen(110.0).rows()] == [(10, 5), (20, 7), (30, 5)]
    watch.begin(110.0)
    assert watch.seen(115.0) == Traffic(5.0, ())


def changing(**on_change: Any) -> tuple[Simulation, list[tuple[float, Traffic, list[Sliders]]]]:
    """A run whose prompts become four times as long at 60 s, with a search that is watched."""
    simulation = build(scenario({"on_change": {"window": "20 s"} | on_change}, slo=SLO))
    times = [k / 4 for k in range(480)]
    prompts = [300 if time < 60 else 1200 for time in times]
    simulation.workload = simulation.workload.from_lists(prompts, [50] * len(times), times)
    asked: list[tuple[float, Traffic, list[Sliders]]] = []

    def search(seen: Traffic, positions: Any) -> Sliders:
        asked.append((seen.seconds, seen, list(positions)))
        return Sliders(num_p=3, num_d=1, s_p=1024, s_d=256)

    simulation.search = search
    return simulation, asked


def test_search_follows_change_and_clients_follow_after_delay():
    simulation, asked = changing(delay="7 s", chunks=[256, 1024])
    result = simulation.run()
    assert_nothing_is_lost(simulation, result)
    assert result.sliders == ((87.0, Sliders(num_p=3, num_d=1, s_p=1024, s_d=256)),)
    [(seconds, seen, positions)] = asked  # from 87 s on the workload is that of the last search
    assert seconds == 20.0
    assert seen.figures == (4.0, 1200.0, 50.0)
    assert positions[0] == Sliders(num_p=2, num_d=2, s_p=1024, s_d=256)  # that of now
    assert [one.num_p for one in positions] == [2, 1, 3]


def test_nobody_searches_where_workload_does_not_change_enough():
    simulation, asked = changing(change=4.0)
    without, _ = changing()
    without.reconfigure = without.search = None
    result = simulation.run()
    assert not asked
    assert result.sliders == ()
    assert same(without.run(), result)


def test_change_that_comes_after_end_does_not_come():
    simulation, asked = changing(delay="1000 s")
    result = simulation.run()
    assert len(asked) == 1
    assert result.sliders == ()
    assert result.summary["duration"] < 200


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            Reconfigure(on_change=OnChange(window=1e4)),
            [("on_change", "at its first look, at 10000 s")],
        ),
        (
            Reconfigure(schedule=tuple(Change(at=t, num_p=1, s_p=9, s_d=9) for t in (1.0, 2e3))),
            [("schedule.1", "at 2000 s")],
        ),
    ],
)
def test_changes_after_the_end_are_named(options, told):
    assert list(options.not_by(100.0)) == [(f"reconfigure.{key}", when) for key, when in told]


def test_a_search_finds_the_position_that_keeps_the_limits_and_stays_where_all_do():
    """Prompts of 3,000 tokens that come 8 a second: chunks of 128 are too slow for the first."""
    everything = said() | {"slo": {"ttft": "2 s"}}
    everything["clients"][0]["scheduler"]["max_num_batched_tokens"] = 128
    everything["clients"][1]["scheduler"]["max_num_batched_tokens"] = 128
    everything["reconfigure"] = {"on_change": {"chunks": [128, 2048]}}
    search = build(Scenario.from_dict(everything)).search
    assert search is not None
    slow = Sliders(num_p=2, num_d=2, s_p=128, s_d=128)
    fast = Sliders(num_p=2, num_d=2, s_p=2048, s_d=128)
    many = Traffic(7.5, tuple(Seen(0.125 * k, 3000, 20) for k in range(60)))
    assert search(many, [slow, fast]) == fast
    few = Traffic(50.0, tuple(Seen(10.0 * k, 100, 20) for k in range(5)))
    assert search(few, [slow, fast]) == slow
    assert search(few, [fast, slow]) == fast


# --- bad input --------------------------------------------------------------------------------


def change(**values: Any) -> dict[str, Any]:
    return {"schedule": [{"at": "5 s", **AS_IT_IS, **values}]}


test_what_is_bad_is_said = refused(
    lambda reconfigure: build(scenario(reconfigure, slo=SLO)),
    ({}, "reconfigure: .*schedule or on_change must be given, and not both, got neither"),
    (change() | {"on_change": {}}, "schedule or on_change must be given, and not both, got both"),
    (change(at="-5 s"), r"reconfigure.schedule.0.at: must be finite and >= 0 s, got -5"),
    (change(at=5), "reconfigure.schedule.0.at: "),
    (change(num_p=0), "reconfigure.schedule.0.num_p: must be >= 1, got 0"),
    (change(num_p=4), "num_p.* must be < 4, the clients with role p_heavy or d_heavy"),
    (change(s_d=2048), r"schedule.0.s_d: must be in \[1, s_p\] \(\[1, 1024\]\), got 2048"),
    (change(s_d=0), "reconfigure.schedule.0.s_d: must be in"),
    (change(s_d=100), r"must be >= max_num_seqs of p-0 \(128\), since .* got 100"),
    (change(speed=3), "reconfigure.schedule.0.speed"),
    (at(9.0, 5.0), r"schedule.* must have times that increase, got \[9.0, 5.0\]"),
    ({"on_change": {"window": "0 s"}}, "on_change.window: must be finite and > 0 s, got 0"),
    ({"on_change": {"change": 0}}, "on_change.change: must be finite and > 0, got 0"),
    ({"on_change": {"delay": "-1 s"}}, "on_change.delay: must be finite and >= 0 s"),
    ({"on_change": {"chunks": [256]}}, r"chunks: must be two sizes of .* got \[256\]"),
    ({"on_change": {"chunks": [64, 256]}}, r"chunks.* must be >= max_num_seqs of p-0 \(128\)"),
)


def test_what_does_not_go_with_it_is_said():
    with pytest.raises(ScenarioError, match=r"slo: must have a limit, which the search of"):
        scenario({"on_change": {}})
    with pytest.raises(ScenarioError, match=r"view_interval: must be left out with reconfigure"):
        scenario(change(), view_interval="1 s")
    everything = said() | {"reconfigure": change(), "network": None, "hand_over": {}, "router": {}}
    everything["router"] = "least_outstanding"
    for client in everything["clients"]:
        client["role"] = None
    with pytest.raises(ScenarioError, match="reconfigure: has no effect: no client has role"):
        Scenario.from_dict(everything)


def test_in_python_somebody_has_to_search_who_is_asked_to():
    plain = build(scenario())
    parts: dict[str, Any] = {
        "clients": plain.clients,
        "workload": plain.workload,
        "network": plain.network,
        "hand_over": plain.hand_over,
    }
    with pytest.raises(ScenarioError, match=r"search must be given with reconfigure.on_change"):
        Simulation(**parts, reconfigure=Reconfigure(on_change=OnChange()))
    with pytest.raises(ScenarioError, match=r"search must be left out without"):
        Simulation(**parts, search=lambda seen, positions: positions[0])
