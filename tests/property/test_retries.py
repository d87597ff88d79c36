"""Requests that are sent again: equal bits with plain attempts, one after the other."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from hypothesis import event, given
from hypothesis import strategies as st

from mist_sim.metrics import Result
from mist_sim.simulation import Simulation
from mist_sim.traces import Retries
from tests.effort import examples
from tests.property.strategies import overloads
from tests.reference.comparison import (
    Case,
    EngineOptions,
    Reference,
    assert_same_drafts,
    assert_same_gaps,
    assert_same_steps,
    assert_same_totals,
    bits,
    first_token_at,
    left,
    workload,
)
from tests.reference.predictors import AWKWARD, DYADIC
from tests.reference.retries import Attempt, served_with_retries
from tests.reference.stepwise import Job, Outcome


def some_retries() -> st.SearchStrategy[Retries]:
    """Waits of a fraction of a step to several steps, which grow or do not."""
    seconds = st.floats(1e-4, 2e-2)
    return st.builds(
        lambda backoff, longest, **more: Retries(
            backoff=backoff, max_backoff=backoff + longest, jitter=0.0, **more
        ),
        seconds,
        seconds,
        max_attempts=st.integers(2, 4),
        factor=st.floats(1.0, 3.0),
        on=st.sampled_from([("timed_out",), ("rejected",), ("timed_out", "rejected")]),
    )


@st.composite
def impatient(draw: st.DrawFn) -> Case:
    """Overloads whose jobs have time for a few steps, or for about the whole answer."""
    case = draw(overloads(max_jobs=5))
    times = draw(st.sampled_from([1, 5, 30]))
    jobs = [
        replace(
            job,
            timeout=times * job.timeout,
            ttft_timeout=times * job.ttft_timeout,
            ttft_deadline=times * job.ttft_deadline,
        )
        for job in case.jobs
    ]
    return replace(case, jobs=tuple(jobs))


@examples(60)
@given(case=impatient(), retries=some_retries(), predictor=st.sampled_from([AWKWARD, DYADIC]))
def test_retries_are_exact(case, retries, predictor):
    attempts = assert_exact_with_retries(case, retries, predictor)
    for feature in features(attempts):
        event(feature)


def test_retries_of_a_crowd():
    """Nine jobs at once for two seats; who comes later than others has too little time."""
    options = EngineOptions("chunked", 40, 4, 2, 64, caching=True, max_num_waiting=4)
    jobs = tuple(Job(0.0, 20 + k, 30, timeout=0.02, content=((0, 16),)) for k in range(9))
    retries = Retries(max_attempts=4, backoff=0.007, factor=1.5, jitter=0.0)
    attempts = assert_exact_with_retries(Case(options, jobs), retries, AWKWARD)
    found = features(attempts)
    assert found == {"finished", "finished after a retry", "timed_out", "rejected"}
    assert max(attempt.number for attempt, _ in attempts) == 4


Ends = list[tuple[Attempt, Outcome]]


def features(attempts: Ends) -> set[str]:
    """What the attempts of a case came to."""
    found = {outcome.status for _, outcome in attempts}
    if any(each.number > 1 and outcome.status == "finished" for each, outcome in attempts):
        found.add("finished after a retry")
    return found


def assert_exact_with_retries(case: Case, retries: Retries, predictor) -> Ends:
    """Run a case both ways and compare all records; return the attempts and what they came to."""
    engine, attempts = served_with_retries(case, retries, predictor)
    requests = replace(workload(case.jobs), retries=retries)
    result = Simulation(clients=[case.options.client(predictor)], workload=requests).run()
    assert_same_steps(result, engine, 0)
    assert_same_totals(result, engine, 0)
    assert_same_gaps(result, [engine])
    if case.options.drafting:
        assert_same_drafts(result, engine, case.options.drafting.num_speculative_tokens)
    ends = list(zip(attempts, engine.outcomes, strict=True))
    assert_same_visits(result, ends)
    assert_same_requests(result, ends)
    assert_same_order(result, engine, attempts)
    return ends


def assert_same_visits(result: Result, ends: Ends) -> None:
    """Compare when each attempt came, was admitted, and was let go."""
    columns = result.recorder.visits.columns()
    names = ("request_id", "queued_at", "started_at", "first_token_at", "finished_at")
    rows = zip(*(columns[name].tolist() for name in names), strict=True)
    got = Counter((row[0], *map(bits, row[1:])) for row in rows)
    expected = Counter(
        (
            attempt.request_id,
            *map(bits, (attempt.sent_at, end.started_at, end.first_token_at, end.left_at)),
        )
        for attempt, end in ends
    )
    assert got == expected


def assert_same_requests(result: Result, ends: Ends) -> None:
    """Compare what became of each request, and what its attempts cost."""
    for row in result.requests.to_dict("records"):
        mine = [each for each in ends if each[0].request_id == row["request_id"]]
        attempt, last = mine[-1]
        in_vain = [end for _, end in mine if end.status != "finished"]
        assert row["num_attempts"] == attempt.number == len(mine)
        assert row["sent_at"] == attempt.sent_at
        assert row["status"] == last.status
        assert bits(row["first_token_at"]) == bits(first_token_at(last.token_times, last))
        assert row["finished_at"] == last.finished_at
        assert row["num_preemptions"] == len(last.preempted_at)
        assert row["num_cached_tokens"] == last.num_cached_tokens
        assert row["wasted_output_tokens"] == sum(len(end.token_times) for end in in_vain)
        assert result.token_times(row["request_id"]).tolist() == last.token_times


def assert_same_order(result: Result, engine: Reference, attempts: Iterable[Attempt]) -> None:
    """Compare the order in which attempts ended."""
    ids = [attempt.request_id for attempt in attempts]
    visits = result.recorder.visits.columns()
    assert visits["request_id"].tolist() == [ids[position] for position in left(engine)]
