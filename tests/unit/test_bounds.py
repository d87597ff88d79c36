"""Extremes: one message for each, at once, and never a traceback or a hang."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from mist_sim import Scenario, ScenarioError, load_gpu, load_model
from mist_sim.bounds import CONFIG_BYTES, SCENARIO_BYTES, TOML_BYTES
from mist_sim.models import ModelSpec
from mist_sim.scenario.build import build
from tests.damage.scenarios import MUCH
from tests.reference.scenarios import BASE, scenario
from tests.unit.models.test_models import LLAMA


@pytest.fixture(autouse=True)
def working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def refusal(**overrides: object) -> str:
    """Return what is said, which takes less than a second of processor time."""
    before = time.process_time()
    with pytest.raises(ScenarioError) as caught:
        build(scenario(**overrides))
    assert time.process_time() - before < 1
    return str(caught.value)


def model_of(**changes: Any) -> str:
    Path("big").mkdir(exist_ok=True)
    Path("big/config.json").write_text(json.dumps(LLAMA | changes), "utf-8")
    return "./big"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_hidden_layers": 32_000_000}, "num_hidden_layers must be <= 10000, got 32000000"),
        (
            {"num_hidden_layers": 2**64},
            "num_hidden_layers must be <= 10000, got a number of 65 bits",
        ),
        ({"num_hidden_layers": 10_001}, "num_hidden_layers must be <= 10000, got 10001"),
        ({"num_attention_heads": 10**9}, "num_attention_heads must be <= 100000, got 1000000000"),
        ({"vocab_size": 10**12}, "vocab_size must be <= 1000000000, got 1000000000000"),
        ({"hidden_act": "x" * 5000}, "does not fit"),
    ],
)
def test_models_without_measure(changes, problem):
    assert problem in refusal(
        model=model_of(**{"hidden_size": 65_536, "head_dim": 8_192, **changes})
    )


def test_models_made_in_python_have_the_same_bounds():
    config = {**LLAMA, "num_hidden_layers": 10_000}
    assert ModelSpec.from_config(config, name="deep", source="x").num_layers == 10_000
    sizes = dict.fromkeys(["num_layers", "hidden_size", "intermediate_size"], 20_000)
    more = dict.fromkeys(["num_key_value_heads", "head_dim", "vocab_size"], 1)
    with pytest.raises(ValueError, match="num_layers must be in .1, 10000., got 20000"):
        ModelSpec(name="x", num_attention_heads=1, max_position_embeddings=1, **sizes, **more)


@pytest.mark.parametrize(
    ("place", "value", "problem"),
    [
        ("workload.arrivals.rate", "1e300 /s", "a rate must be 0 or from 1e-09 to 1e+09 /s"),
        ("workload.arrivals.rate", "1e-300 /s", "a rate must be 0 or from 1e-09 to 1e+09 /s"),
        ("workload.timeout", "1e300 s", "a duration must be 0 or from 1e-12 to 1e+09 s"),
        ("workload.timeout", "1e-300 s", "a duration must be 0 or from 1e-12 to 1e+09 s"),
        ("warmup", "1e300 s", "a duration must be 0 or from 1e-12 to 1e+09 s"),
        ("slo.ttft", "1e-300 s", "a duration must be 0 or from 1e-12 to 1e+09 s"),
        ("workload.timeout", "1" * 50_000 + " s", "a duration needs a number and a unit"),
        ("workload.priorities", {2**64: 1.0}, "must be <= 1000000000"),
        ("workload.priorities", {0: 1e300}, "must be 0 or from 1e-12 to 1e+12 in size, got 1e+300"),
        ("workload.ttft_deadline", {2**64: "1 s"}, "a priority must be <= 1000000000, got "),
        ("workload.lengths.num_requests", 2**64, "must be <= 1000000000"),
        ("seed", 2**64, "must be <= 9223372036854775807, got 18446744073709551616"),
        ("seed", 10**400, "must be <= 9223372036854775807, got 1000"),
        ("replications", 2**64, "must be <= 10000"),
        ("clients.0.count", 2**64, "must be <= 10000"),
        ("clients.0.name", "x" * 300, "must have <= 100 characters, got 'xxx"),
        ("clients.0.name", "x" * 101, "must have <= 100 characters"),
        ("clients.0.gpu", "x" * 300, "no path can be 'xxx"),
        ("model", "x" * 5_000, "must have <= 4096 characters, got 'xxx"),
        ("clients.0.max_model_len", 2**64, "must be <= 1000000000"),
        ("clients.0.expert_load_imbalance", 1e300, "must be 0 or from 1e-12 to 1e+12 in size"),
        ("clients.0.kv_cache.num_gpu_blocks_override", 2**64, "must be <= 1000000000"),
        ("clients.0.scheduler.max_num_seqs", 2**64, "must be <= 1000000000"),
        ("clients.0.engine", "x" * 5_000, "must be vllm-0.10 to vllm-0.33"),
        ("clients.0.engine", "9" * 5_000 + ".1", "other engines are not known by name"),
        (
            "clients.0.predictor",
            {"type": "roofline", "max_cudagraph_capture_size": 10**9},
            "max_cudagraph_capture_size must be <= 1048576, got 1000000000",
        ),
    ],
)
def test_values_without_measure(place, value, problem):
    message = refusal(**{place.replace(".", "__"): value})
    assert problem in message
    assert place.rpartition(".")[2] in message
    assert len(message) < 2_000


def test_more_engines_than_anybody_can_make():
    clients = [{**BASE["clients"][0], "count": 5_000, "data_parallel_size": 3}]
    assert "clients: must have <= 10000 engines and other clients in all, got 15000" in refusal(
        clients=clients
    )


def test_files_without_measure():
    lines = "  - {name: a, gpu: h100-sxm}\n"
    Path("big.yaml").write_text("clients:\n" + lines * 180_000, "utf-8")
    Path("big.json").write_text(json.dumps(LLAMA | {"x": "y" * CONFIG_BYTES}), "utf-8")
    Path("big.toml").write_text(f'x = "{"y" * CONFIG_BYTES}"', "utf-8")
    for read, path, most in (
        (Scenario.load, "big.yaml", SCENARIO_BYTES),
        (load_model, "big.json", CONFIG_BYTES),
        (load_gpu, "big.toml", TOML_BYTES),
    ):
        before = time.process_time()
        with pytest.raises(ScenarioError, match=f"{path}: must have <= {most} bytes"):
            read(path)
        assert time.process_time() - before < 1


def test_values_at_the_bounds_are_taken():
    changes = {
        "workload.arrivals": {"type": "poisson", "rate": "1e9 /s"},
        "workload.timeout": "1e9 s",
        "slo.ttft": "1e-12 s",
        "seed": 2**63 - 1,
        "clients.0.name": "x" * 100,
        "clients.0.role": None,
        "clients.1.role": None,
        "network": None,
    }
    loaded = Scenario.from_dict(MUCH, changes)
    Path("again.yaml").write_text(loaded.resolved(), "utf-8")
    assert Scenario.load("again.yaml") == loaded
