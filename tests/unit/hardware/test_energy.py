"""Energy of a run, of its clients and of its requests."""

import io
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from rich.console import Console

import mist_sim as mist
from mist_sim import PowerOptions, ScenarioError, simulate
from mist_sim.core.batch import StepBatch
from mist_sim.hardware.devices import DTYPES, KERNELS, gpu_names
from mist_sim.hardware.power import PowerDraw
from mist_sim.hardware.power_cap import with_power_limit
from mist_sim.hardware.predictors.analytic.compile import Phase
from mist_sim.metrics import spending as energy_module
from mist_sim.report.replications import replications_table
from mist_sim.report.run import results_table
from mist_sim.scenario.build import build
from tests.reference.scenarios import PRESSED, scenario
from tests.refusals import refused

FLAT = PowerDraw(idle=0.1, active=0.9, memory=0.0, compute=0.0)
BUSY = 1000 / 2**0.25  # watts of FLAT in any step, and 100 W idle
GPU = replace(mist.load_gpu("h100-sxm"), power=1000.0, draw=FLAT)
TWO_TOGETHER = mist.Workload.from_lists([100, 100], [1, 21], arrivals=mist.AllAtOnce())


def run(workload: mist.Workload, power: PowerOptions | None = None, **options: Any) -> mist.Result:
    client = mist.llm_client("llm", **{"model": "llama-3.1-8b", "gpu": GPU} | options)
    return mist.Simulation(clients=[client], workload=workload, power=power).run()


def test_steps_and_idle_time_by_hand():
    late = mist.Workload.from_lists([100, 100], [5, 5], arrivals=mist.ConstantArrivals(rate=1.0))
    result = run(late)
    client = result.clients.iloc[0]
    end = result.requests["finished_at"].max()
    assert client["busy"] < 0.1 < end - client["busy"]
    assert client["energy"] - client["idle_energy"] == pytest.approx(BUSY * client["busy"])
    assert client["idle_energy"] == pytest.approx(100 * (end - client["busy"]))
    assert result.summary["energy_j"] == pytest.approx(client["energy"])
    assert result.summary["average_power_w"] == pytest.approx(client["energy"] / end)
    assert result.summary["energy_per_output_token_j"] == pytest.approx(client["energy"] / 10)


def test_tokens_of_a_step_have_equal_shares():
    result = run(TWO_TOGETHER)
    steps = result.steps
    prompts = (steps["busy"] * (steps["num_decodes"] == 0)).sum() * BUSY
    decodes = (steps["busy"] * (steps["num_decodes"] > 0)).sum() * BUSY
    energy = result.requests["energy"]
    assert energy[0] == pytest.approx(prompts / 2)
    assert energy[1] == pytest.approx(prompts / 2 + decodes)


def test_hosts_and_the_building():
    alone = run(TWO_TOGETHER).clients.iloc[0]
    more = run(TWO_TOGETHER, PowerOptions(host=200.0, pue=1.5)).clients.iloc[0]
    end = alone["busy"] + alone["idle_energy"] / 100
    assert more["energy"] == pytest.approx((alone["energy"] + 200 * end) * 1.5)


@pytest.mark.parametrize(("host", "pue"), [(-1.0, 1.0), (float("nan"), 1.0), (0.0, 0.9)])
def test_power_options_that_cannot_be(host, pue):
    with pytest.raises(ValueError, match="must be finite and >= "):
        PowerOptions(host=host, pue=pue)


CASES: dict[str, dict[str, Any]] = {
    "pressed": {},
    "tensor parallel": {"tensor_parallel_size": 2},
    "pipeline": {"pipeline_parallel_size": 2},
    "replicas": {"data_parallel_size": 2},
    "replicas in lockstep": {
        "model": "qwen3-30b-a3b",
        "gpu": "h200",
        "data_parallel_size": 2,
        "enable_expert_parallel": True,
        "max_model_len": 700,
    },
    "swaps": {"scheduler.preemption": "swap"},
    "whole prompts": {"scheduler": {"type": "continuous"}},
    "windows": {"model": "gemma-3-4b"},
    "latents": {"model": "deepseek-v3", "gpu": "b200", "tensor_parallel_size": 8},
    "drafts": {
        "scheduler.max_num_seqs": 64,
        "speculative_config": {
            "method": "draft_model",
            "model": "llama-3.2-1b",
            "num_speculative_tokens": 3,
            "acceptance_rate": 0.7,
        },
    },
}


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_lost(case):
    changes = {f"clients__0__{key}": value for key, value in CASES[case].items()}
    if case != "windows":
        changes["workload__timeout"] = "2 s"
    result = simulate(scenario(**PRESSED | changes | {"cost": {"electricity": "0.1 $/kWh"}}))
    clients, requests = result.clients.iloc[0], result.requests
    assert (requests["energy"] >= 0).all()
    assert requests["energy"].sum() + clients["idle_energy"] == pytest.approx(clients["energy"])
    assert requests["cost"].sum() + clients["idle_cost"] == pytest.approx(clients["cost"])
    assert result.summary["energy_j"] == pytest.approx(clients["energy"])
    assert result.summary["cost_usd"] == pytest.approx(clients["cost"])
    spent = requests["gpu_seconds"].sum()
    per_gpu = clients["num_gpus"] * result.ledger.end
    assert spent <= per_gpu * (1 + 1e-12)
    most = mist.load_gpu(CASES[case].get("gpu", "l40s")).power
    assert 0.1 * most * per_gpu < clients["energy"] < most * per_gpu


def test_prefill_and_decode_on_two_clients():
    result = simulate(
        scenario(
            clients=[
                {"name": "p", "gpu": "h100-sxm", "role": "prefill"},
                {"name": "d", "gpu": "h100-sxm", "role": "decode"},
            ],
            network={"bandwidth": "50 GB/s"},
        )
    )
    idle = result.clients["idle_energy"].sum()
    assert result.requests["energy"].sum() + idle == pytest.approx(result.clients["energy"].sum())


def test_clients_alike_are_priced_together_as_each_alone(monkeypatch):
    """Two alike, one with other GPUs and one alike again; to the bit."""
    gpus = [GPU, GPU, "h200", GPU]
    clients = [
        mist.llm_client(f"llm-{number}", model="llama-3.1-8b", gpu=gpu)
        for number, gpu in enumerate(gpus)
    ]
    lengths = [100 * number for number in range(1, 41)]
    workload = mist.Workload.from_lists(lengths, lengths, arrivals=mist.ConstantArrivals(rate=5.0))
    result = mist.Simulation(clients=clients, workload=workload).run()
    together = result.clients["energy"].tolist()
    assert [len(tracks) for _, tracks in result.ledger._alike] == [2, 1, 1]
    monkeypatch.setattr(energy_module, "_PIECE", -1)
    alone = mist.Simulation(clients=clients, workload=workload).run()
    assert [len(tracks) for _, tracks in alone.ledger._alike] == [1, 1, 1, 1]
    assert alone.clients["energy"].tolist() == together
    assert alone.summary["energy_j"] == result.summary["energy_j"]


def test_the_warm_up_is_left_out_of_summary():
    whole, warm = (simulate(scenario(warmup=warmup)) for warmup in ("0 s", "4 s"))
    assert warm.clients["energy"].tolist() == whole.clients["energy"].tolist()
    before = whole.summary["energy_j"] - warm.summary["energy_j"]
    gpu = mist.load_gpu("l40s")
    assert 4 * gpu.power * gpu.draw.idle < before < 4 * gpu.power
    assert warm.ledger.energy_after(warm.ledger.end) == 0


def test_clients_without_gpus_draw_nothing():
    worker = {"name": "search", "type": "sequential", "serves": ["rag"], "base_time": "20 ms"}
    both = scenario(
        clients=[worker, {"name": "llm", "gpu": "l40s"}],
        workload__pipeline=["rag", "prefill", "decode"],
    )
    clients = simulate(both).clients.set_index("client")
    assert clients.loc["search", "energy"] == clients.loc["search", "num_gpus"] == 0
    assert clients.loc["search", "power_estimate"] == "-"
    alone = scenario(clients=[worker], workload__pipeline=["rag"])
    result = simulate(alone)
    assert "energy_j" not in result.summary
    assert "energy" not in result.requests


def test_a_cap_slows_prompts_and_not_tokens():
    """Splitwise: at half of the power prompts of an H100 take 1.3 times as long, tokens as long."""
    gpu = {"clients__0__gpu": "h100-sxm", "workload__arrivals": {"type": "poisson", "rate": "1 /s"}}
    gpu |= dict.fromkeys(
        [f"front_end__{each}" for each in ("request", "stream_token", "response", "output_token")],
        "0 s",
    )
    free, capped = (
        simulate(scenario(**gpu, clients__0__power_limit=limit)).summary
        for limit in (None, "350 W")
    )
    assert 1.2 < capped["mean_ttft_ms"] / free["mean_ttft_ms"] < 1.4
    assert capped["p50_itl_ms"] == pytest.approx(free["p50_itl_ms"], rel=0.01)
    assert capped["average_power_w"] < 350


@pytest.mark.parametrize("limit", ["350 W", "699 W"])
def test_a_cap_is_called_assumed(limit):
    capped = simulate(scenario(clients__0__gpu="h100-sxm", clients__0__power_limit=limit)).summary
    assert capped["power_estimates"] == {"llm": "assumed"}
    assert capped["estimates"] == {"llm": "analytic"}
    assert "power cap" in [each["kind"] for each in capped["warnings"]]


@pytest.mark.parametrize("name", gpu_names())
def test_every_kernel_computes_by_the_clock(name):
    """Of all types and phases, with figures of its own or those of the phase."""
    free = mist.load_gpu(name)
    capped = with_power_limit(free, 0.6 * free.power)
    assert 0.7 < capped.clock < 1
    for kind, dtype in product(KERNELS, DTYPES):
        for phase in ("prefill", "decode"):
            _, rate, bandwidth = Phase(free, getattr(free, phase)).rates(kind, dtype)
            _, slower, same = Phase(capped, getattr(capped, phase)).rates(kind, dtype)
            assert slower == pytest.approx(capped.clock * rate, rel=1e-12)
            assert same == bandwidth


@pytest.mark.parametrize("quantization", [None, "fp8", "int8", "int4"])
def test_prompts_of_every_type_wait_for_the_clock(quantization):
    """At half of the power; links and memory, which do not wait, are more of the FP8 steps."""
    prompts = StepBatch(chunks=((4096, 0),))
    free, capped = (
        mist.llm_client(
            "llm",
            model="llama-3.1-70b",
            gpu="h100-sxm",
            tensor_parallel_size=4,
            quantization=quantization,
            power_limit=limit,
        )
        .predictor.ranks[0]
        .step_time(prompts)
        for limit in (None, 350.0)
    )
    assert 1.15 < capped / free < 1.4


def test_the_limit_of_card_itself_is_no_cap():
    free, own = (
        simulate(scenario(clients__0__gpu="h100-sxm", clients__0__power_limit=limit))
        for limit in (None, "700 W")
    )
    assert own.summary == free.summary


test_caps_that_cannot_be = refused(
    lambda limit: build(scenario(clients__0__gpu="h100-sxm", clients__0__power_limit=limit)),
    ("701 W", "power_limit: must be <= 700 W, the design power of h100-sxm, got 701 W"),
    ("300 W", "power_limit: must be >= 350 W, half of the design power"),
)


def test_a_cap_needs_step_times_that_follow_clock():
    predictor = mist.RooflinePredictor(mist.load_model("llama-3.1-8b"), mist.Cluster(GPU))
    with pytest.raises(ScenarioError, match="power_limit must be null with a predictor that is"):
        run(TWO_TOGETHER, gpu=mist.load_gpu("h100-sxm"), power_limit=400.0, predictor=predictor)
    with pytest.raises(ScenarioError, match="power_limit: must be null with a predictor other"):
        build(
            scenario(
                clients__0__gpu="ascend-910b3",
                clients__0__predictor={"type": "bestserve"},
                clients__0__power_limit=f"{mist.load_gpu('ascend-910b3').power * 0.7} W",
            )
        )


def test_engines_whose_gpus_nobody_knows_say_so():
    client = mist.llm_client("llm", model="llama-3.1-8b", gpu=GPU)
    client.traits = replace(client.traits, machine=None)
    result = mist.Simulation(clients=[client], workload=TWO_TOGETHER).run()
    assert result.summary["power_unknown"] == ["llm"]
    assert "energy_j" not in result.summary
    assert "energy" not in result.requests
    assert "energy" not in result.clients
    with pytest.raises(ScenarioError, match="cost must be None, since the GPUs of"):
        mist.Simulation(clients=[client], workload=TWO_TOGETHER, cost=mist.CostOptions())


def test_what_is_printed():
    console = Console(width=100, record=True, file=io.StringIO())
    quiet = simulate(scenario())
    console.print(results_table(quiet))
    assert "Energy" not in console.export_text()
    console.print(results_table(simulate(scenario(power={}))))
    assert "energy per output token" in console.export_text()
    console.print(results_table(simulate(scenario(cost={}))))
    text = console.export_text()
    assert "Energy and cost" in text
    assert "GPU power spec-only" in text
    assert "$; GPUs at 1.5484 $/h, on demand (Nebius; 2025-2026)" in text
    console.print(replications_table(mist.replicate(scenario(cost={}, replications=2), jobs=1)))
    assert "$" in console.export_text()
