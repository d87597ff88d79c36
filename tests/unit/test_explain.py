"""Steps taken apart: the operators add up to the step, each is what paper and pencil give."""

import io
import json
import shlex

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from mist_sim import Scenario, simulate
from mist_sim.cli.app import app
from mist_sim.core.batch import StepBatch
from mist_sim.errors import ScenarioError
from mist_sim.explain import Engines, HandBatch, explain_batch, explain_moment
from mist_sim.hardware import load_gpu
from mist_sim.hardware.predictors.explained import explained, merged
from mist_sim.report.step import step_table
from mist_sim.scenario import build
from mist_sim.studies.built import Built
from tests.effort import examples
from tests.reference.predictors import ConstantPredictor
from tests.reference.scenarios import of_profile

WORKLOAD = of_profile(60, "20 /s", name="azure-code-2023")
CLIENTS = {
    "dense": {"model": "llama-3.1-8b", "gpu": "h100-sxm"},
    "eager": {
        "model": "qwen2.5-7b",
        "gpu": "a100-80gb-sxm",
        "predictor": {"type": "roofline", "enforce_eager": True},
    },
    "windows and experts": {"model": "gpt-oss-20b", "gpu": "h100-sxm", "tensor_parallel_size": 2},
    "latents": {"model": "deepseek-v3", "gpu": "h200-sxm", "tensor_parallel_size": 8},
    "replicas": {
        "model": "qwen3-30b-a3b",
        "gpu": "h100-sxm",
        "tensor_parallel_size": 2,
        "data_parallel_size": 2,
        "enable_expert_parallel": True,
    },
    "over PCIe": {
        "model": "gemma-3-27b",
        "gpu": "l40s",
        "tensor_parallel_size": 2,
        "host": "l40s-pcie4",
    },
    "drafts": {
        "model": "llama-3.1-70b",
        "gpu": "h100-sxm",
        "tensor_parallel_size": 4,
        "speculative_config": {
            "method": "draft_model",
            "model": "llama-3.2-1b",
            "num_speculative_tokens": 3,
            "acceptance_rate": 0.7,
        },
    },
    "engine times": {
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "overhead": {"prefill_step": "2 ms", "exposed_step": "0.4 ms", "exposed_sequence": "9 us"},
    },
}


def scenario(**client) -> Scenario:
    return Scenario.from_dict({"workload": WORKLOAD, "clients": [{"name": "a", **client}]})


@pytest.fixture(scope="module")
def predictors():
    return {
        name: Built(scenario(**client)).simulation.clients[0].predictor.ranks[0]
        for name, client in CLIENTS.items()
    }


chunks = st.lists(st.tuples(st.integers(1, 4000), st.sampled_from([0, 100, 9000])), max_size=4)


@examples(60)
@given(st.sampled_from(sorted(CLIENTS)), chunks, st.integers(0, 300), st.integers(1, 5000))
def test_operators_add_up_to_the_step(predictors, name, chunks, decodes, context):
    """To 1e-12, planned ahead or not, for every kind of operator that models have."""
    if not (chunks or decodes):
        decodes = 1
    drafts = 3 if name == "drafts" and decodes else 0
    batch = StepBatch(tuple(chunks), decodes, decodes * context, num_drafts=drafts)
    predictor = predictors[name]
    operators = explained(predictor, batch)
    assert all(each.seconds >= 0 for each in operators)
    total = predictor.step_time(batch)
    assert sum(each.seconds for each in operators) == pytest.approx(total, rel=1e-12)
    assert sum(each.seconds for each in merged(operators)) == pytest.approx(total, rel=1e-12)
    on_the_spot = predictor.traits.step_time_on_the_spot
    if on_the_spot is not None:
        found = sum(e.seconds for e in explained(predictor, batch, is_on_the_spot=True))
        assert found == pytest.approx(on_the_spot(batch), rel=1e-12)


def test_ten_operators_by_hand():
    """Llama-3.1-8B on one H100, 8 prompts of 1,024 tokens: work and traffic of every operator.

    Hidden size 4,096, 32 heads and 8 KV heads of 128, MLP 14,336, vocabulary 128,256, 32 layers.
    """
    found = explain_batch(
        scenario(
            **CLIENTS["dense"],
            scheduler={"type": "chunked", "max_num_batched_tokens": 8192},
            sampling={"temperature": 0},
        ),
        HandBatch(prompts=((1024, 0),) * 8),
    )
    rows = found.table.set_index("operator")
    n, h, heads, kv, inner, vocabulary, layers = 8192, 4096, 4096, 1024, 14336, 128256, 32

    def product(inputs: int, outputs: int, tokens: int = n, times: int = layers):
        flops, weights = 2 * tokens * inputs * outputs, 2 * inputs * outputs
        return times * flops, times * (weights + 2 * tokens * (inputs + outputs))

    pairs = 8 * 1024 * 1025 / 2
    by_hand = {
        "norm": (65 * 6 * n * h, 65 * 8 * n * h),
        "qkv_proj": product(h, heads + 2 * kv),
        "rope_and_cache": (
            layers * 3 * n * (heads + kv),
            layers * (2 * n * (2 * heads + 2 * kv) + 4 * n * kv),
        ),
        "o_proj": product(heads, h),
        "up_proj": product(h, 2 * inner),
        "activation": (layers * 4 * n * inner, layers * 2 * n * 3 * inner),
        "down_proj": product(inner, h),
        "embedding": (0.0, 4 * n * h),
        "lm_head": product(h, vocabulary, 8, 1),
        "prefill_attention": (layers * 4 * heads * pairs, layers * (4 * kv * n + 4 * heads * n)),
    }
    assert set(rows.index) == set(by_hand)
    for name, (flops, size) in by_hand.items():
        assert rows.loc[name, "flops"] == pytest.approx(flops, rel=1e-12), name
        assert rows.loc[name, "bytes"] == pytest.approx(size, rel=1e-12), name
    assert rows.loc["up_proj", "bound"] == "compute"
    assert rows.loc["activation", "bound"] == "memory"
    assert next(iter(found.shares)) == "compute"
    seconds = rows["seconds"]
    of_compute = product(h, 2 * inner)[0] / seconds["up_proj"] / 989.4e12
    assert rows.loc["up_proj", "of_peak"] == pytest.approx(of_compute, rel=1e-3)
    of_memory = by_hand["activation"][1] / seconds["activation"] / 3.35e12
    assert rows.loc["activation", "of_peak"] == pytest.approx(of_memory, rel=1e-3)


@pytest.mark.parametrize(
    ("gpu", "quantization", "dtype"),
    [("h100-sxm", "fp8", "fp8"), ("b200", "nvfp4", "fp4"), ("a100-80gb-sxm", "fp8", "bf16")],
)
def test_shares_are_of_the_peak_of_operators_type(gpu, quantization, dtype):
    """Products in 8 or 4 bits beside attention in 16; an A100 has no FLOP/s in FP8."""
    client = {"model": "llama-3.1-8b", "gpu": gpu, "quantization": quantization}
    found = explain_batch(scenario(**client), HandBatch(prompts=((2048, 0),)))
    rates = load_gpu(gpu).flops
    rows = found.table.set_index("operator")
    assert rows.loc["up_proj", "dtype"] == dtype
    assert rows.loc["prefill_attention", "dtype"] == "bf16"
    up = rows.loc["up_proj"]
    assert up["bound"] == "compute"
    assert up["of_peak"] == pytest.approx(up["flops"] / up["seconds"] / rates[dtype], rel=1e-12)
    assert (rows["of_peak"].dropna() < 1).all()
    assert found.summary["peak_flops"] == {name: rates[name] for name in {"bf16", dtype}}


def test_the_ridge_is_of_each_type():
    said = scenario(model="llama-3.1-8b", gpu="h100-sxm", quantization="fp8")
    found = explain_batch(said, HandBatch(prompts=((1024, 0),)))
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(step_table(found.summary))
    text = " ".join(console.export_text().split())
    assert "989 TFLOP/s in 16 bits, 1,979 TFLOP/s in FP8 and 3.35 TB/s" in text
    assert "equal at 295 and 591 FLOP/byte" in text


def test_neither_peak_is_reached_where_the_host_binds():
    found = explain_batch(
        scenario(**CLIENTS["dense"], async_scheduling=False), HandBatch(decodes=1, context=100)
    )
    rows = found.table.set_index("bound")
    assert rows.loc[["host"], "of_peak"].isna().all()
    assert (rows.loc[["memory"], "of_peak"] < 1).all()


def test_what_binds_a_small_step():
    """One answer alone reads weights; its host is hidden only where the engine plans ahead."""
    alone = explain_batch(scenario(**CLIENTS["dense"]), HandBatch(decodes=1, context=100))
    assert next(iter(alone.shares)) == "memory"
    assert "host" not in alone.shares
    behind = scenario(**CLIENTS["dense"], async_scheduling=False)
    assert "host" in explain_batch(behind, HandBatch(decodes=1, context=100)).shares


def test_a_pipeline_is_explained_as_a_pass():
    said = scenario(model="llama-3.1-8b", gpu="h100-sxm", pipeline_parallel_size=2)
    found = explain_batch(said, HandBatch(decodes=8, context=500))
    predictor = Built(said).simulation.clients[0].predictor
    ranks = sum(rank.step_time(found.batch) for rank in predictor.ranks)
    assert found.seconds == pytest.approx(ranks + predictor.rank_delay(8), rel=1e-12)
    assert found.shares["links"] > 0
    assert any("all 2 ranks" in note for note in found.notes)


def test_times_of_others_are_one_operator():
    (whole,) = explained(ConstantPredictor(0.25), StepBatch((), 1, 10))
    assert (whole.seconds, whole.bound) == (0.25, "unknown")


@pytest.mark.parametrize("name", ["dense", "windows and experts"])
def test_a_moment_is_the_step_of_the_run(name):
    """What is explained lasts as long as the step that the run records there."""
    said = scenario(**CLIENTS[name])
    steps = simulate(said).steps
    exact = 0
    for row in steps.iloc[:: max(len(steps) // 20, 1)].itertuples():
        if row.num_steps > 1:
            continue
        found = explain_moment(said, (row.start + row.end) / 2)
        assert found.seconds == pytest.approx(row.end - row.start, rel=1e-9)
        assert found.batch.num_decodes == row.num_decodes
        assert found.batch.num_prefill_tokens == row.num_prefill_tokens
        assert found.moment == (row.start, row.num_waiting)
        exact += 1
    assert exact >= 5


def test_a_later_step_of_a_run_has_grown():
    said = scenario(**CLIENTS["dense"])
    steps = simulate(said).steps
    row = steps[(steps.num_steps > 20)].iloc[0]
    first = explain_moment(said, row.start + 1e-6)
    last = explain_moment(said, row.end - 1e-6)
    gained = (row.num_steps - 1) * row.num_decodes
    assert last.batch.context_sum - first.batch.context_sum == gained
    assert last.moment is not None
    assert last.moment[0] + last.seconds == pytest.approx(row.end, rel=1e-9)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "give the step: --at TIME of the run, or --prompts"),
        (["--at", "1 s", "--decodes", "2"], "--at must be left out with --prompts"),
        (["--at", "soon"], "--at: "),
        (["--at", "1000000 s"], "llm-0 computes no step at 1e+06 s"),
        (["--decodes", "2"], "context must be >= 1 token with decodes, got 0"),
        (["--decodes", "-2", "--context", "5"], "decodes must be >= 0, got -2"),
        (["--context", "5"], "a step needs a prompt or a decode"),
        (["--prompts", "8", "--context", "5"], "context must be left out without decodes"),
        (["--prompts", "0"], "prompts must have >= 1 new tokens"),
        (["--prompts", "5@x"], "--prompts must be numbers of new tokens"),
        (["--decodes", "257", "--context", "9"], "llm-0: a step must have at most 256 sequences"),
        (["--prompts", "2049"], "llm-0: a step must have at most 2,048 tokens, got 2,049"),
        (["--prompts", "5@131072"], "at most 131,072 tokens of its longest sequence"),
        (["--decodes", "200", "--context", "100000"], "at most 28,899 blocks of the KV cache"),
        (["--decodes", "1", "--context", "9", "--client", "x"], "got 'x'"),
        (["--decodes", "1", "--context", "9", "--force"], "--force has no effect without --out"),
    ],
)
def test_bad_input_is_one_message(words, problem):
    found = CliRunner().invoke(app, ["explain", "demo", *words])
    assert found.exit_code == 2
    assert problem in found.stderr
    assert found.stdout == ""


def test_a_scenario_without_engines_has_no_step():
    worker = {"name": "w", "type": "sequential", "serves": ["preprocess"], "base_time": "1 ms"}
    said = Scenario.from_dict(
        {"workload": WORKLOAD | {"pipeline": ["preprocess"]}, "clients": [worker]}
    )
    with pytest.raises(ScenarioError, match="none in this scenario"):
        explain_batch(said, HandBatch(decodes=1, context=1))


def test_files_and_words(tmp_path):
    words = ["explain", "demo", "--prompts", "512", "--decodes", "8", "--context", "100"]
    shown = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "out")])
    assert shown.exit_code == 0
    told = " ".join(shown.stdout.split())
    assert "512 new tokens, 8 decodes with 100 tokens of context, KV entries in 16 bits." in told
    data = json.loads((tmp_path / "out" / "step.json").read_text())
    table = pd.read_csv(tmp_path / "out" / "step.csv")
    assert table.seconds.sum() * 1e3 == pytest.approx(data["step_ms"])
    assert table.share.sum() == pytest.approx(1)
    sources = table.set_index("operator").source
    assert sources["qkv_proj"].startswith("tools.kernels")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--decodes 4 --context 200", "4 decodes on each of 2 engines, 8 in all, with 200 tokens"),
        ("--prompts 30", "1 prompt on each of 2 engines, 2 in all, with 30 new tokens"),
        ("--at '1 s'", "llm, one of its 2 engines: "),
    ],
)
def test_a_step_says_that_each_engine_has_one(tmp_path, words, told):
    client = {"name": "llm", **CLIENTS["replicas"]}
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"clients": [client], "workload": WORKLOAD}))
    result = CliRunner().invoke(app, ["explain", str(path), *shlex.split(words)])
    assert told in " ".join(result.output.split())


def test_step_has_room_in_cache_of_its_engine():
    client = CLIENTS["replicas"] | {"name": "llm", "kv_cache": {"num_gpu_blocks_override": 100}}
    scenario = Scenario.from_dict({"clients": [client], "workload": WORKLOAD})
    with pytest.raises(ScenarioError, match="at most 9. blocks of the KV cache"):
        explain_batch(scenario, HandBatch(decodes=10, context=300))


def test_a_step_by_hand_needs_no_workload(tmp_path):
    file = tmp_path / "engine.yaml"
    file.write_text("clients: [{name: a, model: llama-3.1-8b, gpu: h100-sxm}]")
    words = ["explain", str(file), "--decodes", "8", "--context", "500", "--json"]
    alone = json.loads(CliRunner().invoke(app, words).stdout)
    batch = HandBatch(decodes=8, context=500)
    for each in (scenario(**CLIENTS["dense"]), Engines.load(file)):
        assert alone["step_ms"] == explain_batch(each, batch).data["step_ms"]
    words = ["explain", str(file), "--at", "1 s"]
    assert "workload: is required" in CliRunner().invoke(app, words).stderr
    words = ["explain", "--from-vllm", "vllm serve meta-llama/Llama-3.1-8B", "--prompts", "100"]
    assert CliRunner().invoke(app, [*words, "--set", "clients.0.gpu=h100-sxm"]).exit_code == 0


def test_a_whole_step_by_its_operators():
    """All bound by memory: the mean of their shares, weighted by their time."""
    step = explain_batch(scenario(**CLIENTS["dense"]), HandBatch(decodes=60, context=4000))
    gpu, table = load_gpu("h100-sxm"), step.table
    assert step.of_peak["bandwidth"] == pytest.approx(
        table["bytes"].sum() / gpu.memory_bandwidth / step.seconds
    )
    assert step.of_peak["flops"] == pytest.approx(
        table["flops"].sum() / gpu.flops["bf16"] / step.seconds
    )


@pytest.mark.parametrize(
    ("batch", "metric"), [(HandBatch(decodes=8, context=9), "tpot"), (HandBatch(((9, 0),)), "ttft")]
)
def test_a_step_has_the_bar_of_its_latency(batch, metric):
    found = explain_batch(scenario(**CLIENTS["dense"]), batch).expected_error
    assert (found["metric"], found["low"] < found["high"]) == (metric, True)


CHIP = """
memory = "100 GB"
memory_bandwidth = "3 TB/s"
flops.bf16 = "500 TFLOP/s"
interconnect = {kind = "nvlink", bandwidth = "400 GB/s"}
"""


def test_a_chip_needs_no_watts_and_no_host(tmp_path):
    (tmp_path / "chip.toml").write_text(CHIP)
    chip = {"model": "llama-3.1-8b", "gpu": str(tmp_path / "chip.toml")}
    step = explain_batch(scenario(**chip), HandBatch(decodes=8, context=500))
    assert step.expected_error["like"].startswith("not known: chip is a GPU of your own")
    data = {"workload": WORKLOAD, "power": {}, "clients": [{"name": "a", **chip}]}
    result = simulate(Scenario.from_dict(data))
    assert "energy_j" not in result.summary
    assert "energy" not in result.clients
    assert "power" not in result.over_time()
    assert "the power of chip is not" in str([e for e in result.warnings if "joules" in e.text])


@pytest.mark.parametrize(
    ("more", "needs"),
    [
        ({"clients.0.power_limit": "300 W"}, "power_limit: must be null with chip, whose power"),
        ({"clients.0.scheduler.preemption": "swap"}, "host_bandwidth of chip is not known"),
        (
            {"clients.0.gpu_price": "3 $/h", "cost.electricity": "1 $/kWh"},
            "cost.electricity must be 0 .*, since the power of chip is not known",
        ),
    ],
)
def test_what_a_chip_lacks_is_said_where_it_is_needed(tmp_path, more, needs):
    (tmp_path / "chip.toml").write_text(CHIP)
    data = {"workload": WORKLOAD, "clients": [{"name": "a", "model": "llama-3.1-8b"}]}
    with pytest.raises(ScenarioError, match=needs):
        build(Scenario.from_dict(data, {"clients.0.gpu": str(tmp_path / "chip.toml"), **more}))
