"""Runs as a whole: walks, rejections, ties, closed loops, and what a user can get wrong."""

from dataclasses import dataclass
from itertools import count

import pytest

from mist_sim import Scenario, simulate
from mist_sim.clients import SequentialClient
from mist_sim.clients.scheduling import ChunkedScheduler, ContinuousScheduler
from mist_sim.core.request import Stage
from mist_sim.environment import (
    GIVE_UP,
    MOVE,
    PLAN,
    STEP_END,
    Environment,
    engine_phases,
    give_up_phase,
)
from mist_sim.errors import ScenarioError
from mist_sim.routers import LeastOutstandingRouter, RandomRouter, RoundRobinRouter
from mist_sim.scenario.loading import as_data
from mist_sim.simulation import Simulation
from mist_sim.stages import Decode, Prefill, ToolCall
from mist_sim.traces import ClosedLoop, Workload, template
from tests.reference.engines import llm_engine
from tests.reference.predictors import ConstantPredictor
from tests.refusals import refused


@dataclass(frozen=True, kw_only=True)
class Translate(Stage):
    kind = "translate"


def engine(name="llm", scheduler=None, num_gpu_blocks=1000):
    return llm_engine(
        name,
        scheduler=scheduler or ContinuousScheduler(),
        predictor=ConstantPredictor(1.0),
        num_gpu_blocks=num_gpu_blocks,
    )


def run(prompts, outputs, times=None, clients=None, router=None, **more):
    workload = Workload.from_lists(prompts, outputs, times, **more)
    return Simulation(clients=clients or [engine()], workload=workload, router=router).run()


def test_one_request_by_hand():
    result = run([10], [3], [5.0])
    request = result.requests.iloc[0]
    assert (request.arrival_time, request.first_token_at, request.finished_at) == (5.0, 6.0, 8.0)
    assert (request.ttft, request.tpot, request.e2el) == (1.0, 1.0, 3.0)
    assert list(result.token_times(0)) == [6.0, 7.0, 8.0]
    assert result.summary["mean_itl_ms"] == 1000.0


def test_continuous_batching_stalls_decodes_and_chunked_does_not():
    """A second prompt at 2.5 s: its step gives the first request no token, or gives it one."""
    stalled = run([10, 10], [6, 2], [0.0, 2.5])
    assert list(stalled.token_times(0)) == [1.0, 2.0, 3.0, 5.0, 6.0, 7.0]
    assert stalled.summary["p99_itl_ms"] > 1900.0
    assert stalled.summary["max_itl_ms"] == 2000.0
    shared = run([10, 10], [6, 2], [0.0, 2.5], [engine(scheduler=ChunkedScheduler())])
    assert list(shared.token_times(0)) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert shared.summary["p99_itl_ms"] == 1000.0


def test_a_stall_that_the_p99_hides_is_named(capsys):
    """Prompts that come one after another hold up one gap of 600: too rare for the p99."""
    stalled = run([10] * 10, [600] + [1] * 9, [0.0, *(2.5 + k for k in range(9))])
    assert stalled.summary["p99_itl_ms"] == 1000.0
    assert stalled.summary["max_itl_ms"] == 10_000.0
    stalled.show()
    told = "The longest gap between tokens is 10.0 s; p99 ITL does not show gaps so rare."
    assert told in " ".join(capsys.readouterr().out.split())


def test_arrival_at_end_of_step_joins_next_one():
    """Steps end, then requests move, then clients plan."""
    result = run([10, 10], [9, 1], [0.0, 4.0], [engine(scheduler=ChunkedScheduler())])
    assert result.requests.first_token_at[1] == 5.0


def test_phases_order_events_at_the_same_time():
    env, seen = Environment(), []

    def wait(phase):
        yield env.at(1.0, phase)
        seen.append(phase)

    phases = [STEP_END, MOVE, GIVE_UP, PLAN]
    for phase in reversed(phases):
        env.process(wait(phase))
    env.run()
    assert seen == phases
    with pytest.raises(ValueError, match="cannot schedule at 0.5 s, the clock is at 1.0 s"):
        env.at(0.5)


def test_phases_of_engines_are_in_the_order_of_clients_and_their_engines():
    places = [(0, 0), (0, 1), (0, 65_535), (1, 0), (2**24 - 1, 0)]
    ends, plans = zip(*[engine_phases(*place) for place in places], strict=True)
    gives_up = [give_up_phase(client_id) for client_id, _ in places[2:]]
    phases = [*ends, MOVE, *gives_up, *plans]
    assert phases == sorted(set(phases))


def test_simpys_own_events_are_moves():
    """A time-out of SimPy comes after the steps that end then and before the plans."""
    env, seen = Environment(), []
    for phase in (PLAN, STEP_END):
        env.at(1.0, phase).callbacks.append(lambda _, phase=phase: seen.append(phase))
    env.timeout(1.0).callbacks.append(lambda _: seen.append(MOVE))
    env.run()
    assert seen == [STEP_END, MOVE, PLAN]


def test_of_steps_that_end_at_the_same_time_that_of_the_first_client_goes_first():
    """The step of the second client began long before; the heap alone would let it go first."""
    clients = [engine(name="first"), engine(name="second")]

    class SecondThenFirst:
        def choose(self, request, stage, candidates):
            return 1 - request.request_id

    result = run([10, 10], [9, 1], [0.0, 8.0], clients, router=SecondThenFirst())
    assert result.requests.finished_at.tolist() == [9.0, 9.0]
    assert result.recorder.visits.columns()["request_id"].tolist() == [1, 0]


def test_a_prompt_that_never_fits_is_rejected_and_others_are_served():
    result = run([500, 20], [2, 2], clients=[engine(num_gpu_blocks=10)])
    assert list(result.requests.status) == ["rejected", "finished"]
    assert (result.summary["completed"], result.summary["failed"]) == (1, 1)


@pytest.mark.parametrize(
    ("prompt", "output", "options", "reason"),
    [
        (500, 2, {"clients": [engine(num_gpu_blocks=10)]}, "500 tokens exceed the KV cache of 160"),
        (
            150,
            50,
            {"clients": [engine(num_gpu_blocks=10)]},
            "161 tokens exceed the KV cache of 160",
        ),
        (
            101,
            1,
            {"clients": [engine(scheduler=ContinuousScheduler(max_num_batched_tokens=100))]},
            "exceeds max_num_batched_tokens=100",
        ),
        (
            10,
            2,
            {"pipeline": template([Translate(), Prefill, Decode])},
            "no client serves the stage 'translate'",
        ),
    ],
)
def test_a_rejection_says_what_has_no_room(prompt, output, options, reason):
    assert reason in run([prompt], [output], **options).requests.reason[0]


def test_pipeline_of_unlike_stages_is_walked_in_order():
    cpu = SequentialClient(
        "cpu", serves=["translate", "tool_call"], service_time=lambda s: getattr(s, "duration", 0.5)
    )
    pipeline = template([Translate(), Prefill, Decode, ToolCall(duration=2.0), Prefill, Decode])
    result = run([10], [3], [0.0], [engine(), cpu], pipeline=pipeline)
    stages = result.stages
    kinds = ["translate", "prefill", "decode", "tool_call", "prefill", "decode"]
    assert list(stages.stage) == kinds
    assert list(stages.finished_at) == [0.5, 1.5, 3.5, 5.5, 6.5, 8.5]
    assert result.requests.num_output_tokens[0] == 6


def test_workers_serve_in_order_of_arrival():
    cpu = SequentialClient("cpu", serves=["translate"], num_workers=2, service_time=lambda s: 1.0)
    pipeline = template([Translate()])
    result = run([1] * 5, [1] * 5, clients=[cpu], pipeline=pipeline)
    assert list(result.requests.finished_at) == [1.0, 1.0, 2.0, 2.0, 3.0]


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_service_time_must_be_a_time(seconds):
    cpu = SequentialClient("cpu", serves=["translate"], service_time=lambda s: seconds)
    with pytest.raises(ScenarioError, match="time of Translate.* must be a finite number >= 0 s"):
        run([1], [1], clients=[cpu], pipeline=template([Translate()]))


def test_closed_loop_keeps_concurrency_and_thinks_between_requests():
    workload = Workload.from_lists(
        [10] * 6, [2] * 6, arrivals=ClosedLoop(concurrency=2, think_time=3.0)
    )
    result = Simulation(clients=[engine()], workload=workload).run()
    assert list(result.requests.arrival_time) == [0.0, 0.0, 5.0, 5.0, 10.0, 10.0]
    assert result.summary["max_concurrent_requests"] == 2
    assert not result.summary["unstable"]


def test_users_may_think_by_a_law():
    def arrivals(think_time):
        data = {"type": "closed_loop", "concurrency": 2, "think_time": think_time}
        changes = {"workload.arrivals": data, "workload.lengths.num_requests": 200}
        scenario = Scenario.load("demo", overrides=changes)
        again = Scenario.from_dict(as_data(scenario))
        found = [simulate(each).requests for each in (scenario, again)]
        assert found[0].equals(found[1])
        return found[0]

    same = arrivals({"type": "constant", "time": "3 s"})
    assert same.equals(arrivals("3 s"))
    drawn = arrivals({"type": "exponential", "mean": "3 s"})
    assert not drawn.arrival_time.equals(same.arrival_time)
    span = drawn.arrival_time.max() / same.arrival_time.max()
    assert span == pytest.approx(1, rel=0.3)  # 100 draws each: a standard error of 10 %


def test_users_of_closed_loop_start_one_after_another():
    workload = Workload.from_lists(
        [10] * 4, [2] * 4, arrivals=ClosedLoop(concurrency=2, think_time=3.0, ramp_up=8.0)
    )
    result = Simulation(clients=[engine()], workload=workload).run()
    # the second user's answer waits a step for the prefill of the first one's next prompt
    assert list(result.requests.arrival_time) == [0.0, 4.0, 5.0, 10.0]


def test_a_user_whose_request_is_rejected_at_once_thinks_and_goes_on():
    workload = Workload.from_lists(
        [10] * 3,
        [2] * 3,
        arrivals=ClosedLoop(concurrency=1, think_time=3.0),
        pipeline=template([Translate(), Prefill, Decode]),
    )
    result = Simulation(clients=[engine()], workload=workload).run()
    assert list(result.requests.arrival_time) == [0.0, 3.0, 6.0]
    assert set(result.requests.status) == {"rejected"}


def test_round_robin_takes_turns_and_least_outstanding_looks_at_load():
    pair = [engine("a"), engine("b")]
    turns = run([10] * 4, [100, 1, 1, 1], [0.0, 2.0, 4.0, 6.0], pair, RoundRobinRouter())
    assert list(turns.stages[turns.stages.stage == "prefill"].client) == ["a", "b", "a", "b"]
    pair = [engine("a"), engine("b")]
    load = run([10] * 4, [100, 1, 1, 1], [0.0, 2.0, 4.0, 6.0], pair, LeastOutstandingRouter())
    assert list(load.stages[load.stages.stage == "prefill"].client) == ["a", "b", "b", "b"]


def test_random_router_uses_every_client_and_follows_seed():
    def clients_used(seed):
        workload = Workload.from_lists([10] * 50, [2] * 50, list(range(50)))
        names = [engine("a"), engine("b")]
        sim = Simulation(clients=names, workload=workload, router=RandomRouter(), seed=seed)
        return list(sim.run().stages.client)

    assert set(clients_used(0)) == {"a", "b"}
    assert clients_used(0) == clients_used(0) != clients_used(1)


def test_a_router_that_returns_nonsense_is_named():
    class Broken:
        def choose(self, request, stage, candidates):
            return 7

    with pytest.raises(
        ScenarioError, match="Broken.choose must return the client_id of a candidate"
    ):
        run([1], [1], router=Broken())


test_a_simulation_refuses_nonsense = refused(
    lambda change: Simulation(
        **{"clients": [engine()], "workload": Workload.from_lists([1], [1]), **change}
    ),
    ({"clients": []}, "at least one client"),
    ({"clients": [engine("x"), engine("x")]}, "names must be unique, got 'x' 2 times"),
    ({"clients": "llm"}, "clients must be a client, such as llm_client"),
    ({"seed": -1}, "seed must be >= 0, got -1"),
)


def test_clients_that_share_a_scheduler_share_nothing_else():
    shared = ContinuousScheduler(max_num_seqs=2)
    together = [engine("a", shared), engine("b", shared)]
    apart = [engine(name, ContinuousScheduler(max_num_seqs=2)) for name in ("a", "b")]
    load = ([40] * 9, [5, 3, 8, 2, 7, 4, 6, 1, 9], [0.0, 0.0, 0.0, 1.0, 1.0, 2.5, 3.5, 4.0, 4.0])
    one, other = (run(*load, clients=clients).requests for clients in (together, apart))
    assert one.equals(other)
    assert (one["first_token_at"] > one["arrival_time"] + 2).any()  # who waits for one of 2 seats


class Idle(ChunkedScheduler):
    def plan(self, lane):
        """Let nobody compute."""


class Shut(ChunkedScheduler):
    def admits(self, *_):
        return False


test_schedulers_that_stand_still_are_named = refused(
    lambda scheduler: run([1], [1], clients=[engine(scheduler=scheduler)]),
    (Idle(), "Idle.plan lets no request compute at 0 s"),
    (Shut(), "Shut lets no request compute at 0 s, with 1 requests"),
)


def test_a_closed_loop_starts_no_more_users_than_there_are_requests():
    workload = Workload.from_lists([4] * 3, [1] * 3, arrivals=ClosedLoop(concurrency=10**9))
    result = Simulation(clients=[engine()], workload=workload).run()
    assert result.summary["completed"] == 3


def test_a_router_inside_a_router_needs_no_seed_to_take_turns():
    class Wrapper:
        inner = RoundRobinRouter()

        def choose(self, request, stage, candidates):
            return self.inner.choose(request, stage, candidates)

    assert run([1], [1], router=Wrapper()).summary["completed"] == 1


def test_chunked_budget_must_hold_every_sequence():
    with pytest.raises(ValueError, match="must be >= max_num_seqs"):
        ChunkedScheduler(max_num_seqs=64, max_num_batched_tokens=32)


def test_progress_is_reported_ten_times_a_second(monkeypatch):
    """A run that takes 1/64 s for each request by the user's clock: 7 of them are 109 ms."""
    clock = count(0)
    monkeypatch.setattr("mist_sim.simulation.monotonic", lambda: next(clock) / 64)
    seen = []
    workload = Workload.from_lists([4] * 100, [1] * 100)
    Simulation(clients=[engine()], workload=workload).run(lambda done, now: seen.append(done))
    assert seen == list(range(1, 101, 7))


def test_run_without_engines_has_empty_table_of_steps():
    client = SequentialClient("tool", serves=["tool_call"], service_time=lambda stage: 1.0)
    workload = Workload.from_lists([1], [1], pipeline=lambda row: (ToolCall(duration=1.0),))
    steps = Simulation(clients=[client], workload=workload).run().steps
    assert len(steps) == 0
    assert {"client", "track", "start", "end"} <= set(steps.columns)


def test_a_seed_that_is_set_holds_for_run():
    def records(seed, set_to=None):
        simulation = Simulation(
            clients=[engine("a"), engine("b")],
            workload=Workload.from_lists([10] * 20, [3] * 20),
            router=RandomRouter(),
            seed=seed,
        )
        if set_to is not None:
            simulation.seed = set_to
        assert simulation.seed == (seed if set_to is None else set_to)
        return simulation.run().recorder.visits.columns()["client_id"].tolist()

    assert records(1, set_to=2) == records(2) != records(1)
    with pytest.raises(ScenarioError, match="seed must be >= 0, got -1"):
        records(1, set_to=-1)
