"""The check of conservation finds planted bugs, and says when, which request, and which client."""

from dataclasses import replace
from itertools import islice

import pytest

from mist_sim.clients import Client, SequentialClient
from mist_sim.clients.roster import Roster
from mist_sim.clients.scheduling import ContinuousScheduler
from mist_sim.conservation import Conservation
from mist_sim.coordination.coordinator import Coordinator
from mist_sim.core.recorder import End, Recorder
from mist_sim.core.request import Request
from mist_sim.core.visit import Failure
from mist_sim.environment import Environment
from mist_sim.errors import InvariantError
from mist_sim.load_generation import LoadGenerator, OpenLoop, Users
from mist_sim.rng import Streams
from mist_sim.routers import RoundRobinRouter
from mist_sim.simulation import Simulation
from mist_sim.stages import Decode, Prefill, ToolCall
from mist_sim.traces import ClosedLoop, Retries, TimeLimits, Workload, template
from tests.reference.engines import llm_engine
from tests.reference.predictors import ConstantPredictor

WHOLE = {
    name: getattr(owner, name)
    for owner, name in [
        (Coordinator, "walk"),
        (Recorder, "record_end"),
        (Recorder, "record_visit"),
        (Client, "finish"),
        (LoadGenerator, "send"),
        (OpenLoop, "_generate"),
        (Users, "_user"),
    ]
}
"""The code as it stands, for the bugs planted in it."""


def engine():
    return llm_engine(
        "llm", scheduler=ContinuousScheduler(), predictor=ConstantPredictor(1.0), num_gpu_blocks=100
    )


def worker():
    return SequentialClient("tool", serves=["tool_call"], service_time=lambda stage: stage.duration)


def run(arrivals=None, workload=Workload):
    """Five requests, one every ten seconds, each of 3 s: a prompt, a second token, and a tool."""
    times = None if arrivals else [10.0 * k for k in range(5)]
    requests = workload.from_lists(
        [10] * 5,
        [2] * 5,
        times,
        arrivals=arrivals,
        pipeline=template([Prefill, Decode, ToolCall(duration=1.0)]),
    )
    return Simulation(clients=[engine(), worker()], workload=requests).run()


def test_a_run_without_bugs_passes():
    assert run().summary["completed"] == run(ClosedLoop(concurrency=2)).summary["completed"] == 5


def test_stages_that_an_attempt_in_vain_was_served_in_do_not_count():
    """The tool serves both attempts; the engine is busy with another prompt in the first one."""
    plain = Workload.from_lists(
        [10] * 2, [2] * 2, [0.0, 0.5], pipeline=template([ToolCall(duration=1.0), Prefill, Decode])
    )
    one_by_one = llm_engine(
        "llm",
        scheduler=ContinuousScheduler(max_num_seqs=1),
        predictor=ConstantPredictor(1.0),
        num_gpu_blocks=100,
    )
    retries = Retries(max_attempts=2, backoff=1.0, jitter=0.0)
    result = Simulation(
        clients=[one_by_one, worker()],
        workload=replace(plain, time_limits=TimeLimits(timeout=3.25), retries=retries),
    ).run()
    assert result.requests.num_attempts.tolist() == [1, 2]
    assert set(result.requests.status) == {"finished"}
    assert (result.stages.stage == "tool_call").sum() == 3


def planted(owner, name, message, *values, **options):
    """Make a test of a bug: with it in place of a method, a run ends with this message.

    values: what the bug is given first, after the one that it is planted in.
    """

    def test_of(bug):
        def test(monkeypatch):
            monkeypatch.setattr(owner, name, lambda self, *more: bug(self, *values, *more))
            with pytest.raises(InvariantError, match=message):
                run(**options)

        return test

    return test_of


NEVER_ENDED = (
    r"^at 43.0 s: nothing left to happen: 1 of 5 requests never ended, first 3 \(its last "
)


# --- requests that are lost on their walk -------------------------------------------------------


@planted(Coordinator, "walk", NEVER_ENDED + r"recorded visit was at client 'llm'\)")
def test_a_request_that_vanishes_between_two_clients(self, request, visits):
    if request.request_id == 3:
        visits.append((yield self.roster.get(0).serve(request, request.stages[:2])))
        yield self.env.event()  # which never happens
    return (yield from WHOLE["walk"](self, request, visits))


def dropped(self, num_walked, request, visits):
    if request.request_id != 3:
        return (yield from WHOLE["walk"](self, request, visits))
    request.send(self.env.now)
    if num_walked:
        visits.append((yield self.roster.get(0).serve(request, request.stages[:num_walked])))
    return None


DROPPED = "at 43.0 s: request 3 has finished with {} of its 3 stages served .* {}"
test_a_request_dropped_first = planted(Coordinator, "walk", DROPPED.format(0, "nowhere"), 0)(
    dropped
)
test_a_request_dropped_before_its_last_stage = planted(
    Coordinator, "walk", DROPPED.format(2, "client 'llm'"), 2
)(dropped)


@planted(Coordinator, "walk", "request 3 has finished with 4 of its 3 stages")
def test_a_stage_that_is_served_twice(self, request, visits):
    failure = yield from WHOLE["walk"](self, request, visits)
    if request.request_id == 3:
        visits.append((yield self.roster.get(1).serve(request, request.stages[2:])))
    return failure


# --- records ------------------------------------------------------------------------------------


def ended(self, times, end):
    for _ in range(times if end.request.request_id == 3 else 1):
        WHOLE["record_end"](self, end)


NEVER = r"at 43.0 s: 1 of 5 requests never ended, first 3 \(.* at client 'tool'\)"
test_an_end_twice = planted(Recorder, "record_end", "at 43.0 s: request 3 ended 2 times", 2)(ended)
test_an_end_never = planted(Recorder, "record_end", NEVER, 0)(ended)


@planted(Recorder, "record_end", "1 of 5 requests never ended, first 3")
def test_request_that_is_recorded_under_id_of_another(self, end):
    end.request.request_id += 5 * (end.request.request_id == 3)
    WHOLE["record_end"](self, end)


def visited(self, times, client_id, visit):
    """Also where the request fails, so that no stage is missed."""
    if visit.request.request_id == 3 and client_id == 0:
        visit.outcome = Failure("rejected", 32.0, "")
        for _ in range(times):
            WHOLE["record_visit"](self, client_id, visit)
    else:
        WHOLE["record_visit"](self, client_id, visit)


VISITED = "clients recorded {} visits of request 3, and its walks got back 1"
test_a_visit_never = planted(Recorder, "record_visit", VISITED.format(0), 0)(visited)
test_a_visit_twice = planted(Recorder, "record_visit", VISITED.format(2), 2)(visited)


@planted(Recorder, "record_visit", r"request 9 has visits and never entered")
def test_a_visit_of_nobody(self, client_id, visit):
    WHOLE["record_visit"](self, client_id, visit)
    if visit.request.request_id == 4:
        stranger = Request(9, 0.0, visit.request.stages)
        visit.request, own = stranger, visit.request
        WHOLE["record_visit"](self, client_id, visit)
        visit.request = own


# --- clients ------------------------------------------------------------------------------------


@planted(
    Client,
    "finish",
    NEVER_ENDED + r"recorded visit was at client 'llm'; clients that still hold visits: 'tool'\)",
)
def test_a_client_that_forgets_to_hand_visit_back(self, visit):
    if visit.request.request_id != 3 or self.name != "tool":
        WHOLE["finish"](self, visit)


def counted(self, count, visit):
    WHOLE["finish"](self, visit)
    if visit.request.request_id == 3 and self.name == "llm":
        setattr(self.view.phases, count, getattr(self.view.phases, count) + 1)


COUNTS = "at 43.0 s: client 'llm' still counts"
test_a_queue_that_never_empties = planted(Client, "finish", COUNTS, "num_waiting")(counted)
test_a_batch_that_never_empties = planted(Client, "finish", COUNTS, "num_running")(counted)


@planted(
    Client, "finish", "at 43.0 s: client 'tool' still counts 0 waiting, 0 running, 1 outstanding"
)
def test_a_client_that_hands_a_visit_back_and_still_counts_it(self, visit):
    WHOLE["finish"](self, visit)
    if visit.request.request_id == 3 and self.name == "tool":
        self.view.outstanding += 1


# --- load generation ----------------------------------------------------------------------------


@planted(OpenLoop, "_generate", "at 23.0 s: request 3 was never sent")
def test_an_open_loop_that_stops_early(self, requests):
    return WHOLE["_generate"](self, islice(requests, 3))


@planted(
    OpenLoop,
    "_generate",
    r"at 43.0 s: 1 of 5 requests never ended, first 3 \(its last .* was nowhere\)",
)
def test_an_open_loop_that_pulls_a_request_and_does_not_send_it(self, requests):
    return WHOLE["_generate"](self, (each for each in requests if each.request_id != 3))


@planted(Users, "_user", "at 8.0 s: request 4 was never sent", arrivals=ClosedLoop(concurrency=2))
def test_users_who_stop_early(self, first, others):
    """Both send two: at 0 and 3 s, and at 0 and 4 s, since the tool takes one after the other."""
    return WHOLE["_user"](self, first, islice(others, 1))


@planted(LoadGenerator, "send", "request 3 ended 2 times")
def test_a_request_that_is_sent_twice(self, request):
    if request.request_id == 3:
        yield from WHOLE["send"](self, request)
    return (yield from WHOLE["send"](self, request))


@planted(LoadGenerator, "send", "5 requests ended, and load generation counts 4")
def test_a_request_that_load_generation_does_not_count(self, request):
    if request.request_id != 3:
        return (yield from WHOLE["send"](self, request))
    visits = []
    request.send(self.env.now)
    failure = yield from self.coordinator.walk(request, visits)
    self.recorder.record_end(End(request, visits, self.env.now, failure))
    return None


@planted(
    LoadGenerator,
    "send",
    r"at 41.0 s: 1 of 5 requests never ended, first 4 \(.* hold visits: 'llm'\)",
)
def test_a_run_that_stops_while_a_request_is_on_its_way(self, request):
    """The last request is sent at 40 s; the run may not end at 41 s, when it has one token."""
    if request.request_id == 4:
        self.env.at(41.0).callbacks.append(lambda event: self.all_ended.succeed())
    return WHOLE["send"](self, request)


@planted(
    LoadGenerator,
    "_stop_sending",
    "at 43.0 s: nothing left to happen: load generation does not stop",
)
def test_a_load_generator_that_does_not_stop(self):
    pass


def test_two_requests_with_one_id():
    class Repeating(Workload):
        def requests(self, streams):
            for request in super().requests(streams):
                request.request_id -= request.request_id == 4
                yield request

    with pytest.raises(InvariantError, match="at 43.0 s: request 3 entered 2 times"):
        run(workload=Repeating)


# --- requests that others spawn -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("enters", "ends", "broken"),
    [
        (True, True, None),
        (False, True, "request 7 ended and never entered"),
        (True, False, "1 of 2 requests never ended, first 7 (its last recorded visit was nowhere)"),
    ],
)
def test_children_are_counted_as_requests(enters, ends, broken):
    """A request from elsewhere than the workload enters by `enter`, and ends as any other."""
    env, recorder, client = Environment(), Recorder(), engine()
    roster = Roster()
    client.start(env, roster.next_id(), recorder)
    roster.join(client)
    coordinator = Coordinator(env, roster, RoundRobinRouter())
    load = OpenLoop(env, coordinator, recorder, None, Streams(0).generator("retries"))
    conservation = Conservation(Workload.from_lists([10], [2], [0.0]).requests(Streams(0)))
    stages = (Prefill(num_prompt_tokens=4), Decode(num_tokens=1))
    child = Request(7, 0.0, stages, num_prompt_tokens=4, num_output_tokens=2)
    if enters:
        conservation.enter(child)
    if ends:
        env.start(load.send(child))
    load.start(conservation.entering())
    env.run(until=load.all_ended)
    assert conservation.broken_law(load, recorder, [client]) == broken
