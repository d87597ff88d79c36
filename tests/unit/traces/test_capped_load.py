"""`max_concurrency`: an open loop whose senders wait. `max_tokens`: answers that end early."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim import Scenario, simulate
from mist_sim.core.content_ids import leading
from mist_sim.traces import ClosedLoop, Workload
from tests.effort import examples
from tests.refusals import refused


def scenario(rate=50.0, **workload):
    return Scenario.from_dict(
        {
            "model": "qwen3-0.6b",
            "clients": [{"name": "llm", "gpu": "l4", "engine": "vllm-0.19"}],
            "workload": {
                "lengths": {
                    "type": "synthetic",
                    "num_requests": 60,
                    "prompt": {"type": "uniform", "low": 20, "high": 400},
                    "output": {"type": "uniform", "low": 1, "high": 40},
                },
                "arrivals": {"type": "poisson", "rate": f"{rate} /s"},
                **workload,
            },
        }
    )


def spans(**workload):
    """Return when each request was sent and when it ended, in order of arrival."""
    table = simulate(scenario(**workload)).requests.sort_values("request_id")
    return list(zip(table.arrival_time, table.finished_at, strict=True))


def most_under_way(found):
    moves = sorted([(sent, 1) for sent, _ in found] + [(end, -1) for _, end in found])
    most = now = 0
    for _, step in moves:
        now += step
        most = max(most, now)
    return most


@given(most=st.integers(1, 12), rate=st.floats(5, 500))
@examples(15)
def test_a_request_is_sent_when_it_arrives_or_a_seat_is_free(most, rate):
    """Each leaves at the latest of its arrival, the one before it, and the first free seat."""
    arrivals = [sent for sent, _ in spans(rate=rate)]
    found = spans(rate=rate, max_concurrency=most)
    ends: list[float] = []
    last = 0.0
    for arrival, (sent, end) in zip(arrivals, found, strict=True):
        seat = sorted(ends)[-most] if len(ends) >= most else 0.0
        assert sent == pytest.approx(max(arrival, last, seat), abs=1e-12)
        last = sent
        ends.append(end)
    assert most_under_way(found) <= most


def test_a_cap_that_never_binds_changes_nothing():
    assert spans(max_concurrency=60) == spans()


def test_a_cap_of_a_burst_is_closed_loop():
    """Requests that are all there at once, with so many under way, are users without thought."""
    burst = spans(arrivals={"type": "all_at_once"}, max_concurrency=4)
    users = spans(arrivals={"type": "closed_loop", "concurrency": 4})
    assert burst == users


def test_answers_end_at_their_limit():
    table = simulate(scenario()).requests
    cut = simulate(scenario(max_tokens=7)).requests
    assert list(cut.num_output_tokens) == [min(n, 7) for n in table.num_output_tokens]


def test_what_is_cut_is_not_known_any_more():
    assert leading(((1, 5), (2, 5)), 7) == ((1, 5), (2, 2))
    assert leading(((1, 5), (2, 5)), 5) == ((1, 5),)
    assert leading((), 5) == ()


test_limits_that_mean_nothing_are_refused = refused(
    lambda workload: scenario(**workload),
    ({"max_concurrency": 0}, "max_concurrency"),
    (
        {"max_concurrency": 2, "arrivals": {"type": "closed_loop", "concurrency": 2}},
        "must be left out with a closed loop",
    ),
    (
        {"max_tokens": 3, "pipeline": [{"type": "prefill", "num_prompt_tokens": 5}]},
        "must be left out with a pipeline without decode",
    ),
)


def test_a_workload_in_python_refuses_them_too():
    with pytest.raises(ValueError, match="max_concurrency must be left out"):
        Workload(Workload.from_lists([1], [1]).source, ClosedLoop(concurrency=1), max_concurrency=1)
    with pytest.raises(ValueError, match="max_tokens"):
        Workload(Workload.from_lists([1], [1]).source, ClosedLoop(concurrency=1), max_tokens=0)
