"""What routers see of clients: counts, KV memory and prefixes, between the ends of runs too."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from mist_sim import ChunkedScheduler, Simulation, Workload
from mist_sim.clients.kv_cache import ContentHistory, SwapSpace
from mist_sim.core.candidates import Candidates
from mist_sim.core.request import Request
from mist_sim.core.views import NUMBERS, AnswerLengths, ClientView
from mist_sim.stages import completion
from tests.reference.comparison import OfJobs
from tests.reference.engines import llm_engine
from tests.reference.predictors import ConstantPredictor
from tests.reference.stepwise import Job

BLOCK = 4


@dataclass
class Spy:
    """Notes what is seen of the only candidate at every choice."""

    look: object
    seen: list[object] = field(default_factory=list)

    def choose(self, request, stage, candidates):
        if self.look is by_index:
            self.seen.append(candidates.longest_prefix(request, 99)[1])
        else:
            self.seen.append(self.look(candidates[0], request))
        return candidates[0].client_id


def spied(
    jobs: list[Job], look, *, num_blocks=1000, max_num_seqs=1, preemption="recompute", **options
):
    """Return what `look` saw when each job arrived at a client with steps of 1 s."""
    scheduler = ChunkedScheduler(
        max_num_seqs=max_num_seqs, max_num_batched_tokens=16, preemption=preemption
    )
    client = llm_engine(
        "llm",
        scheduler=scheduler,
        predictor=ConstantPredictor(1.0),
        num_gpu_blocks=num_blocks,
        block_size=BLOCK,
        **options,
    )
    plain = Workload.from_lists(
        [job.num_prompt_tokens for job in jobs],
        [job.num_output_tokens for job in jobs],
        [job.arrival_time for job in jobs],
    )
    spy = Spy(look)
    jobs_there = OfJobs(plain.source, plain.arrivals, jobs=tuple(jobs))
    Simulation(clients=[client], workload=jobs_there, router=spy).run()
    return spy.seen


def probes(times, content) -> list[Job]:
    """Requests that wait behind another, so that they cut no run."""
    return [Job(time, 161, 1, content=content) for time in times]


def prefix(view, request):
    return view.prefix_tokens(request)


by_index = object()  # the same, as candidates find it


def test_a_chunk_is_found_from_the_start_of_its_step_on():
    times = [0.5, 1.0, 1.5, 2.0, 9.5, 10.5]
    jobs = [Job(0.0, 160, 5, content=((7, 160),)), *probes(times, ((7, 160),))]
    assert spied(jobs, prefix) == [0, 16, 16, 32, 32, 160, 160]


def test_blocks_that_decodes_took_are_found_no_more():
    """Of 22 blocks 20 keep a prompt; a decode takes one of them for its 9th, 13th, ... token.

    A step takes its blocks when it starts: that of the 9th token at 15 s.
    """
    later = [10.5, 15.5, 16.0, 16.5, 20.5, 52.0]
    again = [Job(time, 81, 1, content=((7, 80),)) for time in later]
    jobs = [Job(0.0, 80, 1, content=((7, 80),)), Job(10.0, 4, 60), *again]
    assert spied(jobs, prefix, num_blocks=22) == [0, 0, 80, 76, 76, 76, 72, 40]


def test_without_prefix_caching_nothing_is_found():
    jobs = [Job(0.0, 80, 1, content=((7, 80),)), Job(10.0, 81, 1, content=((7, 80),))]
    assert spied(jobs, prefix, enable_prefix_caching=False) == [0, 0]


def test_of_several_engines_the_next_one_counts():
    """The second request goes to the other engine, which has nothing; then the first is free."""
    jobs = [Job(time, 81, 1, content=((7, 80),)) for time in (0.0, 1.0, 2.0, 50.0)]
    assert spied(jobs, prefix, data_parallel_size=2) == [0, 0, 32, 80]


def test_blocks_are_there_when_a_step_starts_and_tokens_when_it_ends():
    """A prompt of 30 tokens takes 2 steps; then a decode has one token more each second."""
    times = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.5, 5.0, 8.5]
    jobs = [Job(0.0, 30, 20), *probes(times, ())]

    def memory(view, request):
        return view.num_kv_blocks, view.num_kv_tokens

    held = [(0, 0), (0, 0), (4, 0), (4, 16), (8, 16), (8, 30), (8, 30), (8, 31), (9, 33), (10, 36)]
    assert spied(jobs, memory) == held


def test_chunks_of_prompt_hold_tokens_step_by_step():
    jobs = [Job(0.0, 160, 5), *probes([0.5, 1.0, 1.5, 2.0, 9.5, 10.5], ())]
    held = spied(jobs, lambda view, _: view.num_kv_tokens)
    assert held == [0, 0, 16, 16, 32, 144, 160]


def test_index_knows_what_run_enters_before_its_end():
    content = ((7, 16), (8, 144))
    jobs = [Job(0.0, 160, 5, content=content), *probes([0.5, 1.5, 9.5], content)]
    found = spied(jobs, by_index)
    assert found == [0, 16, 32, 160]


def test_what_is_swapped_out_waits_without_tokens_to_compute():
    """Two requests run until 8 blocks are too few; the second one is swapped out before 7.5 s."""
    jobs = [Job(0.0, 12, 15), Job(0.0, 12, 15), *[Job(time, 8, 1) for time in (4.5, 7.5, 8.5)]]
    seen = spied(
        jobs,
        lambda view, _: (view.num_waiting, view.num_waiting_tokens),
        num_blocks=8,
        max_num_seqs=2,
        preemption="swap",
        swap_space=SwapSpace(8, 0.0),
    )
    assert seen == [(0, 0), (1, 12), (0, 0), (2, 8), (3, 16)]


def test_tokens_wait_until_their_request_runs():
    """Two run at once, the second one until 4 s; those behind wait with their whole prompts."""
    jobs = [Job(0.0, 30, 20), Job(0.5, 7, 2), Job(1.5, 12, 9), Job(2.5, 50, 1), Job(3.5, 1, 1)]
    seen = spied(jobs, lambda view, _: (view.num_waiting, view.num_waiting_tokens), max_num_seqs=2)
    assert seen == [(0, 0), (0, 0), (0, 0), (1, 12), (2, 62)]


def test_every_number_of_a_view_has_a_name():
    known = {name for name, each in vars(ClientView).items() if isinstance(each, property)}
    assert set(NUMBERS) == known - {"client_id", "name", "role", "pool"}
    with pytest.raises(ValueError, match="did you mean 'num_waiting'"):
        Candidates().numbers("num_waitin")


@pytest.mark.parametrize("polled", [False, True])
def test_numbers_come_as_an_array_of_all_clients(polled):
    seen = []

    class Numbers:
        def choose(self, request, stage, candidates):
            if polled:
                candidates = candidates.polled(1.5, counts_sent=True)
            for count in NUMBERS:
                each = [getattr(view, count) for view in candidates]
                assert candidates.numbers(count).tolist() == each
                assert candidates.least(count) is candidates[int(np.argmin(each))]
                assert candidates.least(count) is min(candidates, key=lambda v: getattr(v, count))
            seen.append(candidates.numbers("num_outstanding").tolist())
            return candidates.least().client_id

    clients = [
        llm_engine(
            str(number),
            scheduler=ChunkedScheduler(max_num_seqs=2, max_num_batched_tokens=64),
            predictor=ConstantPredictor(1.0),
            num_gpu_blocks=100,
        )
        for number in range(3)
    ]
    workload = Workload.from_lists([20] * 9, [1, 9, 3] * 3, [k * 0.75 for k in range(9)])
    Simulation(clients=clients, workload=workload, router=Numbers()).run()
    if not polled:
        assert seen[:5] == [[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0], [1, 1, 1]]


def test_a_request_without_content_has_no_prefix():
    request = Request(0, 0.0, completion(10, 2), 10, 2)
    assert Candidates().longest_prefix(request, 9) == (None, 0)


# --- what an unbounded cache would have -------------------------------------------------------


def test_history_knows_longest_beginning_that_any_request_had():
    history = ContentHistory()
    assert history.meet(((1, 10), (2, 5)), 15) == 0
    assert history.meet(((1, 10), (2, 8)), 18) == 15  # the span of an id may grow
    assert history.meet(((1, 10), (2, 8), (3, 4)), 22) == 18
    assert history.meet(((1, 6),), 6) == 6
    assert history.meet(((4, 10), (5, 5)), 15) == 0
    assert history.meet(((1, 10), (6, 5)), 12) == 10
    assert history.meet(((1, 10), (6, 5)), 15) == 12  # the rest was not computed


def test_unbounded_rate_counts_full_blocks_of_all_clients():
    """Round robin computes the same 83 tokens twice; one cache for all would have 20 blocks."""
    clients = [
        llm_engine(
            name,
            scheduler=ChunkedScheduler(),
            predictor=ConstantPredictor(1.0),
            num_gpu_blocks=100,
            block_size=BLOCK,
        )
        for name in "ab"
    ]
    jobs = [Job(time, 83, 1, content=((7, 83),)) for time in (0.0, 10.0)]
    plain = Workload.from_lists([83, 83], [1, 1], [0.0, 10.0])
    workload = OfJobs(plain.source, plain.arrivals, jobs=tuple(jobs))
    summary = Simulation(clients=clients, workload=workload).run().summary
    assert summary["prefix_cache_hit_rate"] == 0.0
    assert summary["prefix_cache_hit_rate_unbounded"] == 80 / (2 * 83)


def test_tokens_remaining_are_what_ended_answers_let_expect():
    """An answer of 5 tokens has ended; the next one, whose first is there at 11 s, has 9."""
    jobs = [Job(0.0, 10, 5), Job(10.0, 12, 9), *probes([12.5, 17.5], ())]
    # 5 - 2 of the second; 1, since it has 7 by then, beside 5 of the probe that waits
    assert spied(jobs, lambda view, _: view.num_remaining_tokens) == [0, 0, 3, 6]
    assert spied(jobs, lambda view, request: view.num_answer_tokens(request)) == [0, 5, 5, 5]


def test_prompts_of_about_a_length_have_a_mean_of_their_own():
    answers = AnswerLengths()
    assert answers.expected(100) == 0
    for prompt, answer in ((100, 10), (120, 20), (1000, 90)):
        answers.add(prompt, answer)
    assert [answers.expected(prompt) for prompt in (64, 127, 1023, 128)] == [15, 15, 90, 40]


def test_prompt_tokens_count_until_a_visit_ends():
    jobs = [Job(0.0, 10, 5), Job(3.0, 20, 2), Job(4.5, 30, 1), Job(5.5, 7, 1), Job(40.0, 1, 1)]
    assert spied(jobs, lambda view, _: view.num_prompt_tokens) == [0, 10, 30, 50, 0]
