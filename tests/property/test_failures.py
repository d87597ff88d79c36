"""Failures inside runs are exact; over random lives of clients nothing is lost or served twice."""

from collections import Counter
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from mist_sim.clients import SequentialClient
from mist_sim.core.hand_over import HandOver
from mist_sim.durations import ExponentialDuration
from mist_sim.hardware.predictors import Predictor
from mist_sim.lifecycle import (
    Autoscaling,
    Drain,
    Failures,
    Lifecycle,
    OnFailure,
    QueueLength,
    Schedule,
    SloAttainment,
    StartUp,
    Utilisation,
)
from mist_sim.metrics import Result, Slo
from mist_sim.metrics.clients import Lives as StatesOfClients
from mist_sim.metrics.clients import pooled_gaps
from mist_sim.network import Link
from mist_sim.routers import (
    ROUTERS,
    ConditionalPolicy,
    FlippingPolicy,
    FlowingPolicy,
    OverflowPolicy,
)
from mist_sim.simulation import Simulation
from mist_sim.stages import Decode, Prefill, Preprocess
from mist_sim.traces import Retries, template
from tests.effort import examples, features_seen, missing
from tests.property.strategies import arrival_times, cases, finished, step_ends
from tests.reference.comparison import Case, EngineOptions, expanded_steps, workload
from tests.reference.outages import Outage, Outages
from tests.reference.predictors import AWKWARD, DYADIC
from tests.reference.run_lengths import assert_rows_do_not_show, records
from tests.reference.stepwise import Job

ALWAYS = OnFailure(max_retries=1000)
PLAIN = HandOver()


class FirstThatIsUp:
    """Sends all to the first client that is up."""

    def choose(self, request, stage, candidates):
        return candidates[0].client_id


@dataclass(frozen=True)
class FailingCase:
    """A client that fails, with or without a spare one; its jobs."""

    case: Case
    outages: tuple[Outage, ...]
    spare: EngineOptions | None

    def reference(self, predictor: Predictor) -> Outages:
        case = self.case
        return Outages(case.options, predictor, case.jobs, self.outages, self.spare)

    def simulate(self, predictor: Predictor) -> Result:
        clients = [self.case.options.client(predictor, "first")]
        if self.spare is not None:
            clients.append(self.spare.client(predictor, "spare"))
        failures = tuple(
            Failures(clients=("first",), at=(outage.begin,), repair=outage.seconds)
            for outage in self.outages
        )
        return Simulation(
            clients=clients,
            workload=workload(self.case.jobs),
            router=FirstThatIsUp(),
            lifecycle=Lifecycle(failures=failures, on_failure=ALWAYS),
        ).run()


@st.composite
def failing_cases(draw: st.DrawFn, predictor: Predictor, base: Any = None) -> FailingCase:
    """An engine whose failures come at the ends of steps, in the middle of them, and elsewhere."""
    case = draw(base if base is not None else cases(max_jobs=4, longest=100))
    jobs = tuple(
        replace(job, timeout=inf, ttft_timeout=inf, ttft_deadline=inf) for job in case.jobs
    )
    options = replace(case.options, drop_expired=False, early_rejection=False)
    case = Case(options, jobs)
    ends = sorted(set(step_ends(finished(case, predictor))))
    assume(ends)
    times, outages = [0.0, *ends], []
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(1, len(times) - 1)) if len(times) > 1 else 0
        assume(place)
        begin = draw(st.sampled_from([times[place], (times[place - 1] + times[place]) / 2]))
        outages.append(Outage(begin, draw(st.sampled_from([2.0**-10, 2.0**-7, 0.01, 0.3]))))
        times = [time for time in times if time > outages[-1].end]
        if len(times) < 2:
            break
    instants = {time for outage in outages for time in (outage.begin, outage.end)}
    assume(not instants & {job.arrival_time for job in jobs})
    spare = draw(st.sampled_from([None, None, options]))
    return FailingCase(case, tuple(outages), spare)


def assert_exact(case: FailingCase, predictor: Predictor) -> Outages:
    """Run a case both ways and compare tokens, ends and steps, to the bit."""
    reference, result = case.reference(predictor), case.simulate(predictor)
    rows = result.requests.set_index("request_id").to_dict("index")
    visits = Counter(result.recorder.visits.columns()["request_id"].tolist())
    for number, fate in enumerate(reference.fates):
        row = rows[number]
        assert (number, row["status"], row["finished_at"]) == (
            number,
            fate.status,
            fate.finished_at,
        )
        assert result.token_times(number).tolist() == fate.token_times
        assert row["num_output_tokens"] == len(fate.token_times)
        assert visits[number] == fate.num_visits
        assert row["num_preemptions"] == fate.num_preemptions
    assert result.recorder.losses.columns()["request_id"].tolist() == reference.lost
    assert_same_steps(result, reference)
    assert_same_gaps(result, reference)
    return reference


def assert_same_steps(result: Result, reference: Outages) -> None:
    """Compare every step; a client that came back has new tracks."""
    expected: dict[int, list[object]] = {0: [], 1: []}
    for life in reference.lives:
        expected[life.client] += [
            [
                (
                    step.start,
                    step.end,
                    len(step.batch.chunks),
                    step.batch.num_prefill_tokens,
                    step.batch.num_decodes,
                    step.batch.context_sum,
                )
                for step in steps
            ]
            for steps in life.steps
        ]
    for client_id in range(len(result.client_names)):
        tracks = [expanded_steps(result, k) for k in result.recorder.tracks_of(client_id)]
        of_the_run = expected[client_id][: len(tracks)]  # it may end before the last repair
        assert tracks == of_the_run
        assert not any(expected[client_id][len(tracks) :])


def assert_same_gaps(result: Result, reference: Outages) -> None:
    """Compare the pooled inter-token latencies, those across a failure included."""
    expected = Counter(
        after - before
        for fate in reference.fates
        for before, after in zip(fate.chunk_times, fate.chunk_times[1:], strict=False)
    )
    pooled: Counter[float] = Counter()
    for gaps, counts, _ in pooled_gaps(result.recorder):
        for gap, count in zip(gaps.tolist(), counts.tolist(), strict=True):
            pooled[gap] += count
    assert +pooled == expected


def features(reference: Outages) -> set[str]:
    """What a case exercised."""
    found = set()
    for fate in reference.fates:
        if fate.num_lost_early:
            found.add("lost without a token")
        if fate.num_lost > fate.num_lost_early:
            found.add("lost with tokens")
        if fate.num_lost > 1:
            found.add("lost twice")
        if fate.num_lost and fate.status == "finished":
            found.add("finished after a loss")
        if fate.num_lost and fate.num_preemptions:
            found.add("lost and preempted")
    return found


@pytest.mark.exact
@examples(100)
@given(data=st.data(), predictor=st.sampled_from([AWKWARD, DYADIC]))
def test_failures_inside_runs_are_exact(data, predictor):
    case = data.draw(failing_cases(predictor))
    for feature in features(assert_exact(case, predictor)):
        event(feature)


@pytest.mark.deep
def test_each_hard_feature_of_failures_is_reached():
    wanted = ("lost with tokens", "lost without a token", "lost twice", "finished after a loss")
    seen = features_seen(
        failing_cases(DYADIC), lambda case: features(case.reference(DYADIC)), wanted
    )
    assert not missing(seen, wanted), seen


# --- random lives -----------------------------------------------------------------------------

SECONDS = st.sampled_from([0.0, 2.0**-8, 0.01, 0.05, 0.11, 0.3])
MORE_THAN_0 = SECONDS.filter(bool)


@dataclass(frozen=True)
class Lives:
    """Clients, some prefill and decode apart; requests; what happens to the clients."""

    clients: tuple[tuple[str, dict[str, object]], ...]
    jobs: tuple[Job, ...]
    router: str
    retries: Retries | None
    lifecycle: Lifecycle
    hand_over: HandOver = PLAIN
    bandwidth: float = 1e6
    num_blocks: int = 60

    @property
    def plain(self) -> EngineOptions:
        """Return the options that all engines have, but for their own."""
        return EngineOptions("chunked", self.num_blocks, 4, 4, 64, caching=True)

    def simulation(self) -> Simulation:
        plain = self.plain
        clients = [
            SequentialClient(name, serves=["preprocess"], base_time=0.01, num_workers=2)
            if options.get("role") == "preprocess"
            else replace(plain, **options).client(AWKWARD, name)
            for name, options in self.clients
        ]
        requests = workload(self.jobs)
        pipeline = [Preprocess(num_tokens=1), Prefill, Decode]
        return Simulation(
            clients=clients,
            workload=replace(requests, pipeline=template(pipeline), retries=self.retries),
            router=ROUTERS[self.router](),
            network=Link(bandwidth=self.bandwidth, latency=1e-3),
            lifecycle=self.lifecycle,
            hand_over=self.hand_over,
            slo=Slo(ttft=0.05),
        )


def some_failures(names: list[str]) -> st.SearchStrategy[Failures]:
    some = st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True).map(tuple)
    given_times = st.builds(
        Failures,
        clients=some,
        at=st.lists(SECONDS, min_size=1, max_size=3).map(tuple),
        repair=st.none() | MORE_THAN_0,
    )
    at_random = st.builds(
        Failures, clients=some, mtbf=st.sampled_from([0.05, 0.3]), mttr=MORE_THAN_0
    )
    return given_times | at_random


POLICIES = st.one_of(
    st.builds(QueueLength, target=st.sampled_from([1.0, 3.0])),
    st.builds(QueueLength, target=st.just(1.0), counts=st.just("waiting")),
    st.builds(Utilisation, target=st.sampled_from([0.3, 0.9])),
    st.builds(Utilisation, target=st.just(0.2), of=st.just("kv_cache")),
    st.builds(SloAttainment, below=st.sampled_from([0.5, 0.9])),
    st.just(Schedule(at=(0.0, 0.05, 0.1), clients=(0, 3, 1))),
)


HAND_OVER_CASES = {
    "conditional": [ConditionalPolicy(max_local_tokens=20), ConditionalPolicy(max_waiting=0)],
    "overflow": [OverflowPolicy(), OverflowPolicy(max_waiting=2)],
    "flipping": [FlippingPolicy(max_waiting_tokens=40, interval=0.02, max_waiting=1)],
    "flowing": [
        FlowingPolicy(tpot=tpot, watermark=watermark, counts_seats=counts_seats, max_backflows=most)
        for tpot in (4e-4, 1.0)
        for watermark in (0.5, 0.1)
        for counts_seats, most in ((False, None), (True, 2), (False, 1))
    ],
}
ROLES: dict[str | None, list[str | None]] = {
    None: ["prefill", "decode"],
    "conditional": ["prefill", None],
    "overflow": [None, "decode"],
    "flipping": [None, None],
    "flowing": ["p_heavy", "d_heavy"],
}


@st.composite
def lives(draw: st.DrawFn, apart: bool | None = None, flows: bool | None = None) -> Lives:
    """Two to six engines and a worker or two, all of which may fail.

    apart, flows: whether hand-overs, and answers that flow, are among them; None: they may be.
    """
    hand_over, kinds = PLAIN, [None]
    if apart := draw(st.booleans()) if apart is None else apart:
        names = [None, None, *(name for name in ROLES if flows is None or name != "flowing")]
        name = "flowing" if flows else draw(st.sampled_from(names))
        kinds = ROLES[name]
        hand_over = HandOver(
            transfer=draw(st.sampled_from(["pull", "push"])),
            first_token=draw(st.sampled_from(["prefill", "decode"])),
            policy=draw(st.sampled_from(HAND_OVER_CASES[name])) if name else None,
        )
    number = draw(st.integers(1, 3))
    flows = "p_heavy" in kinds
    more = [{"async_scheduling": True}, {"pipeline_parallel_size": 2}]
    forms = st.sampled_from([{}, *([{"data_parallel_size": 2}] if flows else more)])
    clients = [
        (f"{kind}{place}-{k}", {"role": kind, **draw(forms)})
        for k in range(number)
        for place, kind in enumerate(kinds)
    ]
    names = [name for name, _ in clients]
    clients += [(f"worker{k}", {"role": "preprocess"}) for k in range(draw(st.integers(1, 2)))]
    everybody = [name for name, _ in clients]
    jobs = [
        Job(
            time,
            draw(st.integers(1, 60)),
            draw(st.integers(1, 60)),
            content=draw(st.sampled_from([(), ((0, 40),)])),
            **draw(st.sampled_from([{}, {}, {"timeout": 0.2}, {"ttft_timeout": 0.05}])),
        )
        for time in draw(arrival_times(draw(st.integers(1, 12))))
    ]
    role = str(draw(st.sampled_from(sorted({str(kind) for kind in kinds}))))
    alike = [name for name in names if name.startswith(role)]
    scaled = draw(st.lists(st.sampled_from(alike), unique=True, max_size=3))
    groups, drains = (), ()
    if scaled:
        lowest = draw(st.integers(0, len(scaled)))
        groups = (
            Autoscaling(
                clients=tuple(scaled),
                policy=draw(POLICIES),
                min=lowest,
                interval=draw(st.sampled_from([0.01, 0.1])),
                cool_down=draw(st.sampled_from([0.0, 0.05])),
            ),
        )
    left = [name for name in everybody if name not in scaled]
    if left and draw(st.booleans()):
        drain = st.builds(
            Drain,
            clients=st.just((draw(st.sampled_from(left)),)),
            at=SECONDS,
            back=st.none() | MORE_THAN_0,
        )
        drains = tuple(draw(st.lists(drain, max_size=2)))
    failures = draw(st.lists(some_failures(everybody), max_size=3))
    start = draw(
        st.none() | st.builds(StartUp, time=SECONDS | st.just(ExponentialDuration(mean=0.02)))
    )
    lifecycle = Lifecycle(
        failures=tuple(f for f in failures if not comes_too_late(f, start)),
        on_failure=draw(
            st.builds(
                OnFailure,
                policy=st.sampled_from(["retry", "resume"]),
                max_retries=st.integers(0, 3),
            )
            | st.just(OnFailure(policy="fail"))
        ),
        drains=drains,
        autoscaling=groups,
        start_up=start,
    )
    retries = draw(st.none() | st.just(Retries(backoff=0.01, max_backoff=0.02)))
    router = draw(st.sampled_from(["round_robin", "least_outstanding", "prefix_affinity"]))
    return Lives(
        tuple(clients),
        tuple(jobs),
        router,
        retries,
        lifecycle,
        hand_over,
        bandwidth=draw(st.sampled_from([1e6, 1e5])) if apart else 1e6,
        num_blocks=draw(st.sampled_from([320, 640] if flows else [60, 32])) if apart else 60,
    )


def comes_too_late(failure: Failures, start: StartUp | None) -> bool:
    """Whether a client takes longer to start than to fail again, which is refused."""
    longest = start.time if start and isinstance(start.time, float) else 0.0
    return failure.mtbf is not None and failure.mtbf < longest


def seen_in(result: Result, case: Lives) -> set[str]:
    """What random lives exercised."""
    requests, losses = result.requests, result.recorder.losses.columns()
    found = {f"request {status}" for status in requests["status"]}
    found |= {f"client {state}" for state in result.client_states["state"]}
    if losses["retried"].any():
        found.add("went on elsewhere")
    finished = requests[requests["status"] == "finished"]["request_id"]
    if set(losses["request_id"].tolist()) & set(finished):
        found.add("finished after a loss")
    if (requests["num_attempts"] > 1).any():
        found.add("sent again")
    return found | seen_of_hand_overs(result, case.hand_over)


def places_of(result: Result) -> tuple[list[int], list[int]]:
    """Return the requests and the clients of all visits, served or not."""
    visits = result.recorder.visits.columns()
    return visits["request_id"].tolist(), visits["client_id"].tolist()


def seen_of_hand_overs(result: Result, hand_over: HandOver) -> set[str]:
    """What became of requests between two clients."""
    found, visits, moves = set(), result.stages, result.transfers
    lost = set(result.recorder.losses.columns()["request_id"].tolist())
    finished = set(result.requests.query("status == 'finished'")["request_id"])
    moved = set(moves[moves["kind"] == "hand_over"]["request_id"])
    if hand_over.policy is not None and lost & moved & finished:
        found.add("a policy hands over, and some are lost")
    if isinstance(hand_over.policy, FlowingPolicy):
        num_moves = Counter(moves["request_id"])
        if any(num_moves[number] > 1 for number in lost & finished):
            found.add("an answer that flows is lost and goes on")
    ends = visits.groupby(["request_id", "stage"]).size().unstack(fill_value=0)
    if hand_over == PLAIN or not {"prefill", "decode"} <= set(ends.columns):
        return found
    num_places = Counter(
        number
        for number, client in zip(*places_of(result), strict=True)
        if result.client_names[client].startswith("decode")
    )
    for number in lost & finished & moved:
        if hand_over.transfer == "push" and num_places[number] > ends.loc[number, "decode"]:
            found.add("a place is given up, then taken again")
        if hand_over.drops_first and ends.loc[number, "prefill"] > 1:
            found.add("a prompt begins again for a first token from decode")
        if hand_over.policy is None and ends.loc[number, "prefill"] > 1:
            found.add("entries are lost on their way")
    return found


@examples(150)
@given(case=lives())
def test_nothing_is_lost_and_nothing_served_twice(case):
    result = case.simulation().run()
    assert_nothing_is_lost(case, result)
    for feature in seen_in(result, case):
        event(feature)


def assert_nothing_is_lost(case: Lives, result: Result) -> None:
    """The conservation of requests, stages and visits is checked at the end of the run itself."""
    requests = result.requests
    assert sorted(requests["request_id"]) == list(range(len(case.jobs)))
    for row in requests.itertuples():
        tokens = result.token_times(row.request_id)
        assert bool(row.reason) == (row.status != "finished")
        assert (tokens[1:] >= tokens[:-1]).all()
        if row.status == "finished":
            expected = case.jobs[row.request_id].num_output_tokens
            assert row.num_output_tokens == len(tokens) == expected
    assert_served_by_those_who_are_there(result)


def assert_served_by_those_who_are_there(result: Result) -> None:
    """Every step, and every visit, lies in a time in which its client was up or drained."""
    states = result.client_states
    there = states[states["state"].isin(["up", "draining"])]
    steps, recorder = result.steps, result.recorder
    visits = recorder.visits.columns()
    inside = [
        *zip(steps["client"], steps["start"], steps["end"], strict=True),
        *zip(
            (result.client_names[k] for k in visits["client_id"].tolist()),
            visits["queued_at"].tolist(),
            visits["finished_at"].tolist(),
            strict=True,
        ),
    ]
    end = states["end"].max()
    for client, first, last in inside:
        mine = there[there["client"] == client]
        covered = sum(
            max(0.0, min(last, until) - max(first, since))
            for since, until in zip(mine["start"], mine["end"], strict=True)
        )
        assert covered == pytest.approx(min(last, end) - first, abs=1e-12), (client, first, last)


@examples(60)
@given(case=lives().filter(lambda case: case.lifecycle.autoscaling), data=st.data())
def test_outages_end_with_the_wanted_number_of_clients(case, data):
    """Of a group whose number is fixed, so that what is wanted is known at any time."""
    (group,) = case.lifecycle.autoscaling
    wanted = data.draw(st.integers(1, len(group.clients)))
    group = replace(group, min=wanted, max=wanted)
    result = replace(case, lifecycle=replace(case.lifecycle, autoscaling=(group,))).simulation()
    result = result.run()
    expected = missing_times(result, set(group.clients), wanted)
    assert sorted(StatesOfClients(result.recorder, inf).failures) == expected
    for begin, end in expected:
        event("for good" if end == inf else "at once" if end == begin else "a while")


def missing_times(result: Result, scaled: set[str], wanted: int) -> list[tuple[float, float]]:
    """Return from when to when each failed client was missing, read off all changes in order."""
    rows = result.recorder.states.columns()
    texts = result.recorder.states.names
    names = [texts[state] for state in rows["state"]]
    clients = [result.client_names[k] for k in rows["client_id"]]
    changes = list(zip(rows["time"].tolist(), clients, names, strict=True))
    now: dict[str, str] = {}
    away: list[tuple[str, float]] = []
    found = []
    for row, (time, client, state) in enumerate(changes):
        now[client] = state
        back = {client} if state == "up" else set()
        if state == "failed":
            away.append((client, time))
        together = changes[row + 1 : row + 2]  # those that fail together do so before any answer
        waits = state == "failed" and [(each[0], each[2]) for each in together] == [(time, state)]
        if not waits and sum(now.get(name) == "up" for name in scaled) >= wanted:
            back |= scaled
        found += [(begin, time) for name, begin in away if name in back]
        away = [(name, begin) for name, begin in away if name not in back]
    return sorted(found + [(begin, inf) for _, begin in away])


@examples(30)
@given(case=lives())
def test_random_lives_repeat(case):
    simulation = case.simulation()
    first = records(simulation.run())
    assert records(simulation.run()) == first
    assert records(case.simulation().run()) == first


@examples(40)
@given(case=lives())
def test_the_length_of_runs_changes_no_life(case):
    simulate = case.simulation().run
    assert_rows_do_not_show(simulate)


@pytest.mark.deep
def test_each_feature_of_lives_is_reached():
    wanted = (
        "request finished",
        "request lost",
        "request rejected",
        "request timed_out",
        "client off",
        "client starting",
        "client draining",
        "client failed",
        "went on elsewhere",
        "finished after a loss",
        "sent again",
    )
    seen = features_seen(lives(), lambda case: seen_in(case.simulation().run(), case), wanted)
    assert not missing(seen, wanted), seen


@pytest.mark.deep
def test_each_feature_of_hand_overs_in_lives_is_reached():
    wanted = (
        "a place is given up, then taken again",
        "entries are lost on their way",
        "a prompt begins again for a first token from decode",
        "a policy hands over, and some are lost",
        "an answer that flows is lost and goes on",
    )
    seen = features_seen(
        lives(apart=True), lambda case: seen_in(case.simulation().run(), case), wanted
    )
    assert not missing(seen, wanted), seen
