"""Clients with roles in a scenario file: what has to be said, and what comes of it."""

import json
from typing import Any

import pytest

from mist_sim import Scenario, ScenarioError, simulate
from mist_sim.scenario.build import build
from tests.commands import exit_code
from tests.conftest import ROOT
from tests.reference.scenarios import changed, of_profile, synthetic
from tests.refusals import refused

CONFIG = ROOT / "mist_sim/models/catalog/llama-3.1-8b.json"

DATA: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "workload": of_profile(200, "20 /s"),
    "clients": [
        {"name": "p", "role": "prefill", "gpu": "h100-sxm"},
        {"name": "d", "role": "decode", "gpu": "h100-sxm", "count": 2},
    ],
    "network": {"bandwidth": "100 Gb/s", "latency": "1 ms"},
}


def test_every_answer_with_more_than_a_token_is_handed_over():
    result = simulate(changed(DATA))
    requests, summary = result.requests, result.summary
    several = requests["num_output_tokens"] > 1
    assert summary["completed"] == 200
    assert summary["num_hand_overs"] == several.sum() == len(result.transfers)
    assert summary["handed_over_tokens"] == requests["num_prompt_tokens"][several].sum()
    assert set(result.stages.groupby("stage")["client"].unique().explode()) == {"p", "d-0", "d-1"}
    assert requests["tpot"][several].notna().all()


def test_slower_network_delays_second_token_and_not_first():
    results = [simulate(changed(DATA, network__bandwidth=b)) for b in ("400 Gb/s", "10 Gb/s")]
    fast, slow = (result.summary for result in results)
    assert slow["mean_hand_over_ms"] > 10 * fast["mean_hand_over_ms"]
    first_tokens = (result.requests.set_index("request_id")["ttft"] for result in results)
    assert next(first_tokens).sort_index().equals(next(first_tokens).sort_index())
    assert slow["mean_tpot_ms"] > fast["mean_tpot_ms"]


def test_a_hand_over_takes_its_blocks_over_bandwidth():
    """100 tokens are seven blocks of 16 tokens, each of 128 KiB for a token of Llama-3.1-8B."""
    one = synthetic(1, 100, 2, {"type": "constant", "rate": "1 /s"})
    move = simulate(changed(DATA, workload=one)).transfers.iloc[0]
    num_bytes = 7 * 16 * 131_072
    assert move["end"] - move["start"] == pytest.approx(0.001 + num_bytes * 8 / 100e9, rel=1e-9)


def test_the_resolved_scenario_runs_again():
    first = changed(DATA)
    again = Scenario.from_dict(DATA | {"seed": first.seed})
    assert first.resolved() == again.resolved()
    assert "role: decode" in first.resolved()
    assert simulate(first).summary == simulate(again).summary


test_what_does_not_go_together_is_said = refused(
    lambda changes: changed(DATA, **changes),
    ({"network": None}, "network: is required, since KV entries go from clients with role pre"),
    (
        {"clients__0__role": None, "clients__1__role": None},
        "network: has no effect: no client has a role",
    ),
    (
        {
            "clients__0__role": None,
            "clients__1__role": None,
            "network": {"topology": "hgx-h100", "nodes": 2},
        },
        "no client has a role; spans_nodes: true times clients with GPUs on several nodes",
    ),
    ({"clients__1__role": "prefill"}, "no client serves 'decode'"),
    ({"clients__0__role": "decode"}, "no client serves 'prefill'"),
    ({"clients__1__scheduler": "static"}, "must not be static with role decode"),
    ({"clients__1__model": "llama-3.1-70b"}, "must be llama-3.1-8b as of the other clients"),
    (
        {"clients__0__role": None, "clients__0__scheduler": "static"},
        "must not be static beside clients with a role",
    ),
    ({"clients__0__role": None}, "clients.1.role: has no effect: no client has role prefill"),
    ({"clients__0__role": None, "clients__0__model": "llama-3.1-70b"}, "exchanges KV entries"),
    (
        {"clients__1__kv_cache": {"block_size": 32}},
        "clients.1.kv_cache.block_size: must be 16 as of p, with which d exchanges .* got 32",
    ),
    (
        {"clients__1__kv_cache": {"kv_cache_dtype": "fp8"}},
        "clients.1.kv_cache.kv_cache_dtype: must be auto as of p, with which d .* got fp8",
    ),
    (
        {
            "clients__0__kv_cache": {"kv_cache_dtype": "bf16"},
            "clients__1__kv_cache": {"kv_cache_dtype": "fp16"},
        },
        "clients.1.kv_cache.kv_cache_dtype: must be bf16 as of p, .* got fp16",
    ),
    (
        {
            "clients__1__role": None,
            "clients__1__kv_cache": {"kv_cache_dtype": "int8", "block_size": 8},
        },
        "block_size: must be 16 as of p, .* got 8\n.*dtype: must be auto as of p, .* got int8",
    ),
    (
        {"clients__0__role": "both"},
        "must be 'prefill', 'decode', 'p_heavy' or 'd_heavy', got 'both'",
    ),
    ({"network__bandwidth": "0 Gb/s"}, "network.bandwidth: must be finite and > 0 B/s, got 0"),
    ({"network__latency": "-1 ms"}, "network.latency: must be finite and >= 0 s, got -0.001"),
)


@pytest.mark.parametrize(
    ("one", "other"), [("auto", "bf16"), ("float16", "fp16"), ("fp8", "fp8_e4m3"), ("fp16", "auto")]
)
def test_names_of_one_way_to_store_entries_are_alike(one, other):
    simulation = build(
        changed(
            DATA,
            clients__0__kv_cache={"kv_cache_dtype": one},
            clients__1__kv_cache={"kv_cache_dtype": other},
        )
    )
    first, second = (client.kv_block_bytes for client in simulation.clients[:2])
    assert first == second


def test_engines_that_exchange_nothing_may_differ():
    simulation = build(
        changed(
            DATA,
            network=None,
            clients__0__role=None,
            clients__1__role=None,
            clients__1__kv_cache={"kv_cache_dtype": "fp8", "block_size": 16},
        )
    )
    first, second = (client.kv_block_bytes for client in simulation.clients[:2])
    assert first == 2 * second


def test_what_the_model_says_of_its_cache_counts(tmp_path):
    """A checkpoint with a cache in 8 bits, and a client that is told so."""
    config = json.loads(CONFIG.read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 8, "type": "float", "strategy": "tensor"},
                "input_activations": {"num_bits": 8, "type": "float", "strategy": "tensor"},
            }
        },
        "ignore": ["lm_head"],
        "kv_cache_scheme": {"num_bits": 8, "type": "float"},
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    changed(DATA, model=str(path), clients__1__kv_cache={"kv_cache_dtype": "fp8"})
    with pytest.raises(ScenarioError, match="must be fp8 as of p, .* got bf16"):
        changed(DATA, model=str(path), clients__1__kv_cache={"kv_cache_dtype": "bf16"})


def lengths(prompt: int, output: int = 2, *, low: int | None = None) -> dict[str, Any]:
    """Return a workload of equal prompts, or of prompts from `low` tokens on."""
    law = {"type": "fixed", "tokens": prompt}
    return {
        "lengths": {
            "type": "synthetic",
            "num_requests": 3,
            "prompt": law if low is None else {"type": "uniform", "low": low, "high": prompt},
            "output": {"type": "fixed", "tokens": output},
        },
        "arrivals": {"type": "constant", "rate": "1 /s"},
    }


SMALL = {"num_gpu_blocks_override": 10}
REPETITION = {
    "lengths": {
        "type": "prefix_repetition",
        "num_requests": 3,
        "prefix_len": 150,
        "suffix": {"type": "uniform", "low": 11, "high": 20},
        "output": {"type": "fixed", "tokens": 2},
    },
    "arrivals": {"type": "constant", "rate": "1 /s"},
}


test_prompts_that_no_client_can_go_on_with_are_refused_before_a_run = refused(
    lambda changes: simulate(changed(DATA, **changes)),
    (
        {"workload": lengths(145), "clients__1__kv_cache": SMALL},
        (
            r"workload.lengths must have prompts of at most 144 tokens, the most that a client "
            r"holds which decodes \(d-0: 144, by its KV cache; d-1: 144, .*\), got 145 or more"
        ),
    ),
    (
        {"workload": lengths(300, low=145), "clients__1__kv_cache": SMALL},
        "got 145 or more in each; all would be rejected",
    ),
    ({"workload": REPETITION, "clients__1__kv_cache": SMALL}, "got 161 or more in each"),
    (
        {"workload": lengths(1024), "clients__1__max_model_len": 1024},
        "at most 1023 tokens, .* d-1: 1023, by max_model_len=1024",
    ),
)


def test_one_message_and_exit_code_2(tmp_path, capsys):
    path = tmp_path / "apart.yaml"
    changes = {"workload": lengths(145), "clients.1.kv_cache": SMALL}
    path.write_text(Scenario.from_dict(DATA, changes).resolved())
    assert exit_code("run", path, "--quiet") == 2
    errors = capsys.readouterr().err
    assert errors.count("workload.lengths must have prompts of at most 144 tokens") == 1
    assert "Traceback" not in errors


@pytest.mark.parametrize("first_token", ["prefill", "decode"])
@pytest.mark.parametrize("transfer", ["pull", "push"])
def test_who_can_never_be_held_is_rejected_with_the_reason_and_counted(transfer, first_token):
    """Prompts of 100 to 300 tokens; nine of the ten blocks hold 144 of them."""
    workload = lengths(300, low=100)
    workload["lengths"]["num_requests"] = 60
    result = simulate(
        changed(
            DATA,
            workload=workload,
            clients__1__kv_cache=SMALL,
            hand_over__transfer=transfer,
            hand_over__first_token=first_token,
        )
    )
    requests = result.requests
    assert 144 not in requests["num_prompt_tokens"].tolist()
    is_rejected = requests["status"] == "rejected"
    assert 0 < is_rejected.sum() == result.summary["num_rejected"] < 60
    assert is_rejected.tolist() == (requests["num_prompt_tokens"] > 144).tolist()
    held = r"d-[01]: \d+ tokens exceed the KV cache of 144 tokens \(9 blocks of 16\)"
    assert requests["reason"][is_rejected].str.fullmatch(held).all()
    assert requests["interference"].isna().equals(is_rejected)  # they have no second token
    prompts = result.stages.query("stage == 'prefill'")["request_id"]
    is_computed = requests["request_id"].isin(prompts)
    assert (
        is_computed[is_rejected].all() if transfer == "pull" else not is_computed[is_rejected].any()
    )
