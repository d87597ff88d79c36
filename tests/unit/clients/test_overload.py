"""Time-outs, users who go away, retries and refusals, by hand: every step takes one second."""

import numpy as np
import pytest

from mist_sim.clients import SequentialClient
from mist_sim.clients.options.overload import AdmissionControl
from mist_sim.clients.scheduling import ChunkedScheduler, ContinuousScheduler, StaticScheduler
from mist_sim.durations import ExponentialDuration, LogNormalDuration, UniformDuration
from mist_sim.errors import ScenarioError
from mist_sim.hardware.predictors import EngineOverhead, PipelinePredictor
from mist_sim.metrics import Slo
from mist_sim.rng import Streams
from mist_sim.simulation import Simulation
from mist_sim.stages import Decode, Prefill, ToolCall
from mist_sim.traces import ClosedLoop, Retries, TimeLimits, Workload, template
from tests.reference.engines import llm_engine
from tests.reference.predictors import ConstantPredictor
from tests.refusals import refused


def engine(
    scheduler=None,
    num_gpu_blocks=1000,
    request_overhead=0.0,
    prompt_token_overhead=0.0,
    num_ranks=1,
    num_engines=1,
    async_scheduling=False,
    rank=None,
    enable_prefix_caching=True,
    **admission,
):
    rank = rank or ConstantPredictor(1.0)
    ranks = PipelinePredictor((rank,) * num_ranks, lambda num_tokens: 0.5)
    return llm_engine(
        "llm",
        scheduler=scheduler or ContinuousScheduler(),
        predictor=ranks if num_ranks > 1 else rank,
        data_parallel_size=num_engines,
        num_gpu_blocks=num_gpu_blocks,
        overhead=EngineOverhead(request=request_overhead, prompt_token=prompt_token_overhead),
        async_scheduling=async_scheduling,
        enable_prefix_caching=enable_prefix_caching,
        admission=AdmissionControl(**admission),
    )


class GivenLimits(Workload):
    """A workload whose requests have limits of their own, by their position."""

    def __init__(self, plain, each, retries=None):
        super().__init__(plain.source, plain.arrivals, plain.pipeline, retries=retries)
        object.__setattr__(self, "_each", each)

    def requests(self, streams):
        for request, limits in zip(super().requests(streams), self._each, strict=True):
            request.limits = (
                limits and next(TimeLimits(**limits).applied(iter([request]), None)).limits
            )
            yield request


def run(prompts, outputs, times=None, clients=None, each=None, retries=None, seed=0, **limits):
    arrivals = limits.pop("arrivals", None)
    pipeline = {"pipeline": limits.pop("pipeline")} if "pipeline" in limits else {}
    plain = Workload.from_lists(prompts, outputs, times, arrivals=arrivals, **pipeline)
    if each is not None:
        workload = GivenLimits(plain, each, retries)
    else:
        workload = Workload(
            plain.source,
            plain.arrivals,
            plain.pipeline,
            time_limits=TimeLimits(**limits) if limits else None,
            retries=retries,
        )
    return Simulation(clients=clients or [engine()], workload=workload, seed=seed).run()


def ends(result):
    return list(zip(result.requests.status, result.requests.finished_at, strict=True))


# --- time-outs ----------------------------------------------------------------------------------


def test_a_running_request_times_out_and_leaves_with_the_step_in_flight():
    """Its user has gone at 2.5 s; the engine's third step ends at 3 s and is its last."""
    result = run([10], [9], timeout=2.5)
    assert ends(result) == [("timed_out", 2.5)]
    assert result.requests.reason[0] == "no answer within the timeout of 2.5 s"
    assert list(result.token_times(0)) == [1.0, 2.0, 3.0]
    assert result.steps.end.max() == 3.0
    assert result.summary["num_timed_out"] == result.summary["failed"] == 1
    assert result.summary["wasted_input_tokens"] == 10
    assert result.summary["wasted_output_tokens"] == 3


def test_a_waiting_request_leaves_the_queue_at_once():
    result = run([10, 10], [9, 9], clients=[one_by_one()], each=[None, {"timeout": 2.5}])
    assert ends(result) == [("finished", 9.0), ("timed_out", 2.5)]
    assert result.recorder.visits.columns()["finished_at"].tolist() == [2.5, 9.0]
    assert result.summary["wasted_input_tokens"] == 0


def test_a_prompt_in_pieces_is_given_up_with_what_was_computed_of_it():
    chunked = engine(ChunkedScheduler(max_num_seqs=4, max_num_batched_tokens=10))
    result = run([100], [5], clients=[chunked], timeout=2.5)
    assert ends(result) == [("timed_out", 2.5)]
    assert result.summary["wasted_input_tokens"] == 30
    assert result.summary["wasted_output_tokens"] == 0


def test_a_ttft_timeout_is_for_those_without_token():
    result = run([10, 10], [9, 9], clients=[one_by_one()], ttft_timeout=2.5)
    assert ends(result) == [("finished", 9.0), ("timed_out", 2.5)]
    assert "no first token within the ttft_timeout of 2.5 s" in result.requests.reason[1]


def test_on_the_way_to_the_engine():
    late = engine(request_overhead=2.0, early_rejection=True)
    result = run([10, 10], [1, 1], clients=[late], each=[{"timeout": 0.5}, None])
    assert ends(result) == [("timed_out", 0.5), ("finished", 3.0)]
    slow = engine(request_overhead=1.0, prompt_token_overhead=0.1, early_rejection=True)
    result = run([10, 30], [1, 1], clients=[slow], each=[{"ttft_deadline": 3.5}] * 2)
    assert ends(result) == [("finished", 3.0), ("rejected", 0.0)]


# --- workers ------------------------------------------------------------------------------------


def workers():
    return SequentialClient("cpu", serves=["tool_call"], service_time=lambda stage: stage.duration)


def test_a_time_out_covers_all_stages():
    pipeline = template([ToolCall(duration=2.0), Prefill, Decode])
    result = run([10], [5], clients=[workers(), engine()], pipeline=pipeline, timeout=4.0)
    assert ends(result) == [("timed_out", 4.0)]
    assert result.requests.first_token_at[0] == 3.0


# --- users who go away --------------------------------------------------------------------------


def test_a_user_who_goes_away_cancels():
    always = UniformDuration(low=2.4, high=2.5)
    result = run([10], [9], patience=always)
    assert result.requests.status[0] == "cancelled"
    assert 2.4 <= result.requests.finished_at[0] <= 2.5
    assert (result.summary["num_cancelled"], result.summary["num_timed_out"]) == (1, 0)


@pytest.mark.parametrize(
    ("distribution", "mean", "std"),
    [
        (ExponentialDuration(mean=30.0), 30.0, 30.0),
        (LogNormalDuration(mean=30.0, std=10.0), 30.0, 10.0),
        (UniformDuration(low=10.0, high=20.0), 15.0, 10.0 / 12**0.5),
    ],
)
def test_patience_has_its_mean_and_a_stream_of_its_own(distribution, mean, std):
    number = 4_000
    plain = Workload.from_lists([1] * number, [1] * number)
    limits = TimeLimits(patience=distribution)
    workload = Workload(plain.source, plain.arrivals, time_limits=limits)
    drawn = np.array([request.limits.patience for request in workload.requests(Streams(3))])
    assert (drawn > 0).all()
    assert abs(drawn.mean() - mean) < 5 * std / number**0.5


def test_users_of_closed_loop_go_on_after_failure():
    loop = ClosedLoop(concurrency=1, think_time=1.0)
    result = run([10] * 3, [9] * 3, arrivals=loop, timeout=2.5)
    assert list(result.requests.arrival_time) == [0.0, 3.5, 7.0]
    assert set(result.requests.status) == {"timed_out"}


# --- retries ------------------------------------------------------------------------------------

ONCE_A_SECOND = Retries(max_attempts=4, backoff=1.0, factor=1.0, jitter=0.0)


def test_a_request_is_sent_again_after_time_out():
    """The first attempt waits behind a long answer; the third finds the engine free."""
    result = run(
        [10, 10],
        [7, 2],
        clients=[one_by_one()],
        each=[None, {"ttft_timeout": 2.0}],
        retries=ONCE_A_SECOND,
    )
    request = result.requests.iloc[1]
    assert (request.status, request.num_attempts, request.sent_at) == ("finished", 3, 6.0)
    assert list(result.token_times(1)) == [8.0, 9.0]
    assert (request.ttft, request.e2el) == (8.0, 9.0)
    assert result.summary["num_retries"] == 2
    assert result.summary["completed"] == 2


def test_the_last_attempt_decides():
    result = run([10], [9], timeout=2.5, retries=ONCE_A_SECOND)
    assert ends(result) == [("timed_out", 2.5 * 4 + 3)]
    assert result.summary["num_timed_out"] == 1
    assert result.summary["num_retries"] == 3
    assert result.summary["wasted_output_tokens"] == 4 * 3
    assert result.summary["wasted_input_tokens"] == 4 * 10
    assert len(result.token_times(0)) == 3


def test_waits_grow_up_to_a_longest_and_jitter_shortens_them():
    retries = Retries(max_attempts=9, backoff=1.0, factor=3.0, max_backoff=5.0, jitter=0.5)
    assert [retries.wait(k, 0.0) for k in (1, 2, 3, 99)] == [1.0, 3.0, 5.0, 5.0]
    assert retries.wait(1, 0.5) == 0.75


def test_jitter_follows_the_seed():
    def sent_at(seed):
        return run([10], [9], timeout=2.5, retries=Retries(), seed=seed).requests.sent_at[0]

    assert sent_at(0) == sent_at(0) != sent_at(1)


class After:
    """Everybody goes away after the same time."""

    def __init__(self, seconds):
        self.seconds = seconds

    def sample(self, rng, n):
        return np.full(n, self.seconds)


def one_by_one(**options):
    return engine(ContinuousScheduler(max_num_seqs=1), **options)


TOOL = template([ToolCall(duration=2.0)])
SECOND_TURN = template([Prefill, Decode, ToolCall(duration=9.0), Prefill, Decode])
FATES = {
    "finishes at the very end of its time-out": (
        lambda: run([10], [3], timeout=3.0),
        [("finished", 3.0)],
    ),
    "times out between two steps": (lambda: run([10], [4], timeout=3.0), [("timed_out", 3.0)]),
    "memory of who gave up is free for others": (
        lambda: run([16, 150], [100, 2], clients=[engine(None, 10)], each=[{"timeout": 3.5}, None]),
        [("timed_out", 3.5), ("finished", 6.0)],
    ),
    "a second turn has no ttft_timeout": (
        lambda: run(
            [10], [2], clients=[engine(), workers()], pipeline=SECOND_TURN, ttft_timeout=2.5
        ),
        [("finished", 13.0)],
    ),
    "a static batch goes on without who gave up": (
        lambda: run(
            [10, 10, 10],
            [9, 3, 2],
            [0.0, 0.0, 0.5],
            clients=[engine(StaticScheduler())],
            each=[{"timeout": 4.5}, None, None],
        ),
        [("timed_out", 4.5), ("finished", 3.0), ("finished", 7.0)],
    ),
    "workers let go at once and take the next": (
        lambda: run(
            [1] * 3,
            [1] * 3,
            clients=[workers()],
            pipeline=TOOL,
            each=[{"timeout": 0.5}, {"timeout": 0.25}, None],
        ),
        [("timed_out", 0.5), ("timed_out", 0.25), ("finished", 2.5)],
    ),
    "a service that ends with the time-out is served": (
        lambda: run([1], [1], clients=[workers()], pipeline=TOOL, timeout=2.0),
        [("finished", 2.0)],
    ),
    "patience that ends earlier cancels": (
        lambda: run(
            [10, 10],
            [9, 9],
            clients=[one_by_one()],
            each=[{"ttft_timeout": 2.5, "patience": After(2.25)}] * 2,
        ),
        [("cancelled", 2.25)] * 2,
    ),
    "patience cancels where the first token is there": (
        lambda: run([10], [9], each=[{"ttft_timeout": 2.5, "patience": After(2.5)}]),
        [("cancelled", 2.5)],
    ),
    "who comes when another gives up finds the queue full": (
        lambda: run(
            [10] * 3,
            [4] * 3,
            [0.0, 0.5, 1.5],
            clients=[one_by_one(max_num_waiting=1)],
            each=[None, {"timeout": 1.0}, None],
        ),
        [("finished", 4.0), ("timed_out", 1.5), ("rejected", 1.5)],
    ),
    "what can never be served is not sent again": (
        lambda: run([500], [2], clients=[engine(num_gpu_blocks=10)], retries=Retries()),
        [("rejected", 0.0)],
    ),
    "failures that are not named are not tried again": (
        lambda: run([10], [9], timeout=2.5, retries=Retries(on=("rejected",))),
        [("timed_out", 2.5)],
    ),
}


@pytest.mark.parametrize("name", FATES)
def test_who_ends_how_and_when(name):
    make, expected = FATES[name]
    result = make()
    assert ends(result) == expected
    assert set(result.requests.num_attempts) == {1}


GONE, BETWEEN = "the user went away", "the user went away between two attempts"
LATE, LATE_TOKEN = (
    "no answer within the timeout of 2.5 s",
    "no first token within the ttft_timeout of 2.5 s",
)


@pytest.mark.parametrize(
    ("limit", "patience", "retries", "status", "reason", "num_attempts"),
    [
        ("timeout", 3.25, ONCE_A_SECOND, "cancelled", BETWEEN, 1),
        ("timeout", 3.5, ONCE_A_SECOND, "cancelled", BETWEEN, 1),  # exactly at the resend
        ("timeout", 3.75, ONCE_A_SECOND, "cancelled", GONE, 2),
        ("timeout", 2.5, None, "timed_out", LATE, 1),  # the program is told first
        ("timeout", 2.5, ONCE_A_SECOND, "cancelled", BETWEEN, 1),  # no attempt follows
        ("ttft_timeout", 2.5, None, "timed_out", LATE_TOKEN, 1),
        ("ttft_timeout", 2.5, ONCE_A_SECOND, "cancelled", BETWEEN, 1),
    ],
)
def test_patience_covers_all_attempts(limit, patience, retries, status, reason, num_attempts):
    """Of who waits behind an answer of nine seconds, for 2.5 s each time."""
    limits = {limit: 2.5, "patience": After(patience)}
    result = run([10, 10], [9, 9], clients=[one_by_one()], each=[None, limits], retries=retries)
    second = result.requests.iloc[1]
    assert (second.status, second.finished_at) == (status, patience)
    assert (second.reason, second.num_attempts) == (reason, num_attempts)
    assert result.summary["num_retries"] == num_attempts - 1


def test_of_two_time_outs_that_end_together_the_first_token_is_named():
    result = run([10, 10], [9, 9], clients=[one_by_one()], timeout=2.5, ttft_timeout=2.5)
    assert ends(result) == [("timed_out", 2.5)] * 2
    assert result.requests.reason.tolist() == [
        "no answer within the timeout of 2.5 s",
        "no first token within the ttft_timeout of 2.5 s",
    ]


def test_a_user_of_a_closed_loop_who_went_away_between_two_attempts_goes_on_at_once():
    """Timed out at 2.5 s and gone at 3.25 s, before the resend: the next question comes then."""
    result = run(
        [10] * 2,
        [9] * 2,
        arrivals=ClosedLoop(concurrency=1),
        timeout=2.5,
        patience=After(3.25),
        retries=ONCE_A_SECOND,
    )
    assert list(result.requests.arrival_time) == [0.0, 3.25]
    assert ends(result) == [("cancelled", 3.25), ("cancelled", 6.5)]


def test_the_share_of_good_requests_is_among_those_that_count():
    """Of four that arrive after the warm-up, two have their first token in time.

    0 s: good, but in the warm-up. 4 s: good, and the other waits until 6 s and has its first token
    after 3 s. 8 s: good. 12 s: times out. So 2 of 4 are good, and 2 in the 9.5 s up to 12.5 s.
    """
    plain = Workload.from_lists([10] * 5, [2] * 5, [0.0, 4.0, 4.0, 8.0, 12.0])
    result = Simulation(
        clients=[engine(ContinuousScheduler(max_num_seqs=1))],
        workload=GivenLimits(plain, [None] * 4 + [{"timeout": 0.5}]),
        slo=Slo(ttft=2.0),
        warmup=3.0,
    ).run()
    assert result.requests.ttft.tolist()[:4] == [1.0, 1.0, 3.0, 1.0]
    assert (result.summary["completed"], result.summary["failed"]) == (3, 1)
    assert result.summary["good_request_fraction"] == 2 / 4
    assert result.summary["request_goodput"] == 2 / 9.5


# --- engines that turn requests away --------------------------------------------------------------


def test_full_queue_refuses_and_refused_may_come_again():
    small = one_by_one(max_num_waiting=1)
    times = [0.0, 0.5, 0.6]
    result = run([10] * 3, [2] * 3, times, clients=[small])
    assert ends(result) == [("finished", 2.0), ("finished", 4.0), ("rejected", 0.6)]
    assert result.requests.reason[2] == "llm: busy, max_num_waiting=1 requests wait"
    again = run([10] * 3, [2] * 3, times, clients=[small], retries=Retries(jitter=0.0, backoff=2.0))
    assert ends(again)[2] == ("finished", 6.0)


def test_expired_requests_are_dropped_while_they_wait():
    one = engine(ContinuousScheduler(max_num_seqs=1), drop_expired=True)
    result = run([10] * 2, [5] * 2, clients=[one], ttft_deadline=3.0)
    assert ends(result) == [("finished", 5.0), ("rejected", 3.0)]
    assert "its first token was due while it waited" in result.requests.reason[1]


def test_deadlines_by_priority_order_the_queue():
    one = engine(ContinuousScheduler(max_num_seqs=1, order="earliest_deadline_first"))
    each = [{"ttft_deadline": seconds} if seconds else None for seconds in (9.0, None, 8.0, 3.0)]
    result = run([10] * 4, [1] * 4, clients=[one], each=each)
    assert list(result.requests.finished_at) == [3.0, 4.0, 2.0, 1.0]


# --- refused -------------------------------------------------------------------------------------


test_nonsense_is_refused = refused(
    lambda make: make(),
    (lambda: TimeLimits(timeout=0.0), "timeout must be finite and > 0 s, got 0.0"),
    (lambda: TimeLimits(ttft_deadline={3: -1.0}), "ttft_deadline.3 must be finite and > 0"),
    (lambda: AdmissionControl(max_num_waiting=0), "max_num_waiting must be >= 1, got 0"),
    (lambda: Retries(max_attempts=0), r"max_attempts must be in \[1, 100\], got 0"),
    (lambda: Retries(backoff=9.0), r"max_backoff must be finite and >= backoff \(9.0 s\)"),
    (lambda: Retries(factor=0.5), r"factor must be in \[1, 100\], got 0.5"),
    (lambda: Retries(jitter=1.5), r"jitter must be in \[0, 1\], got 1.5"),
    (lambda: Retries(on=()), "on must have at least one entry"),
    (lambda: Retries(on=("cancelled",)), "on has no .cancelled.. Known: timed_out, rejected, lost"),
    (lambda: ExponentialDuration(mean=0.0), "mean must be finite and > 0 s"),
    (lambda: LogNormalDuration(mean=1.0, std=900.0), "std must be <= 100 x mean"),
    (lambda: UniformDuration(low=3.0, high=3.0), "high must be finite and > low"),
    (lambda: UniformDuration(low=-1.0, high=3.0), "low must be finite and >= 0 s"),
    error=ValueError,
)


def test_a_distribution_must_draw_times():
    class Broken:
        def sample(self, rng, n):
            return np.zeros(n)

    with pytest.raises(ScenarioError, match="patience must be > 0 s, got 0.0"):
        run([1], [1], patience=Broken())
