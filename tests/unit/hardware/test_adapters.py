"""LoRA adapters: bytes by hand, laws of their times, and what scenarios and flags say of them."""

import pytest

import mist_sim as mist
from mist_sim import Scenario, Workload, simulate
from mist_sim.core.batch import AdapterWork, StepBatch
from mist_sim.core.request import Request
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.predictors.adapter_times import AdapterTimes
from mist_sim.models import load_model
from mist_sim.models.adapters import LoraConfig, adapter_bytes, adapter_moves
from mist_sim.rng import Streams
from mist_sim.traces.workload import with_adapters
from tests.reference.scenarios import PRESSED, scenario
from tests.refusals import refused

LLAMA = load_model("llama-3.1-8b")
FOUR = {"max_loras": 4, "max_lora_rank": 16}
SHARES = {"base": 1, "a": 1, "b": 1, "c": 1, "d": 1, "e": 1}


@pytest.mark.parametrize(
    ("name", "params"),
    [("llama-3.1-8b", 41_943_040), ("mistral-7b-v0.1", 41_943_040), ("llama-2-7b", 39_976_960)],
)
def test_parameters_of_rank_16(name, params):
    """The trainable parameters that PEFT counts with all matrices of attention and MLP."""
    assert adapter_bytes(load_model(name), LoraConfig(), 1) == 2 * params


def test_what_lies_whole_on_every_rank_is_split_where_it_is_fully_sharded():
    """By hand, of Llama-3.1-8B on four ranks: A of columns and B of rows lie whole."""
    columns = 16 * (3 * 4096 + 2 * 4096) + 16 * (6144 + 2 * 14336) // 4
    rows = 16 * (4096 + 14336) // 4 + 16 * 2 * 4096
    assert adapter_bytes(LLAMA, LoraConfig(), 4) == 2 * 32 * (columns + rows)
    whole = adapter_bytes(LLAMA, LoraConfig(), 1)
    assert adapter_bytes(LLAMA, LoraConfig(fully_sharded_loras=True), 4) == whole / 4


def test_experts_have_adapters_each():
    """By hand: 128 experts of 768, their gate and up as two slices, on one rank."""
    model = load_model("qwen3-30b-a3b")
    attention = 16 * (3 * 2048 + 4096 + 2 * 512) + 16 * (4096 + 2048)
    experts = 128 * 16 * (2 * 2048 + 2 * 768 + 768 + 2048)
    assert adapter_bytes(model, LoraConfig(), 1) == 2 * 48 * (attention + experts)


def seconds(num_adapters, num_tokens, *, chunks=(), ranks=1, model=LLAMA, **lora):
    times = AdapterTimes(model, Cluster(load_gpu("h100-sxm"), ranks), LoraConfig(**lora))
    return times.seconds(StepBatch(chunks, adapters=AdapterWork(num_adapters, num_tokens)))


@pytest.mark.parametrize("model", [LLAMA, load_model("qwen3-30b-a3b")], ids=["dense", "experts"])
def test_times_rise_with_adapters_tokens_and_rank(model):
    few = seconds(1, 8, model=model)
    assert few > 0
    assert seconds(4, 8, model=model) > few
    assert seconds(1, 512, model=model) > few
    assert seconds(1, 8, model=model, max_lora_rank=128) > few
    assert seconds(0, 0, model=model) == 0.0
    assert (
        AdapterTimes(model, Cluster(load_gpu("h100-sxm")), LoraConfig()).seconds(
            StepBatch(num_decodes=3)
        )
        == 0.0
    )


def test_decodes_read_each_adapter_once():
    """What one adapter more adds is not less than its bytes at the peak of the memory."""
    gpu, lora = load_gpu("h100-sxm"), {"max_lora_rank": 64}
    more = seconds(33, 64, **lora) - seconds(32, 64, **lora)
    at_peak = adapter_bytes(LLAMA, LoraConfig(**lora), 1) / gpu.memory_bandwidth
    assert at_peak <= more <= 3 * at_peak


def test_fully_sharded_adapters_exchange_what_is_shrunk():
    kept = seconds(1, 8, ranks=4, max_lora_rank=8)
    assert seconds(1, 8, ranks=4, max_lora_rank=8, fully_sharded_loras=True) > kept


def test_adapters_take_memory_of_the_cache():
    options = {"model": "llama-3.1-8b", "gpu": "h100-sxm"}
    plain = mist.llm_client("llm", **options).memory.num_blocks
    lora = LoraConfig(max_loras=8, max_lora_rank=64)
    slots = 8 * adapter_bytes(LLAMA, lora, 1)
    left = mist.llm_client("llm", **options, lora=lora).memory.num_blocks
    block = 16 * LLAMA.kv_bytes_per_token
    assert plain - left == pytest.approx(slots / block, abs=1)


def test_moves_by_hand():
    lora = LoraConfig(storage_bandwidth=1e9)
    moves = adapter_moves(LLAMA, lora, 4, 50e9)
    assert moves.copy == adapter_bytes(LLAMA, lora, 4) / 50e9
    assert moves.read == 2 * 41_943_040 / 1e9
    assert adapter_moves(LLAMA, LoraConfig(), 4, 50e9).read == 0


def run(**client):
    said = {f"clients__0__{key}": value for key, value in client.items()}
    return simulate(scenario(**PRESSED | said | {"workload__adapters": SHARES}))


@pytest.mark.parametrize(
    ("key", "value", "given"),
    [
        ("max_loras", 2, FOUR),
        ("max_lora_rank", 64, FOUR),
        ("max_cpu_loras", 6, FOUR | {"storage_bandwidth": "1 GB/s"}),
        ("fully_sharded_loras", True, FOUR),
        ("storage_bandwidth", "1 GB/s", FOUR),
    ],
)
def test_every_option_of_adapters_changes_a_result(key, value, given):
    options = {"gpu": "h100-sxm", "tensor_parallel_size": 2}
    plain, other = run(lora=given, **options), run(lora=given | {key: value}, **options)
    assert plain.requests["finished_at"].to_list() != other.requests["finished_at"].to_list()


def test_results_name_what_is_assumed_and_have_no_error_bar():
    summary = run(lora=FOUR, gpu="h100-sxm").summary
    assert all("lora" in names for names in summary["assumed"].values())
    for bars in summary["expected_errors"].values():
        assert all(bar["low"] is None and "LoRA" in bar["like"] for bar in bars.values())


def test_more_room_for_adapters_lets_more_requests_run_together():
    """One adapter at a time: the others wait, and the mean TTFT is longer."""
    one, six = run(lora={"max_loras": 1}).summary, run(lora={"max_loras": 6}).summary
    assert one["completed"] == six["completed"]
    assert one["mean_ttft_ms"] > six["mean_ttft_ms"]


def test_requests_share_blocks_with_those_of_the_same_adapter_only():
    names = ["base", "a"]
    content = ((7, 100), (-3, 10))
    made = [Request(number, 0.0, (), content=content) for number in range(3)]
    found = list(with_adapters(iter(made), iter(["base", "a", "a"]), names))
    assert [each.adapter for each in found] == [None, "a", "a"]
    ids = [[each for each, _ in request.content] for request in found]
    assert not set(ids[0]) & set(ids[1])
    assert ids[1] == ids[2]


def test_all_requests_of_a_conversation_name_one_adapter():
    made = [Request(number, 0.0, (), session_id=number % 2) for number in range(6)]
    drawn = iter(["a", "b", "b", "a", "base", "b"])
    found = [each.adapter for each in with_adapters(iter(made), drawn, ["base", "a", "b"])]
    assert found == ["a", "b"] * 3


def test_shares_are_kept():
    lengths = Workload.from_lists([8] * 4000, [2] * 4000, [0.0] * 4000)
    workload = Workload(lengths.source, lengths.arrivals, adapters={"base": 1, "a": 3})
    drawn = [request.adapter for request in workload.requests(Streams(0))]
    assert drawn.count("a") / 4000 == pytest.approx(0.75, abs=0.03)  # 4.4 standard deviations


BAD = [
    ({"max_loras": 0}, "max_loras: must be >= 1, got 0"),
    ({"max_lora_rank": 17}, "max_lora_rank: must be one of 1, 8, 16, .*, got 17"),
    ({"max_loras": 4, "max_cpu_loras": 2}, "max_cpu_loras: must be >= max_loras"),
    ({"max_cpu_loras": 2}, "max_cpu_loras has no effect without storage_bandwidth"),
    ({"storage_bandwidth": "0 B/s"}, "storage_bandwidth"),
]


test_bad_sizes_are_refused = refused(
    lambda lora: scenario(**PRESSED | {"clients__0__lora": lora}), *BAD
)


test_what_is_not_simulated_is_refused = refused(
    lambda options: mist.llm_client("llm", gpu="b300", **{"lora": LoraConfig(), **options}),
    ({"pipeline_parallel_size": 2}, "pipeline_parallel_size must be 1 with lora"),
    ({"model": "deepseek-v3", "tensor_parallel_size": 8}, "models with latent attention"),
    ({"model": "qwen3.5-27b"}, "models whose layers differ"),
    ({"lora": LoraConfig(fully_sharded_loras=True)}, "tensor_parallel_size above 1"),
)


def test_requests_with_adapters_need_clients_that_serve_them():
    with pytest.raises(ScenarioError, match="must have lora, such as {max_loras: 6}"):
        run()


def test_the_command_line_of_vllm(mist):
    serve = (
        "vllm serve meta-llama/Llama-3.1-8B --enable-lora --max-loras 4 --max-lora-rank 64 "
        "--max-cpu-loras 9 --lora-modules sql=/a chat=/b --tensor-parallel-size 2 "
        "--fully-sharded-loras"
    )
    bench = "vllm bench serve --lora-modules sql chat --request-rate 4"
    code, out, err = mist("from-vllm", serve, bench, "--gpu", "h100-sxm")
    assert (code, "Traceback" in err) == (0, False)
    found = Scenario.from_yaml(out)
    engine = found.clients[0].parameters()["lora"]
    assert (engine.max_loras, engine.max_lora_rank, engine.max_cpu_loras) == (4, 64, None)
    assert engine.fully_sharded_loras
    assert found.workload.adapters == {"sql": 1, "chat": 1}
    assert "--max-cpu-loras 9" in err
    assert (
        "lora" not in mist("from-vllm", serve.replace("--enable-lora", ""), "--gpu", "h100-sxm")[1]
    )
