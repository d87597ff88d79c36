"""What a gateway expects of an engine's prompts: lines 3, 4 and 11 of TaiChi's Algorithm 2."""

from dataclasses import dataclass, field

import pytest

from mist_sim import ChunkedScheduler, Simulation, Workload
from tests.reference.engines import llm_engine
from tests.reference.predictors import AffinePredictor, ConstantPredictor

SECOND = ConstantPredictor(1.0)


@dataclass
class Spy:
    """Notes what is expected of the only candidate at every choice."""

    seen: list[tuple[int, float]] = field(default_factory=list)

    def choose(self, request, stage, candidates):
        view = candidates[0]
        self.seen.append((view.num_prefill_tokens, view.prefill_time(request)))
        return view.client_id


def expected(*jobs: tuple[float, int, int], predictor=SECOND, seats=8, chunk=16, **options):
    """Return what is expected of each job when it comes, and its TTFT.

    jobs: arrival, tokens of the prompt and of the answer. Expected are (prompt tokens left,
    seconds until its prompt is computed).
    """
    scheduler = ChunkedScheduler(max_num_seqs=seats, max_num_batched_tokens=chunk, **options)
    client = llm_engine(
        "llm", scheduler=scheduler, predictor=predictor, num_gpu_blocks=10_000, block_size=4
    )
    times, prompts, answers = zip(*jobs, strict=True)
    workload = Workload.from_lists(prompts, answers, times)
    spy = Spy()
    result = Simulation(clients=[client], workload=workload, router=spy).run()
    return spy.seen, result.requests["ttft"].tolist()


def test_idle_client_takes_its_chunks_one_after_other():
    seen, ttft = expected((0.0, 160, 1))
    assert seen == [(0, 10.0)]
    assert ttft == [10.0]


def test_prompts_that_run_and_wait_come_before():
    """One runs, of which 32 of 160 tokens are computed after two steps; another one waits."""
    seen, ttft = expected((0.0, 160, 1), (0.5, 80, 1), (2.5, 48, 1), seats=1)
    assert seen == [(0, 10.0), (160, 15.0), (128 + 80, 16.0)]
    assert [0.5 + ttft[1], 2.5 + ttft[2]] == [15.0, 18.0]  # the step in flight counts whole


def test_decodes_take_their_part_of_a_step():
    """Three answers leave 13 of 16 tokens to a prompt."""
    answers = [(0.0, 4, 50) for _ in range(3)]
    seen, ttft = expected(*answers, (10.0, 39, 1))
    assert seen[3] == (0, 3.0)
    assert ttft[3] == 3.0


def test_long_prompts_have_small_pieces_where_they_are_asked_to():
    seen, _ = expected((0.0, 160, 1), long_prefill_token_threshold=8)
    assert seen == [(0, 20.0)]


def test_later_chunks_look_back_further():
    """Chunk k of 1024 tokens has 1024 k before it: 2^-7 s for each, after 1 s of its own."""
    looking_back = AffinePredictor(1.0, 0.0, 2.0**-17, 0.0, 0.0, 0.0, 0.0, 0.0)
    seen, ttft = expected((0.0, 4096, 1), predictor=looking_back, chunk=1024)
    assert seen == [(0, 4 + 8 * (0 + 1 + 2 + 3))]
    assert ttft == [52.0]


@pytest.mark.parametrize("count", [1, 3])
def test_the_seconds_of_decodes_are_in_each_chunk(count):
    """2^-4 s for each decode; as many of them as four, since few steps are timed."""
    slower = AffinePredictor(1.0, 0.0, 0.0, 2.0**-4, 0.0, 0.0, 0.0, 0.0)
    answers = [(0.0, 4, 50) for _ in range(count)]
    seen, _ = expected(*answers, (10.0, 16 - count, 1), predictor=slower)
    assert seen[count] == (0, 1 + 4 * 2.0**-4)
