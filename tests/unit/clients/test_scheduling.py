"""Batching policies, orders and limits, each by hand: every step takes one second."""

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from mist_sim import Cluster, RooflinePredictor, llm_client, load_model
from mist_sim.clients.scheduling import (
    SCHEDULERS,
    ChunkedScheduler,
    ContinuousScheduler,
    MixedScheduler,
    StaticScheduler,
)
from mist_sim.clients.scheduling.order import ORDERS, Ranked, waiting_queue
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.core.request import Request
from mist_sim.core.visit import Visit
from mist_sim.hardware import load_gpu
from mist_sim.hardware.predictors import EngineOverhead, PredictorTraits, with_drafting
from mist_sim.hardware.sampling import Sampling
from mist_sim.models.speculative import SpeculativeConfig
from mist_sim.simulation import Simulation
from mist_sim.stages import completion
from mist_sim.testing import check_predictor
from mist_sim.traces import Workload
from tests.reference.engines import llm_engine
from tests.reference.predictors import ConstantPredictor
from tests.refusals import refused


def run(scheduler, prompts, outputs, times, priorities=None, contents=None, **engine):
    options = {"predictor": ConstantPredictor(1.0), "num_gpu_blocks": 1000} | engine
    client = llm_engine("llm", scheduler=scheduler, **options)
    workload = Workload.from_lists(prompts, outputs, times)
    if priorities or contents:
        requests = list(workload.requests(None))
        for number, request in enumerate(requests):
            request.priority = priorities[number] if priorities else 0
            request.content = (contents or {}).get(number, ())
        workload = Fixed(requests)
    return Simulation(clients=[client], workload=workload).run()


class Fixed:
    """A workload of given requests."""

    closed_loop = None
    max_concurrency = None
    retries = None
    untold = ""

    def __init__(self, requests):
        self._requests = requests

    def requests(self, streams):
        return iter(self._requests)


def tokens(result):
    return [result.token_times(request_id).tolist() for request_id in result.requests.request_id]


# --- MIST, Fig. 3: request 1 decodes when 2 and 3 arrive ---------------------------------------


@pytest.mark.parametrize(
    ("scheduler", "prompt", "expected"),
    [
        (StaticScheduler(), 10, [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0], [5.0, 6.0]]),
        (ContinuousScheduler(), 10, [[1.0, 2.0, 4.0, 5.0], [3.0, 4.0, 5.0], [3.0, 4.0]]),
        (MixedScheduler(), 10, [[1.0, 2.0, 3.0, 4.0], [3.0, 4.0, 5.0], [3.0, 4.0]]),
        (  # 5 tokens of the second prompt in each of two steps, and then 5 of the third
            ChunkedScheduler(max_num_seqs=4, max_num_batched_tokens=6),
            6,
            [[1.0, 2.0, 3.0, 4.0], [4.0, 5.0, 6.0], [6.0, 7.0]],
        ),
    ],
    ids=["static", "continuous", "mixed", "chunked"],
)
def test_newcomers_wait_for_the_batch_for_prompts_or_not_at_all(scheduler, prompt, expected):
    result = run(scheduler, [prompt, 10, 10], [4, 3, 2], [0.0, 1.5, 1.5])
    assert tokens(result) == expected


# --- limits ------------------------------------------------------------------------------------


def test_prompt_tokens_of_a_step_are_limited():
    times = [0.0, 0.0, 0.0]
    assert tokens(run(MixedScheduler(max_num_batched_tokens=20), [10] * 3, [1] * 3, times)) == [
        [1.0], [1.0], [2.0],
    ]  # fmt: skip


def test_a_threshold_lets_a_second_prompt_share_budget():
    """100 and 20 tokens, 40 a step: the short one waits, unless the long one leaves room."""
    long_first = ([100, 20], [1, 1], [0.0, 0.0])
    alone = ChunkedScheduler(max_num_seqs=8, max_num_batched_tokens=40)
    assert tokens(run(alone, *long_first)) == [[3.0], [3.0]]
    shared = ChunkedScheduler(
        max_num_seqs=8, max_num_batched_tokens=40, long_prefill_token_threshold=20
    )
    assert tokens(run(shared, *long_first)) == [[5.0], [1.0]]


@pytest.mark.parametrize(("pieces", "second"), [(1, 9.0), (2, 5.0)])
def test_prompts_in_pieces_are_limited(pieces, second):
    scheduler = ChunkedScheduler(
        max_num_seqs=8,
        max_num_batched_tokens=40,
        long_prefill_token_threshold=20,
        max_num_partial_prefills=pieces,
    )
    assert tokens(run(scheduler, [100, 100], [1, 1], [0.0, 0.0])) == [[5.0], [second]]


def test_the_longest_context_ends_answers_and_refuses_prompts():
    result = run(ChunkedScheduler(), [10, 16, 15], [20, 1, 9], [0.0] * 3, max_model_len=16)
    assert list(result.requests.num_output_tokens) == [6, 0, 1]
    assert (
        "16 tokens leaves no room for an answer in max_model_len=16" in (result.requests.reason[1])
    )


def test_a_watermark_keeps_newcomers_out_of_full_cache():
    """Ten blocks: with two kept free, a third prompt of three blocks has to wait."""
    work = ([48, 48, 40], [3, 3, 2], [0.0, 0.0, 0.0])
    assert tokens(run(ChunkedScheduler(), *work, num_gpu_blocks=10))[2][0] == 1.0
    late = run(ChunkedScheduler(), *work, num_gpu_blocks=10, watermark=0.2)
    assert tokens(late)[2][0] == 4.0
    alone = run(ChunkedScheduler(), [150], [5], [0.0], num_gpu_blocks=10, watermark=0.5)
    assert alone.summary["completed"] == 1


# --- orders ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("fcfs", [1.0, 2.0, 3.0, 4.0]),
        ("shortest_prompt_first", [1.0, 4.0, 2.0, 3.0]),
        ("least_work_left", [1.0, 4.0, 2.0, 3.0]),
        ("priority", [1.0, 3.0, 4.0, 2.0]),
    ],
)
def test_orders_choose_who_is_next(order, expected):
    """One place; while the first runs, prompts of 30, 10 and 20 tokens queue up."""
    scheduler = ContinuousScheduler(max_num_seqs=1, order=order)
    result = run(scheduler, [5, 30, 10, 20], [1] * 4, [0.0, 0.1, 0.2, 0.3], [0, 5, 5, 1])
    assert [times[0] for times in tokens(result)] == expected


def test_least_work_counts_the_answer_of_preempted_request():
    """Two requests of 16 + 40 tokens share four blocks; the later one is sent back with 33."""
    jobs = ([16, 16, 20], [40, 40, 1], [0.0, 0.0, 1.5])
    by_work = run(ChunkedScheduler(order="least_work_left"), *jobs, num_gpu_blocks=4)
    by_prompt = run(ChunkedScheduler(order="shortest_prompt_first"), *jobs, num_gpu_blocks=4)
    assert by_work.requests.num_preemptions[1] == by_prompt.requests.num_preemptions[1] == 1
    assert by_work.requests.first_token_at[2] < by_prompt.requests.first_token_at[2]


def test_priority_decides_who_gives_memory_up():
    """The urgent request came last; first come first served would send it back."""
    jobs = ([16, 16], [40, 40], [0.0, 1.5])
    by_priority = run(ChunkedScheduler(order="priority"), *jobs, [1, 0], num_gpu_blocks=4)
    assert list(by_priority.requests.num_preemptions) == [1, 0]
    by_arrival = run(ChunkedScheduler(), *jobs, [1, 0], num_gpu_blocks=4)
    assert list(by_arrival.requests.num_preemptions) == [0, 1]


# --- who takes blocks when (vLLM v1) -------------------------------------------------------------


EAGLE = SpeculativeConfig(method="eagle", num_speculative_tokens=1, acceptance_rate=0.5)


WITHOUT_STATIC = pytest.mark.parametrize(
    "kind", [ChunkedScheduler, ContinuousScheduler, MixedScheduler]
)


@WITHOUT_STATIC
def test_decodes_that_stay_go_on_in_one_run(kind):
    """Two of 8 + 40 tokens and room for 60: two prefills of the one, and each stay of decodes."""
    result = run(kind(), [8, 8], [40, 40], [0.0, 0.0], num_gpu_blocks=15, block_size=4)
    assert list(result.requests.num_preemptions) == [0, 1]
    assert len(result.steps) == 5


@pytest.mark.parametrize("order", ORDERS)
def test_giving_up_from_long_queue_takes_no_search(order):
    """Every third leaves, from anywhere; a search would compare it with those before it."""
    queue, waiting = waiting_queue(order), [Compared(number) for number in range(1_000)]
    for sequence in waiting:
        queue.add(sequence)
    for sequence in waiting[500::3]:
        queue.remove(sequence)
    assert sum(sequence.num_compared for sequence in waiting) == 0
    stay = [sequence for sequence in waiting if sequence not in waiting[500::3]]
    assert len(queue) == len(stay)
    assert [queue.take() for _ in range(len(queue))] == stay


@pytest.mark.parametrize("order", ORDERS)
def test_a_sequence_that_was_taken_from_the_middle_may_come_back(order):
    """It is the head at its turn, once; its old place in the queue is gone."""
    queue, waiting = waiting_queue(order), [Compared(number) for number in range(4)]
    for sequence in waiting:
        queue.add(sequence)
    queue.remove(waiting[2])
    queue.add(waiting[2])
    assert len(queue) == len(list(queue)) == 4
    assert {queue.take() for _ in range(4)} == set(waiting)
    assert len(queue) == 0


class Compared(SequenceState):
    """Counts how often it is compared with another one."""

    def __init__(self, number):
        request = Request(number, 0.0, completion(1, 1), 1, 1)
        super().__init__(Visit(request, request.stages, 0.0), 1, 1)
        self.arrival = number
        self.num_compared = 0

    def __eq__(self, other):
        self.num_compared += 1
        return self is other

    def __hash__(self):
        return hash(self.arrival)


test_nonsense_is_refused = refused(
    lambda scheduler, options: scheduler(**options),
    (ChunkedScheduler, {"order": "sjf"}, "order has no 'sjf'.*Known: fcfs"),
    (ChunkedScheduler, {"max_num_seqs": 0}, "max_num_seqs must be >= 1, got 0"),
    (ChunkedScheduler, {"max_num_partial_prefills": 0}, "max_num_partial_prefills must be"),
    (ChunkedScheduler, {"long_prefill_token_threshold": 0}, "token_threshold must be >= 1"),
    (StaticScheduler, {"max_num_batched_tokens": 0}, "max_num_batched_tokens must be >= 1"),
    error=ValueError,
)


@pytest.mark.parametrize("name", sorted(SCHEDULERS))
def test_a_policy_never_changes(name):
    with pytest.raises(FrozenInstanceError):
        SCHEDULERS[name]().max_num_seqs = 3


def test_an_order_of_ones_own():
    class LongestPromptFirst(ContinuousScheduler):
        def new_queue(self):
            return Ranked(lambda sequence: -sequence.num_prompt_tokens)

    result = run(LongestPromptFirst(max_num_seqs=1), [5, 6, 8, 7], [1] * 4, [0.0, 0.5, 0.5, 0.5])
    assert tokens(result) == [[1.0], [4.0], [2.0], [3.0]]


# --- overhead ----------------------------------------------------------------------------------


def test_step_overhead_adds_up_or_hides_behind_kernels():
    added = EngineOverhead(step=0.25).around(ConstantPredictor(1.0))
    hidden = EngineOverhead(step=0.25).around(ConstantPredictor(1.0), overlapped=True)
    longer = EngineOverhead(step=1.5).around(ConstantPredictor(1.0), overlapped=True)
    assert [p.step_time(StepBatch()) for p in (added, hidden, longer)] == [1.25, 1.0, 1.5]
    prompts = EngineOverhead(step=0.25, prefill_step=0.5).around(
        ConstantPredictor(1.0), overlapped=True
    )
    assert prompts.step_time(StepBatch(((7, 0),))) == 1.5
    assert prompts.run(StepBatch(((7, 0),)), StepGrowth(), 2).tolist() == [1.5, 1.5]
    assert [p.run(StepBatch(), StepGrowth(), 2).tolist() for p in (added, hidden, longer)] == [
        [1.25, 1.25], [1.0, 1.0], [1.5, 1.5],
    ]  # fmt: skip


def test_host_time_that_nothing_hides_comes_on_top():
    """Kernels of 1 s, a host of 0.25 s, exposed 0.5 s and 0.125 s a sequence; two sequences."""
    overhead = EngineOverhead(step=0.25, exposed_step=0.5, exposed_sequence=0.125)
    ahead = overhead.around(ConstantPredictor(1.0), overlapped=True)
    batch = StepBatch(((7, 0),), 1, 9)
    assert ahead.step_time(batch) == 1.0 + 0.5 + 2 * 0.125
    assert ahead.run(batch, StepGrowth(1), 2).tolist() == [1.75, 1.75]
    assert ahead.step_time_on_the_spot(batch) == 1.75  # which has the host's own 0.25 in it
    one = run(
        ChunkedScheduler(), [10], [3], [0.0], predictor=ahead, async_scheduling=True
    )  # fmt: skip
    assert tokens(one) == [[1.625, 3.25, 4.875]]


def test_host_below_kernels_shows_in_first_step_alone():
    """What the pages say of `overhead.step` with async scheduling."""
    arrivals = [0.0] * 3
    hidden, bare = (
        run(
            ChunkedScheduler(),
            [10] * 3,
            [50, 20, 9],
            arrivals,
            predictor=EngineOverhead(step=step).around(ConstantPredictor(1.0), overlapped=True),
            async_scheduling=True,
        )
        for step in (0.75, 0.0)
    )
    assert tokens(hidden) == [[time + 0.75 for time in times] for times in tokens(bare)]


def test_every_sequence_of_a_step_adds_its_share():
    around = EngineOverhead(step=0.25, sequence=0.125).around(ConstantPredictor(1.0))
    batch = StepBatch(((8, 0), (9, 40)), 3, 300)
    assert around.step_time(batch) == 1.25 + 5 * 0.125
    assert around.run(batch, StepGrowth(3), 2).tolist() == [1.875, 1.875]


def test_what_a_scenario_does_not_say_is_what_was_fitted_with_the_gpu():
    gpu = replace(load_gpu("h100-sxm"), overhead={"step": 0.1, "sequence": 0.01, "request": 0.5})
    greedy = Sampling(temperature=0)  # takes no time of its own
    options = {"gpu": gpu, "async_scheduling": False, "sampling": greedy}  # host and GPU in turn
    no_sequence = llm_client("llm", **options, overhead=EngineOverhead(sequence=0.0))
    predictor = no_sequence.predictor.ranks[0]
    kernels = predictor.predictor.step_time(StepBatch((), 4, 40))
    assert predictor.step_time(StepBatch((), 4, 40)) == 0.1 + kernels
    every = llm_client("llm", **options).predictor.ranks[0]
    assert every.step_time(StepBatch((), 4, 40)) == pytest.approx(0.14 + kernels)
    constant = ConstantPredictor(1.0)
    assert llm_client("llm", gpu=gpu, predictor=constant).predictor.ranks == (constant,)


@pytest.mark.parametrize("overlapped", [False, True])
def test_overheads_keep_the_bits_of_runs(overlapped):
    overhead = EngineOverhead(
        step=1.3e-3,
        sequence=7.7e-5,
        prefill_step=3.1e-4,
        exposed_step=1.7e-4,
        exposed_sequence=1.3e-6,
    )
    roofline = RooflinePredictor(load_model("llama-3.1-8b"), Cluster(load_gpu("h100-sxm")))
    check_predictor(lambda: overhead.around(roofline, overlapped=overlapped))


def test_overhead_is_added_where_kernels_alone_are_timed():
    greedy = Sampling(temperature=0)
    roofline = llm_client("llm", async_scheduling=False, sampling=greedy).predictor.ranks[0]
    assert roofline.step_time(StepBatch((), 1, 10)) == pytest.approx(
        1.3e-3 + 47.8e-6 + roofline.predictor.step_time(StepBatch((), 1, 10))
    )
    whole_steps = ConstantPredictor(1.0)
    assert llm_client("llm", predictor=whole_steps).predictor.ranks == (whole_steps,)


def test_a_source_of_kernels_may_have_an_overhead_of_its_own():
    class Kernels(ConstantPredictor):
        traits = PredictorTraits(kernels_only=True, beyond_kernels=(0.5, 0.125), times_drafts=True)

    batch = StepBatch((), 3, 30)
    assert EngineOverhead().around(Kernels(1.0)).step_time(batch) == 1.875
    assert EngineOverhead(step=0.25).around(Kernels(1.0)).step_time(batch) == 1.625
    assert EngineOverhead(sequence=0.0).around(Kernels(1.0)).step_time(batch) == 1.5
    drafts = SpeculativeConfig(
        method="ngram", num_speculative_tokens=2, acceptance_rate=0.5, drafting_time=0.0
    )
    drafted = with_drafting(Kernels(1.0), drafts, None).ranks[0]
    assert EngineOverhead().around(drafted).step_time(batch) == 1.875


def test_request_overhead_comes_before_the_queue():
    result = run(ChunkedScheduler(), [10], [2], [1.0], overhead=EngineOverhead(request=0.5))
    assert tokens(result) == [[2.5, 3.5]]
    assert result.requests.queued[0] == 0.5
    assert result.clients.num_visits[0] == 1


def test_prompts_come_to_queue_as_they_are_tokenised():
    """Arrivals that are late by as much give the same times, and short prompts overtake."""
    prompts, arrivals = [40, 10, 8, 25], [1.0, 1.25, 7.0, 7.5]
    late = run(
        ChunkedScheduler(), prompts, [2] * 4, arrivals, overhead=EngineOverhead(prompt_token=0.125)
    )
    entered = [1.0 + 5.0, 1.25 + 1.25, 7.0 + 1.0, 7.5 + 3.125]
    order = np.argsort(entered)
    plain = run(
        ChunkedScheduler(), [prompts[i] for i in order], [2] * 4, [entered[i] for i in order]
    )
    assert [tokens(late)[i] for i in order] == tokens(plain)
    assert tokens(late)[0] > tokens(late)[1]


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_overheads_are_times(value):
    with pytest.raises(ValueError, match="request must be finite and >= 0 s"):
        EngineOverhead(request=value)
