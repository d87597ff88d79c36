"""What the GPUs of a bundle draw, weigh and cost: by hand, from scenarios, and what is refused."""

import numpy as np
import pytest

import mist_sim as mist
from mist_sim.clients import AfdClient
from mist_sim.hardware.afd import ffn_work
from mist_sim.hardware.work import StepCounts
from mist_sim.lifecycle import StartUp
from mist_sim.lifecycle.start_up import SAFETENSORS_RATE
from mist_sim.scenario.build import build
from mist_sim.studies.built import Built
from tests.refusals import refused

CYCLE = 3e-4
SCENARIO = """
model: llama-3.1-8b
workload:
  lengths:
    type: synthetic
    num_requests: 1
    prompt: {type: fixed, tokens: 100}
    output: {type: fixed, tokens: 3}
  arrivals: all_at_once
clients:
  - {name: prefill, role: prefill, gpu: h100-sxm}
  - name: bundle
    type: afd
    gpu: h100-sxm
    attention_workers: 2
    slots: 2
    alpha_a: 1
    beta_a: 10
    alpha_f: 3
    beta_f: 5
    alpha_c: 2
    beta_c: 4
    cycle_s: 300 us
network: {bandwidth: 400 Gb/s}
cost: {}
"""
HIDDEN, HEADS, KV_HEADS, HEAD, MLP, VOCABULARY, LAYERS = 4096, 32, 8, 128, 14336, 128256, 32
ATTENTION = LAYERS * HIDDEN * HEAD * (HEADS + 2 * KV_HEADS + HEADS)  # parameters
FFN = LAYERS * 3 * HIDDEN * MLP
HEAD_OF_MODEL = VOCABULARY * HIDDEN


@pytest.fixture
def result(tmp_path):
    return mist.simulate(loaded(tmp_path))


def loaded(tmp_path, **changes):
    path = tmp_path / "bundle.yaml"
    path.write_text(SCENARIO)
    overrides = {key.replace("__", "."): value for key, value in changes.items()}
    return mist.Scenario.load(path, overrides=overrides)


def bundle(**options):
    plain = {
        "model": "llama-3.1-8b",
        "attention_workers": 2,
        "slots": 2,
        "coefficients": "deepseek-v3-ascend-910c",
        "cycle_s": 1e-6,
        "gpu": "h100-sxm",
    }
    return AfdClient("bundle", **(plain | options))


def watts_by_hand(num_bytes, num_products, seconds):
    """Watts of an H100 that reads so many bytes, and multiplies and adds so many 16-bit numbers."""
    gpu = mist.load_gpu("h100-sxm")
    load = gpu.draw.idle + gpu.draw.active
    load += gpu.draw.memory * min(num_bytes / gpu.memory_bandwidth / seconds, 1.0)
    load += gpu.draw.compute * 2 * num_products / gpu.flops["bf16"] / seconds
    return gpu.power * max(load / (1 + load**4) ** 0.25, gpu.draw.idle)


def test_watts_joules_and_dollars_by_hand(result):
    """Two steps: attention of 100 and 101 tokens on one of two workers, the FFN of 4 slots."""
    row = result.clients.set_index("client").loc["bundle"]
    attention = (100 + 2 * 10 + 101 + 2 * 10) * CYCLE  # GPU seconds of both workers
    ffn = 2 * (3 * 4 + 5) * CYCLE
    weights = 2 * (ATTENTION + HEAD_OF_MODEL)  # that each worker reads in two steps
    keys = 2 * KV_HEADS * HEAD * LAYERS * (101 + 102)  # values included, of one of the two workers
    of_each = weights / 2  # products with them: one of both workers has a token
    joules = attention * watts_by_hand(2 * (weights + keys / 2), of_each, attention / 2)
    joules += ffn * watts_by_hand(2 * 2 * FFN, 2 * 4 * FFN, ffn)
    assert row["energy"] - row["idle_energy"] == pytest.approx(joules, rel=1e-3)  # activations
    end = result.requests["finished_at"].max()
    idle = 3 * end - attention - ffn
    assert row["idle_energy"] == pytest.approx(idle * 126.0)
    assert row["num_gpus"] == 3
    price = row["gpu_price"]
    assert row["cost"] == pytest.approx(3 * end * price / 3600)
    assert row["idle_cost"] == pytest.approx(idle * price / 3600)


def test_the_summary_has_joules_and_dollars_of_a_token_as_engines_have(result):
    summary, tokens = result.summary, 3
    joules = result.clients["energy"].sum()
    assert summary["energy_j"] == pytest.approx(joules)
    assert summary["energy_per_output_token_j"] == pytest.approx(joules / tokens)
    dollars = result.clients["cost"].sum()
    assert summary["cost_per_million_output_tokens_usd"] == pytest.approx(dollars / tokens * 1e6)
    assert summary["power_estimates"] == {"prefill": "fitted", "bundle": "assumed"}
    assert summary["prices"]["prefill"] == summary["prices"]["bundle"]


def test_what_requests_and_idle_workers_take_is_what_was_drawn(result):
    idle = result.clients[["idle_energy", "idle_cost"]].sum()
    spent = result.requests[["energy", "cost"]].sum()
    for what in ("energy", "cost"):
        total = result.clients[what].sum()
        assert spent[what] + idle[f"idle_{what}"] == pytest.approx(total)
    over_time = result.over_time(0.01)
    joules = (over_time["power"] * (over_time["end"] - over_time["start"])).sum()
    assert joules == pytest.approx(result.clients["energy"].sum())


def test_steps_cost_less_where_empty_slots_cost_nothing(tmp_path):
    """One request: the FFN computes one of four slots, and one attention worker works."""
    sparse = mist.simulate(loaded(tmp_path, clients__1__static_graph=False))
    row = sparse.clients.set_index("client").loc["bundle"]
    busy = (100 + 10 + 101 + 10 + 2 * (3 * 1 + 5)) * CYCLE
    assert sum(each.by_request.sum() for each in sparse.ledger.gpu_seconds(1)) == (
        pytest.approx(busy)
    )
    end = sparse.requests["finished_at"].max()
    assert row["idle_energy"] == pytest.approx((3 * end - busy) * 126.0)


@pytest.mark.parametrize("billing", ["reservation", "use"])
def test_workers_of_two_kinds_cost_what_each_costs(tmp_path, billing):
    """Two GPUs at 3 $/h for attention, four at 6 $/h for the FFN."""
    result = mist.simulate(
        loaded(
            tmp_path,
            clients__1__gpu_price="3 $/h",
            clients__1__ffn_gpu="h200",
            clients__1__ffn_gpu_price="6 $/h",
            clients__1__ffn_gpus=4,
            cost__billing=billing,
        )
    )
    row, end = result.clients.set_index("client").loc["bundle"], result.ledger.end
    attention, ffn = (241 * CYCLE, 2 * 17 * CYCLE * 4) if billing == "use" else (2 * end, 4 * end)
    assert row["cost"] == pytest.approx((3 * attention + 6 * ffn) / 3600)
    assert row["gpu_price"] == pytest.approx((2 * 3 + 4 * 6) / 6)
    assert result.summary["prices"]["bundle"] == "3 $/h, given; 6 $/h, given"
    assert row["cost"] == pytest.approx(
        result.summary["cost_usd"] - result.clients.set_index("client").loc["prefill", "cost"]
    )


def test_a_gpu_of_ones_own(tmp_path):
    """Half the design power of an H100 in the same steps draws half, at a price of its own."""
    (tmp_path / "mine.toml").write_text('based_on = "h100-sxm"\nname = "mine"\npower = "350 W"\n')
    plain = mist.simulate(loaded(tmp_path))
    mine = mist.simulate(loaded(tmp_path, clients__1__gpu="mine.toml"))
    both = [run.clients.set_index("client").loc["bundle", "energy"] for run in (plain, mine)]
    assert both[1] == pytest.approx(both[0] / 2)


def test_gpus_are_counted_for_comparisons(tmp_path):
    assert Built(loaded(tmp_path)).num_gpus == 1 + 3
    assert Built(loaded(tmp_path, clients__1__ffn_gpus=4)).num_gpus == 1 + 6
    assert Built(loaded(tmp_path, clients__1__gpu=None, cost=None)).num_gpus is None


@pytest.mark.parametrize("model", ["llama-3.1-8b", "mixtral-8x7b", "deepseek-v3"])
def test_both_kinds_of_workers_hold_the_whole_model(model):
    gpus = {"attention_gpus": 1, "ffn_gpus": 8 if model == "deepseek-v3" else 2}
    attention, ffn = bundle(model=model, gpu="h200", **gpus).traits.machine.groups
    whole = mist.load_model(model).weight_bytes_per_rank(1)
    assert attention.weight_bytes + ffn.weight_bytes == pytest.approx(whole, rel=3e-3)  # routers
    assert (attention.num_gpus, ffn.num_gpus) == (2, gpus["ffn_gpus"])


def test_experts_are_read_once_for_the_whole_batch():
    """A step of a token reads two experts of eight; one of a hundred slots reads all of them."""
    read = []
    for slots in (1, 100):
        client = bundle(model="mixtral-8x7b", gpu="h200", attention_workers=1, slots=slots)
        ffn = client.traits.machine.ffn
        demand = ffn_demand(ffn, slots)
        read.append(demand.memory.item() * ffn.gpu.memory_bandwidth)
    expert = 32 * 3 * 4096 * 14336 * 2
    assert read[0] == pytest.approx(2 * expert, rel=0.01)
    assert read[1] == pytest.approx(8 * expert, rel=0.05)


def ffn_demand(workers, num_tokens):
    one = np.ones(1)
    counts = StepCounts(
        num_steps=one,
        num_prefill_tokens=0 * one,
        num_samples=num_tokens * one,
        num_queries=num_tokens * one,
        prefill_keys=0 * one,
        prefill_pairs=0 * one,
        num_decodes=num_tokens * one,
        decode_keys=0 * one,
    )
    return ffn_work(workers.model, workers.cluster, counts, num_tokens * one)


def test_workers_start_together_and_the_slowest_counts():
    """Of Llama's 16 GB the FFN worker loads 11.3 GB, each attention worker the rest."""
    machine = bundle().traits.machine
    start = StartUp(compilation=0.0, graph_capture=0.0, other=1.0)
    ffn = 2 * FFN / SAFETENSORS_RATE
    assert start.seconds(machine, "bundle") == pytest.approx(1.0 + ffn, rel=1e-3)
    four = bundle(ffn_gpus=4).traits.machine
    attention = 2 * (ATTENTION + 2 * HEAD_OF_MODEL) / SAFETENSORS_RATE
    assert start.seconds(four, "bundle") == pytest.approx(1.0 + attention, rel=1e-3)


# --- what is refused ----------------------------------------------------------------------------


test_gpus_that_are_refused = refused(
    lambda options: bundle(**options),
    ({"gpu": None, "ffn_gpu": "h200"}, "gpu is required with ffn_gpu"),
    ({"gpu": None, "gpu_price": 2.0}, "gpu is required with gpu_price"),
    ({"ffn_gpu_price": 2.0}, "ffn_gpu is required with ffn_gpu_price"),
    ({"gpu_price": -1.0}, r"gpu_price must be finite and >= 0 \$/h"),
    ({"gpu": "h101"}, "h101"),
    ({"attention_gpus": 3}, "attention_gpus must divide the 32 attention heads"),
    ({"ffn_gpus": 3}, "ffn_gpus must divide the MLP size 14336"),
    ({"model": "mixtral-8x7b", "ffn_gpus": 9}, "ffn_gpus must be <= 8, the experts"),
    ({"model": "deepseek-v3", "gpu": "h200"}, r"ffn_gpus must be >= 5: weights of 612\.8 GiB are"),
    ({"kv_memory": 76 * 2.0**30, "max_model_len": 8192}, r"attention_gpus must be >= 2: weights"),
    error=ValueError,
)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clients__1__gpu": None}, "cost must be None, since the GPUs of bundle"),
        ({"clients__1__gpu": "h101"}, "clients.1.gpu: "),
        ({"clients__1__gpu": None, "clients__1__ffn_gpus": 2, "cost": None}, "no effect: the net"),
    ],
)
def test_scenarios_that_are_refused(tmp_path, changes, words):
    with pytest.raises(mist.ScenarioError, match=words):
        build(loaded(tmp_path, **changes))
