"""Simulated engines with the times of Seesaw's appendix A, beside its equation 1.

The 15B model on eight A100s of 40 GiB, where every (TP, PP, DP) fits: 64 requests of equal lengths
at a time, many batches after one another.
"""

import pytest

from mist_sim import ContinuousScheduler, EngineOverhead, Simulation, Workload, llm_client
from mist_sim.clients.kv_cache import KvCacheConfig
from mist_sim.clients.options.resharding_options import Resharding
from mist_sim.hardware import load_gpu
from mist_sim.hardware.resharding import (
    Layout,
    SeesawPredictor,
    decode_layer,
    device_of,
    layouts_of,
    prefill_layer,
    time_per_request,
    weight_bytes,
)
from mist_sim.models import load_model

MODEL, GPU = load_model("llama-3-15b"), load_gpu("a100-40gb-pcie")
BATCH, PROMPT, OUTPUT, ROUNDS = 64, 1024, 128, 4
LAYOUTS = list(layouts_of(MODEL, 8))


def simulated(layout) -> float:
    """Return the seconds a request of an engine that always has a full batch."""
    client = llm_client(
        "llm",
        model=MODEL,
        gpu=GPU,
        tensor_parallel_size=layout.tensor,
        pipeline_parallel_size=layout.pipeline,
        data_parallel_size=layout.data,
        scheduler=ContinuousScheduler(
            max_num_seqs=BATCH // layout.data, max_num_batched_tokens=PROMPT
        ),
        kv_cache=KvCacheConfig(enable_prefix_caching=False),
        predictor=SeesawPredictor,
        overhead=EngineOverhead(step=0.0, sequence=0.0),
        async_scheduling=False,
    )
    num = ROUNDS * BATCH
    workload = Workload.from_lists([PROMPT] * num, [OUTPUT] * num, [0.0] * num)
    result = Simulation(clients=[client], workload=workload).run()
    ends = result.requests["finished_at"].sort_values().to_numpy()
    return (ends[-1] - ends[BATCH - 1]) / (num - BATCH)


def by_equation_1(layout) -> float:
    device = device_of(GPU)
    prompts = prefill_layer(MODEL, device, BATCH, PROMPT, layout.tensor)
    answers = decode_layer(MODEL, device, BATCH, PROMPT + OUTPUT / 2, layout.tensor)
    prefill, decode = (
        time_per_request(times, MODEL.num_layers, BATCH, layout) for times in (prompts, answers)
    )
    return prefill + (OUTPUT - 1) * decode


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda each: each.label)
def test_steady_state_is_that_of_equation_1(layout):
    """Within 5 %: eq. 1 has no hand-overs, and no pipelines that fill and drain.

    A pass has one prompt, which is enough to be bound by compute; larger ones leave larger bubbles.
    """
    assert simulated(layout) == pytest.approx(by_equation_1(layout), rel=0.05)


def test_all_layouts_of_eight_devices_are_there():
    assert len(LAYOUTS) == 10


def test_client_that_re_shards_does_what_pair_does():
    """Prompts in PP8, answers in TP8: seconds a request of three cycles, within 5 %."""
    before, after = Layout(1, 8), Layout(8)
    per_cycle = 2 * BATCH
    token_bytes = MODEL.kv_bytes_per_token
    client = llm_client(
        "llm",
        model=MODEL,
        gpu=GPU,
        tensor_parallel_size=8,
        scheduler=ContinuousScheduler(max_num_seqs=BATCH, max_num_batched_tokens=PROMPT),
        kv_cache=KvCacheConfig(enable_prefix_caching=False),
        predictor=SeesawPredictor,
        overhead=EngineOverhead(step=0.0, sequence=0.0),
        resharding=Resharding(
            pipeline_parallel_size=8,
            running="drain",
            prefetch=False,  # so that a cycle has what the buffer holds
            host_memory=per_cycle * PROMPT * token_bytes / 8,
        ),
    )
    num = 3 * per_cycle
    workload = Workload.from_lists([PROMPT] * num, [OUTPUT] * num, [0.0] * num)
    result = Simulation(clients=[client], workload=workload).run()
    assert len(result.summary["layouts"]) == 1 + 6
    device = device_of(GPU)
    prompts = prefill_layer(MODEL, device, BATCH, PROMPT, 1)
    answers = decode_layer(MODEL, device, BATCH, PROMPT + OUTPUT / 2, 8)
    request = time_per_request(prompts, MODEL.num_layers, BATCH, before)
    request += (OUTPUT - 1) * time_per_request(answers, MODEL.num_layers, BATCH, after)
    reload = weight_bytes(MODEL) / 8 / device.host_bandwidth
    expected = num * request + 6 * reload
    assert result.summary["duration"] == pytest.approx(expected, rel=0.05)
