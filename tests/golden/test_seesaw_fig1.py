"""Seesaw, figure 1: Llama-2-13B on eight L4, 16 prompts of 512 tokens, four ways to split it.

Pipelines are faster in prefill, tensor parallelism in decode. The paper's bars have no figures;
its eq. 1 gives those in docs/background/parallelism.md, beside ours.
"""

import pytest

from mist_sim import ContinuousScheduler, EngineOverhead, Simulation, Workload, llm_client

BATCH, PROMPT = 16, 512
SPLITS = [(8, 1), (4, 2), (2, 4), (1, 8)]  # tensor and pipeline parallel sizes


def served(tensor, pipeline, num_requests, num_output_tokens):
    """Serve requests that come at once, in micro-batches of 16 / pipeline prompts."""
    client = llm_client(
        "l4",
        model="llama-2-13b",
        gpu="l4",
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        scheduler=ContinuousScheduler(
            max_num_seqs=BATCH, max_num_batched_tokens=BATCH * PROMPT // pipeline
        ),
        overhead=EngineOverhead(step=0.0),
    )
    lengths = [PROMPT] * num_requests, [num_output_tokens] * num_requests
    workload = Workload.from_lists(*lengths, [0.0] * num_requests)
    return Simulation(clients=[client], workload=workload).run()


@pytest.fixture(scope="module")
def prefill():
    """Seconds for 16 prompts, of many that follow one another."""
    return [served(*split, 20 * BATCH, 1).summary["duration"] / 20 for split in SPLITS]


@pytest.fixture(scope="module")
def decode():
    """Seconds between two tokens of 16 answers."""
    return [served(*split, BATCH, 200).summary["median_itl_ms"] / 1e3 for split in SPLITS]


def test_pipelines_are_faster_in_prefill(prefill):
    assert prefill == sorted(prefill, reverse=True)
    assert prefill[0] > 4 * prefill[-1]


def test_tensor_parallelism_is_faster_in_decode(decode):
    assert decode == sorted(decode)
    assert decode[-1] > 4 * decode[0]


def test_near_what_the_papers_equation_gives(prefill, decode):
    """Ours has PCIe through the host at 0.8 of the data sheet, theirs a ring at 0.5."""
    assert prefill == pytest.approx([1.73, 0.95, 0.56, 0.36], rel=0.35)
    assert decode == pytest.approx([0.018, 0.029, 0.053, 0.102], rel=0.35)
