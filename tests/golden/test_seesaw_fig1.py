"""Seesaw, figure 1: Llama-2-13B on eight L4, 16 prompts of 512 tokens, four ways to split it.

Pipelines are faster in prefill, tensor parallelism in decode. The paper's bars have no figures;
its eq. 1 gives those in docs/background/parallelism.md, beside ours. With the links, efficiencies
and omissions of eq. 1 a run gives what eq. 1 says.
"""

from dataclasses import replace

import pytest

from mist_sim import ContinuousScheduler, EngineOverhead, Simulation, Workload, llm_client
from mist_sim.core.front_end import NONE
from mist_sim.hardware import load_gpu
from mist_sim.hardware.devices import Efficiency
from mist_sim.models import load_model

BATCH, PROMPT, ROUNDS = 16, 512, 20
SPLITS = [(8, 1), (4, 2), (2, 4), (1, 8)]  # tensor and pipeline parallel sizes
MODEL = load_model("llama-2-13b")
L4 = load_gpu("l4")
SEESAW_L4 = replace(L4, interconnect=replace(L4.interconnect, all_reduce="host_shared"))


def served(tensor, pipeline, num_requests, num_output_tokens, gpu=SEESAW_L4):
    """Serve requests that come at once, in micro-batches of 16 / pipeline prompts."""
    client = llm_client(
        "l4",
        model=MODEL,
        gpu=gpu,
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        scheduler=ContinuousScheduler(
            max_num_seqs=BATCH, max_num_batched_tokens=BATCH * PROMPT // pipeline
        ),
        overhead=EngineOverhead(step=0.0, sequence=0.0),
    )
    lengths = [PROMPT] * num_requests, [num_output_tokens] * num_requests
    workload = Workload.from_lists(*lengths, [0.0] * num_requests)
    return Simulation(clients=[client], workload=workload, front_end=NONE).run().summary


# --- the figure ---------------------------------------------------------------------------------


def test_pipelines_are_faster_in_prefill():
    """Seconds for 16 prompts, of many that follow one another."""
    prefill = [served(*split, ROUNDS * BATCH, 1)["duration"] / ROUNDS for split in SPLITS]
    assert prefill == sorted(prefill, reverse=True)
    assert prefill[0] > 4 * prefill[-1]


def test_tensor_parallelism_is_faster_in_decode():
    """Time between two tokens of 16 answers."""
    decode = [served(*split, BATCH, 200)["median_itl_ms"] for split in SPLITS]
    assert decode == sorted(decode)
    assert decode[-1] > 4 * decode[0]


# --- eq. 1 --------------------------------------------------------------------------------------

FLOPS, BANDWIDTH, LINK = 0.6 * 121e12, 0.8 * 300e9, 0.5 * 16 * 2**30  # a second, and bytes of it
NUM_LAYERS, HIDDEN, VOCAB = 40, 5_120, 32_000
WEIGHTS = 4 * HIDDEN**2 + 3 * HIDDEN * 13_824  # of a layer


def l4_of_eq_1(**changes):
    """An L4 with the efficiencies of eq. 1, and a ring without latency at half of its link."""
    share = Efficiency(mfu=0.6, mbu=0.8)
    link = replace(L4.interconnect, all_reduce="ring", bus_bandwidth={"1 KiB": LINK})
    return replace(L4, prefill=share, decode=share, interconnect=link, kernels={}, **changes)


def summed(tokens, tensor):
    """T_nw of a layer: two all-reduces of 16-bit activations over a ring."""
    return 4 * tokens * HIDDEN / LINK * 2 * (tensor - 1) / tensor


@pytest.mark.parametrize(("tensor", "pipeline"), SPLITS)
def test_prompts_take_compute_and_links_of_eq_1(tensor, pipeline):
    """Without the time of memory, which eq. 1 has for weights but not for activations.

    A lane has one micro-batch at a time, so its hand-overs count, and the last lane starts late.
    """
    batch = BATCH // pipeline
    tokens = batch * PROMPT
    computed = (2 * WEIGHTS * tokens + 2 * batch * HIDDEN * PROMPT**2) / FLOPS / tensor
    rank = (computed + summed(tokens, tensor)) * NUM_LAYERS / pipeline
    hand_over = 4 * tokens * HIDDEN / LINK
    expected = ROUNDS * (pipeline * rank + (pipeline - 1) * hand_over) + (pipeline - 1) * rank
    gpu = l4_of_eq_1(memory_bandwidth=1e18)
    duration = served(tensor, pipeline, ROUNDS * BATCH, 1, gpu)["duration"]
    assert duration == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("tensor", "pipeline"), SPLITS)
def test_decode_steps_take_the_memory_and_links_of_eq_1(tensor, pipeline):
    """With the head behind the last layer, which eq. 1 leaves out, as it does activations."""
    batch, num_tokens = BATCH // pipeline, 200
    read = 2 * WEIGHTS + 4 * batch * (PROMPT + num_tokens // 2) * HIDDEN
    layer = read / BANDWIDTH / tensor + summed(batch, tensor)
    head = 2 * VOCAB * HIDDEN / BANDWIDTH / tensor
    expected = pipeline * (layer * NUM_LAYERS / pipeline + head)
    step = served(tensor, pipeline, BATCH, num_tokens, l4_of_eq_1())["median_itl_ms"] / 1e3
    assert expected <= step <= 1.025 * expected
