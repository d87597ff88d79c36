"""Watts of an accelerator by what it does."""

from dataclasses import fields, replace

import numpy as np
import pytest

from mist_sim import AllAtOnce, ChunkedScheduler, Simulation, Workload, llm_client, load_model
from mist_sim.core.batch import StepBatch
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.devices import Efficiency
from mist_sim.hardware.power import Demand, Load, PowerDraw, step_watts
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.hardware.work import StepCounts, step_demand
from tests.refusals import refused

H100 = load_gpu("h100-sxm")


def watts(memory: float, compute: float, load: Load | None = None, **options: float) -> float:
    """Return the watts of an H100 at utilisations of memory and arithmetic."""
    demand = Demand(np.array([compute]), np.array([memory]))
    return float(
        step_watts(H100.draw, H100.power, demand, np.ones(1), load or Load(), **options)[0]
    )


def test_watts_by_hand():
    draw = PowerDraw(idle=0.1, active=0.2, memory=0.5, compute=1.0, experts=0.1)
    demand = Demand(np.array([0.3]), np.array([0.8]))
    load = 0.1 + 0.2 + 0.5 * 0.8 / 2 + 0.3 / 2 + 0.1
    found = step_watts(draw, 400.0, demand, np.array([2.0]), Load(has_experts=True))
    assert found[0] == pytest.approx(400 * load / (1 + load**4) ** 0.25)


def test_more_work_never_draws_less_and_never_more_than_the_design_power():
    shares = np.linspace(0, 1, 21).tolist()
    for loads in ([watts(u, 0.0) for u in shares], [watts(0.5, u) for u in shares]):
        assert loads == sorted(loads)
        assert max(loads) <= H100.power
        assert min(loads) >= H100.power * H100.draw.idle
    assert watts(0.9, 0.05) - watts(0.8, 0.05) < watts(0.1, 0.05) - watts(0.0, 0.05), "no bend"


def test_utilisation_beyond_the_peaks_counts_as_full():
    assert watts(3.0, 0.0) == watts(1.0, 0.0)


test_shares_that_cannot_be = refused(
    lambda figures: PowerDraw(
        **{"idle": 0.1, "active": 0.2, "memory": 0.5, "compute": 1.0} | figures
    ),
    ({"idle": 1.0}, "idle must be in [0, 1)"),
    ({"memory": -0.1}, "memory must be finite and >= 0"),
    error=ValueError,
)


# ------------------------------------------------------------------ the work of steps

SHAPES = {
    "decode": {"new": 0, "chunks": 0, "before": 0, "decodes": 24, "context_sum": 24 * 700},
    "prompt": {"new": 900, "chunks": 1, "before": 300, "decodes": 0, "context_sum": 0},
    "mixed": {"new": 400, "chunks": 2, "before": 100, "decodes": 40, "context_sum": 40 * 1500},
}


def one_step(new: int, chunks: int, before: int, decodes: int, context_sum: int):
    """Return a step as counts, and as a predictor sees it; prompts have equal chunks."""
    each, context = (new // chunks, before // chunks) if chunks else (0, 0)
    keys = chunks * (context + each)
    pairs = chunks * each * (context + (each + 1) / 2)
    values = [1, new, chunks + decodes, decodes, keys, pairs, decodes, context_sum + decodes]
    counts = StepCounts(
        **{
            field.name: np.array([float(value)])
            for field, value in zip(fields(StepCounts), values, strict=True)
        }
    )
    return counts, StepBatch(((each, context),) * chunks, decodes, context_sum)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "model", ["llama-3.1-8b", "llama-3.1-70b-fp8", "qwen3-30b-a3b", "gemma-3-12b", "gpt-oss-20b"]
)
def test_work_is_that_which_the_roofline_times(model, shape):
    """At full efficiency every operator takes the longer of arithmetic and memory."""
    full = Efficiency(mfu=1.0, mbu=1.0)
    gpu = replace(load_gpu("b200"), prefill=full, decode=full, kernels={})
    spec, cluster = load_model(model), Cluster(gpu)
    counts, batch = one_step(**SHAPES[shape])
    demand = step_demand(spec, cluster, counts)
    compute, memory = float(demand.compute[0]), float(demand.memory[0])
    roofline = RooflinePredictor(spec, cluster, cudagraph_capture_sizes=[1])
    seconds = roofline.step_time(batch)
    assert max(compute, memory) <= seconds * (1 + 1e-9)
    assert seconds <= (compute + memory) * (1 + 1e-9)


def test_experts_that_were_counted_are_read_and_no_others():
    """24 decodes that reach 30 experts of a layer, and not the 101 of uniform routing."""
    plain, cluster = load_model("qwen3-30b-a3b"), Cluster(H100)
    counted = replace(plain, moe=replace(plain.moe, experts_reached=((8, 10.0), (40, 50.0))))
    counts, _ = one_step(**SHAPES["decode"])
    expert = 3 * plain.hidden_size * plain.moe.intermediate_size * 2 / H100.memory_bandwidth
    fewer = (plain.moe.distinct_experts(24) - 30) * plain.num_layers * expert
    seconds = [float(step_demand(model, cluster, counts).memory[0]) for model in (plain, counted)]
    assert seconds[0] - seconds[1] == pytest.approx(fewer)


def test_rows_that_a_kernel_fills_up_are_computed_and_not_read():
    """Of 24 decodes that reach 101 experts, DeepGEMM computes 128 rows each instead of 192."""
    model, cluster = load_model("qwen3-30b-a3b"), Cluster(H100)
    counts, _ = one_step(**SHAPES["decode"])
    few, filled = (step_demand(model, cluster, counts, rows) for rows in (0, 128))
    assert filled.memory.tolist() == few.memory.tolist()
    row = 3 * 2 * model.hidden_size * model.moe.intermediate_size / H100.flops["bf16"]
    more = 128 * model.moe.distinct_experts(24) - 24 * model.moe.num_experts_per_token
    assert filled.compute - few.compute == pytest.approx(model.num_layers * more * row)
    prompt, _ = one_step(**{**SHAPES["prompt"], "new": 100_000})
    plain, same = (step_demand(model, cluster, prompt, rows) for rows in (0, 128))
    assert same.compute.tolist() == plain.compute.tolist()


def test_a_client_of_older_engine_fills_up_rows():
    options = {"model": "qwen3-235b-a22b-fp8", "gpu": "h200", "tensor_parallel_size": 4}
    older, newer = (
        llm_client("llm", engine=each, **options) for each in ("vllm-0.14", "vllm-0.24")
    )
    assert (older.traits.machine.expert_rows, newer.traits.machine.expert_rows) == (128, 0)


def test_work_adds_up_over_the_steps_of_run():
    spec, cluster = load_model("llama-3.1-8b"), Cluster(H100)
    steps = [one_step(0, 0, 0, 8, 8 * 500 + 8 * step)[0] for step in range(5)]
    alone = [step_demand(spec, cluster, step) for step in steps]
    run = replace(
        steps[0], num_steps=np.array([5.0]), decode_keys=sum(step.decode_keys for step in steps)
    )
    together = step_demand(spec, cluster, run)
    for name in ("compute", "memory"):
        each = sum(float(getattr(demand, name)[0]) for demand in alone)
        assert float(getattr(together, name)[0]) == pytest.approx(each)


def test_records_say_what_prompts_attend_to():
    """Pieces of a prompt attend to as many pairs as the whole, and to the keys before them."""
    pieces = {"scheduler": ChunkedScheduler(max_num_batched_tokens=300)}
    client = llm_client("llm", model="llama-3.1-8b", gpu="h100-sxm", **pieces)
    workload = Workload.from_lists([2000], [3], arrivals=AllAtOnce())
    steps = Simulation(clients=[client], workload=workload).run().steps
    assert steps["num_prefill_pairs"].sum() == 2000 * 2001 // 2
    begun = steps.loc[steps["num_chunks"] > 0, "chunk_context_sum"].tolist()
    assert begun[0] == 0
    assert begun == sorted(begun)
    assert begun[-1] < 2000
