"""Step times of kernels that NVIDIA measured (`plugins/silicon`)."""

from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

import mist_sim as mist
from mist_sim import testing
from mist_sim.core.batch import StepBatch
from mist_sim.errors import ScenarioError
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.hardware.predictors import external as installed
from mist_sim.hardware.predictors.measured.timing_store import TimingStore
from mist_sim.metrics.assumptions import assumption_warnings
from mist_sim.models import ModelSpec, model_names
from mist_sim.models.model_loading import _catalog
from mist_sim_silicon import predictor as silicon
from mist_sim_silicon.experts import OwnExperts, split_rows
from mist_sim_silicon.predictor import (
    Silicon,
    SiliconPredictor,
    check_blocks,
    not_measured,
    own_experts,
)

SILICON = pytest.mark.skipif(
    find_spec("aiconfigurator_core") is None, reason="needs aiconfigurator-core"
)
AISIMULATE = pytest.mark.skipif(find_spec("aisimulate_core") is None, reason="needs aisimulate")
DECODES = StepBatch((), 32, 32 * 1024)
PROMPT = StepBatch(((2048, 0),))


def parts(model="llama-3.1-8b", gpu="h100-sxm", ranks=1, **split):
    spec = mist.load_model(model) if isinstance(model, str) else model
    return {"model": spec, "cluster": mist.Cluster(mist.load_gpu(gpu), ranks, **split)}


@SILICON
@pytest.mark.parametrize(
    "options",
    [
        parts("qwen3-32b", "h100-sxm", 2),
        parts("gpt-oss-120b", "h200", 2),
        parts("llama-2-7b", "a100-80gb-sxm", 1) | {"engine": "trtllm"},
    ],
)
def test_it_keeps_the_contract(options):
    testing.check_predictor(partial(SiliconPredictor, **options))


@SILICON
def test_pipelines_are_refused():
    with pytest.raises(ScenarioError, match=r"pipeline_parallel_size must be 1 with \w+, which"):
        SiliconPredictor(**parts(pipeline_parallel_size=2))


def test_a_missing_package_is_named(monkeypatch):
    def missing(package):
        raise PackageNotFoundError(package)

    monkeypatch.setattr(installed, "version", missing)
    with pytest.raises(ScenarioError, match="pip install aiconfigurator-core"):
        SiliconPredictor(**parts())


@SILICON
def test_nodes_are_what_the_package_says():
    from aiconfigurator_core.sdk import EngineHandle

    engine = EngineHandle.compile("Qwen/Qwen3-32B", "h100_sxm", "vllm", tp_size=2)
    predictor = SiliconPredictor(**parts("qwen3-32b", ranks=2))
    prompt = predictor.step_time(StepBatch(((2048, 1024),)))
    assert prompt == pytest.approx(engine.predict_prefill_latency(1, 3072, 1024) / 1e3)
    decodes = predictor.step_time(DECODES)
    assert decodes == pytest.approx(engine.decode_step_latency(32, 1024, 2) / 1e3)


@SILICON
@pytest.mark.parametrize(("tokens", "decodes"), [(1016, 8), (2000, 48), (480, 32)])
def test_mixed_steps_are_near_package_s_own_rule(tokens, decodes):
    from aiconfigurator_core.sdk import EngineHandle

    engine = EngineHandle.compile("Qwen/Qwen3-32B", "h100_sxm", "vllm", tp_size=2)
    theirs = engine.mixed_step_latency(tokens, decodes, tokens, 2) / 1e3
    predictor = SiliconPredictor(**parts("qwen3-32b", ranks=2))
    ours = predictor.step_time(StepBatch(((tokens, 0),), decodes, decodes * tokens))
    assert ours == pytest.approx(theirs, rel=0.05)


@SILICON
def test_splits_formats_and_engines_count():
    plain = SiliconPredictor(**parts("qwen3-30b-a3b", ranks=2)).step_time(DECODES)
    experts = parts("qwen3-30b-a3b", ranks=2, enable_expert_parallel=True)
    fp8 = mist.load_model("qwen3-30b-a3b").with_dtypes(weights="fp8", kv_cache="fp8")
    times = {
        plain,
        SiliconPredictor(**experts).step_time(DECODES),
        SiliconPredictor(**parts(fp8, ranks=2)).step_time(DECODES),
        SiliconPredictor(**parts("qwen3-30b-a3b", ranks=4)).step_time(DECODES),
        SiliconPredictor(**parts("qwen3-30b-a3b", ranks=2), engine="sglang").step_time(DECODES),
    }
    assert len(times) == 5


# Windows, plain MLPs, experts or latents in a mix of formats, four bits on a GPU without them, 5 KV
# heads a rank; layers with states, sparse attention or chunks.
UNMEASURED = {
    "bge-reranker-v2-m3",
    "bloom-176b",
    "deepseek-v3.1-nvfp4",
    "deepseek-v3.2-nvfp4",
    "deepseek-v4-flash",
    "deepseek-v4-flash-nvfp4",
    "deepseek-v4-pro",
    "deepseek-v4-pro-nvfp4",
    "dpr-question-encoder",
    "gemma-3-12b",
    "gemma-3-27b",
    "gemma-3-4b",
    "gemma-4-26b-a4b",
    "gemma-4-26b-a4b-nvfp4",
    "gemma-4-31b-it",
    "gemma-4-31b-it-nvfp4",
    "glm-4.5-air",
    "glm-4.6",
    "glm-4.7-flash",
    "glm-5-nvfp4",
    "glm-5.1-nvfp4",
    "glm-5.3-flash",
    "glm-5.3-flash-nvfp4",
    "glm-5.3-nvfp4",
    "kimi-k2.6",
    "kimi-k2.6-nvfp4",
    "kimi-k3",
    "llama-4-maverick-17b-128e-instruct",
    "llama-4-scout-17b-16e-instruct",
    "minimax-m2-nvfp4",
    "mistral-7b-v0.1",
    "ms-marco-minilm-l6",
    "muse-glimmer-30b",
    "nemotron-3-nano-30b-a3b-nvfp4",
    "nemotron-3-super-120b-a12b-fp8",
    "nemotron-3-super-120b-a12b-nvfp4",
    "nemotron-3-ultra-550b-a55b-fp8",
    "nemotron-3-ultra-550b-a55b-nvfp4",
    "phi-4",
    "qwen3-235b-a22b-nvfp4",
    "qwen3-coder-next",
    "qwen3-next-80b-a3b",
    "qwen3.5-122b-a10b",
    "qwen3.5-122b-a10b-nvfp4",
    "qwen3.5-27b",
    "qwen3.5-35b-a3b",
    "qwen3.5-397b-a17b",
    "qwen3.5-397b-a17b-nvfp4",
    "qwen3.5-9b",
    "qwen3.8-2.4t-a95b",
    "qwen3.8-2.4t-a95b-fp8",
    "shieldgemma-2b",
    "step-3.5-flash",
    "step-3.7-flash",
    "step-3.7-flash-fp8",
}


def distinct_models():
    """Names of the catalog, but for those that differ from another in the context only."""
    apart = {"name": "", "source": "", "max_position_embeddings": 1}
    return list({replace(mist.load_model(name), **apart): name for name in model_names()}.values())


def in_blocks(model):
    """Whether its products are in FP8 with scales of blocks, whose times are the host's."""
    stored = model.quantization_of("attention")
    return stored is not None and stored.kernel == "fp8_block"


def test_products_that_were_timed_with_host_are_refused():
    blocks, plain = parts("qwen3-32b-fp8"), parts("qwen3-32b")
    check_blocks(**blocks, package="aisimulate")
    check_blocks(**plain, package="aiconfigurator-core")
    with pytest.raises(ScenarioError, match="timed with the host in .*use package: aisimulate, or"):
        check_blocks(**blocks, package="aiconfigurator-core")
    for package in ("aisimulate", "aiconfigurator-core"):
        with pytest.raises(ScenarioError, match="use predictor: {type: roofline}"):
            check_blocks(**parts("qwen3-32b-fp8", "l40s"), package=package)


def test_newer_tables_are_read_where_they_are():
    """aisimulate is no extra: where it is missing, the message says how to install it."""
    chosen = {"package": "aisimulate", **parts()}
    if find_spec("aisimulate_core") is None:
        with pytest.raises(ScenarioError, match="aisimulate.* not installed; .*pip install --pre"):
            SiliconPredictor(**chosen)
    else:
        assert SiliconPredictor(**chosen).step_time(DECODES) > 0


@AISIMULATE
@pytest.mark.parametrize(
    ("name", "hub"),
    [
        ("qwen3.5-397b-a17b", "Qwen/Qwen3.5-397B-A17B"),  # Gated DeltaNet
        ("kimi-k3", "moonshotai/Kimi-K3"),  # KDA
        ("glm-5.2", "zai-org/GLM-5.2"),  # DSA
        ("deepseek-v4-pro-fp8", "sgl-project/DeepSeek-V4-Pro-FP8"),  # CSA and HCA
        ("minimax-m3", "MiniMaxAI/MiniMax-M3"),  # blocks of keys
        ("mimo-v2-flash", "XiaomiMiMo/MiMo-V2-Flash"),  # windows
        ("nemotron-3-nano-30b-a3b-bf16", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"),  # Mamba-2
        ("qwen3.5-397b-a17b-nvfp4", "nvidia/Qwen3.5-397B-A17B-NVFP4"),
    ],
)
def test_models_of_2026_are_what_the_package_says(name, hub):
    from aisimulate_core.sdk import EngineHandle

    split = {"tp_size": 8, "moe_tp_size": 8, "moe_ep_size": 1}
    engine = EngineHandle.compile(hub, "b200_sxm", "vllm", **split)
    source = Silicon(**parts(name, "b200", ranks=8), engine="vllm", package="aisimulate")
    prompt, decodes = source.seconds([StepBatch(((3072, 1024),)), DECODES])
    assert prompt == pytest.approx(engine.predict_prefill_latency(1, 4096, 1024) / 1e3)
    assert decodes == pytest.approx(engine.decode_step_latency(32, 1024, 2) / 1e3)


@AISIMULATE
def test_towers_are_what_the_tables_say():
    """Rows of the tables of vLLM 0.24 on an H100, in ms, and none of heads of 88 values."""
    source = Silicon(**parts("qwen3.5-27b", ranks=2), engine="vllm", package="aisimulate")
    found = [source.tower_attention(16, 72, *sizes) for sizes in ((1, 4096), (4, 576))]
    assert found == pytest.approx([0.1935e-3, 0.0302e-3], rel=0.01)
    with pytest.raises(ScenarioError, match="no times for qwen3.5-27b"):
        source.tower_attention(16, 88, 1, 576)
    a100 = Silicon(**parts(gpu="a100-80gb-sxm"), engine="vllm", package="aisimulate")
    with pytest.raises(
        ScenarioError, match=r"no encoder-attention rows loaded from 1 source\(s\)$"
    ):
        a100.tower_attention(16, 72, 1, 576)
    timed = SiliconPredictor(**parts("qwen3.5-27b", ranks=2), package="aisimulate")
    assert timed.traits.tower_attention(16, 72, 4, 576) == found[1]
    estimate = [("tower_attention", 0.1, 0.0, "empirical")]
    source._handle = SimpleNamespace(evaluate_ops_json=lambda *_, **_sizes: estimate)
    with pytest.raises(ScenarioError, match="attention of 16 heads of 72 values is estimated"):
        source.tower_attention(16, 72, 1, 576)


@AISIMULATE
def test_operators_without_tables_are_named():
    chosen = {"engine": "vllm", "package": "aisimulate"}
    nano = Silicon(**parts("nemotron-3-nano-30b-a3b-bf16", "h200", ranks=8), **chosen)
    (told,) = not_measured(nano, TimingStore(None))
    assert "mamba_conv1d, mamba_ssm (4% of a prompt of 2,048 tokens, 0% of 32 decodes" in told
    qwen = Silicon(**parts("qwen3.5-397b-a17b", "h200", ranks=8), **chosen)
    assert not_measured(qwen, TimingStore(None)) == ()


def step_of_the_package():
    """Step-3.7 with 64 query heads in every layer and no gates, as the package has it."""
    config = {**_catalog()["step-3.7-flash"], "num_sliding_attention_heads": 64}
    config["use_head_wise_attn_gate"] = False
    return ModelSpec.from_config(config, name="step-3.7-flash", source="")


@AISIMULATE
def test_experts_without_a_table_are_timed_by_roofline():
    chosen = {"engine": "vllm", "package": "aisimulate"}
    of = parts(step_of_the_package(), "h200", ranks=8)
    step = Silicon(**of, **chosen)
    own = own_experts(step, TimingStore(None))
    (others,), (experts,) = step.seconds([DECODES]), own.seconds([DECODES])
    operators = RooflinePredictor(**of).explain(DECODES)
    routed = [each for each in operators if each.name.startswith(("expert", "combine"))]
    assert experts == pytest.approx(sum(each.seconds for each in routed))
    by_operator = step.by_operator(DECODES)
    assert others == pytest.approx(sum(by_operator.values()))
    assert not any(name.endswith("_moe") for name in by_operator)
    (told,) = not_measured(step, TimingStore(None), own)
    assert told.startswith("experts: no table has their sizes, so the roofline times them (")
    timed = SiliconPredictor(**of, package="aisimulate")
    (prompt,), (of_prompt,) = step.seconds([PROMPT]), own.seconds([PROMPT])
    assert timed.step_time(PROMPT) == pytest.approx(prompt + of_prompt)
    assert timed.traits.assumed == (told,)
    qwen = Silicon(**parts("qwen3.5-397b-a17b", "h200", ranks=8), **chosen)
    assert own_experts(qwen, TimingStore(None)) is None


class HalfMeasured:
    """A source of which a quarter of prompts and nothing of decodes is computed."""

    def __init__(self, share=0.25):
        self.identity, self.share, self.asked = {"source": "half"}, share, []

    def seconds(self, batches):
        return [2.0] * len(batches)

    def not_measured(self, batches):
        self.asked.append("seconds")
        return [2.0 * self.share if batch.chunks else 0.0 for batch in batches]

    def names_not_measured(self, batch):
        self.asked.append("names")
        return ["context_ssm", "context_conv1d", "context_ssm"] if batch.chunks else []


def test_our_experts_take_the_place_of_an_estimate():
    """The package's experts go, all else stays; an estimate of more than that is refused."""
    rows = [("generation_attention", 1e-3, "silicon"), ("generation_add_norm_1", 1e-4, "empirical")]
    experts = ("generation_moe", 9.0, "empirical")
    assert split_rows([*rows, experts]) == (rows, [experts])
    for name in ("generation_mla", "generation_compress"):  # no "res" is in a word
        with pytest.raises(LookupError, match=f"no tables of {name}"):
            split_rows([(name, 1e-3, "empirical")])
    of = parts("qwen3-30b-a3b")
    for batch in (DECODES, StepBatch(((2048, 1024),))):
        operators = RooflinePredictor(**of).explain(batch)
        routed = [each for each in operators if each.name.startswith(("expert", "combine"))]
        expected = sum(each.seconds for each in routed)
        assert OwnExperts(**of).seconds([batch]) == [pytest.approx(expected)]


@pytest.mark.parametrize("package", ["aisimulate", "aiconfigurator-core"])
def test_a_package_without_experts_is_asked_once_more(package, monkeypatch, tmp_path):
    """Only the newer one estimates what it lacks; no time of ours is kept."""

    class Handle:
        def __init__(self, estimates):
            self.estimates = estimates

        def decode_step_latency(self, *sizes):
            raise RuntimeError("perf database error: MoE data missing for MoeKey")

        def decode_step_per_op(self, *sizes):
            if not self.estimates:
                raise RuntimeError("perf database error: MoE data missing for MoeKey")
            return [("generation_proj", 2.0, 0.0, "silicon"), ("generation_moe", 7.0, 0.0, "sol")]

        def run_static_per_op(self, **sizes):
            return [("context_proj", 5.0, 0.0, "silicon")], []

        def predict_prefill_latency(self, *sizes):
            return 5.0

    for name, answer in (("installed_version", "1"), ("files_of", {}), ("dtypes", {})):
        monkeypatch.setattr(silicon, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(Silicon, "_compile", lambda self: Handle(not self._has_experts))
    of = parts("qwen3-30b-a3b")
    source = Silicon(**of, engine="vllm", package=package)
    if package == "aiconfigurator-core":
        assert own_experts(source, TimingStore(None)) is None
    with pytest.raises(ScenarioError, match="MoE data missing"):
        source.seconds([DECODES])
    if package == "aiconfigurator-core":
        return
    assert source.experts_without_table([DECODES]) == [pytest.approx(7e-3)]
    assert source.seconds([DECODES]) == [pytest.approx(2e-3)]
    kernels = of["cluster"].gpu.kernels
    slower = {name: replace(each, mbu=each.mbu / 2) for name, each in kernels.items() if each.mbu}
    gpu = replace(of["cluster"].gpu, kernels={**kernels, **slower})
    slow = {**of, "cluster": mist.Cluster(gpu)}
    monkeypatch.setenv("MIST_SIM_CACHE", str(tmp_path))
    for each in (of, slow):
        (own,) = OwnExperts(**each).seconds([DECODES])
        timed = SiliconPredictor(**each, package=package)
        assert timed.step_time(DECODES) == pytest.approx(2e-3 + own)
        (told,) = timed.traits.assumed
        assert told.endswith("32 decodes after 4,096)")


def test_what_was_not_measured_stands_in_results(tmp_path):
    source, store = HalfMeasured(), TimingStore(tmp_path / "timings.sqlite")
    expected = "ssm, conv1d (25% of a prompt of 2,048 tokens, 0% of 32 decodes after 4,096)"
    assert not_measured(source, store) == (f"measured kernels: {expected}",)
    assert not_measured(source, store) == (f"measured kernels: {expected}",)
    assert source.asked == ["seconds", "names", "names"]  # the shares are kept
    assert not_measured(HalfMeasured(0), TimingStore(None)) == ()
    assumed = {"llm": [f"measured kernels: {expected}"]}
    (told,) = assumption_warnings({}, assumed, {}, {})
    assert str(told) == f"Not measured, computed from the GPU's peaks: {expected}."


@SILICON
@pytest.mark.parametrize("name", distinct_models())
def test_models_of_the_catalog_have_times(name):
    if name in UNMEASURED or in_blocks(mist.load_model(name)):
        with pytest.raises(
            ScenarioError, match=f"silicon has no (measurements|times) for .*{name}"
        ):
            SiliconPredictor(**parts(name, "h200", ranks=2)).step_time(DECODES)
        return
    decode = SiliconPredictor(**parts(name, "h200", ranks=2)).step_time(DECODES)
    assert 1e-4 < decode < 0.5


@SILICON
def test_a_split_that_package_refuses_is_no_traceback():
    with pytest.raises(ScenarioError, match="num_heads 14 should be divisible by tp_size 8"):
        SiliconPredictor(**parts("qwen2.5-0.5b", "h200", ranks=8)).step_time(DECODES)


@SILICON
@pytest.mark.parametrize(
    "gpu",
    [
        "a100-80gb-sxm",
        "l40s",
        *(
            pytest.param(gpu, marks=pytest.mark.deep)
            for gpu in ("b200", "b300", "gb200", "gb300", "rtx-pro-6000")
        ),
    ],
)
def test_gpus_that_were_measured_have_times(gpu):
    source = Silicon(**parts(gpu=gpu, ranks=2), engine="vllm")
    asked = [StepBatch(((1024, 0),)), DECODES]
    roofline = mist.RooflinePredictor(**parts(gpu=gpu, ranks=2))
    for batch, seconds in zip(asked, source.seconds(asked), strict=True):
        assert 0.5 < seconds / roofline.step_time(batch) < 2


@SILICON
def test_what_was_not_measured_is_refused():
    with pytest.raises(ScenarioError, match=r"measurements of the GPU ascend-910b3. Known: a100-"):
        SiliconPredictor(**parts(gpu="ascend-910b3"))
    with pytest.raises(ScenarioError, match="layers of gemma-3-27b"):
        SiliconPredictor(**parts("gemma-3-27b"))
    quantized = mist.load_model("llama-3.1-8b").with_dtypes(weights="int4")
    with pytest.raises(ScenarioError, match="no times for llama-3.1-8b on h100-sxm with vllm") as e:
        SiliconPredictor(**parts(quantized))
    assert "site-packages" not in str(e.value)
    skewed = parts("qwen3-30b-a3b", ranks=2, enable_expert_parallel=True, expert_load_imbalance=1.5)
    with pytest.raises(ScenarioError, match="expert_load_imbalance must be 1 with silicon"):
        SiliconPredictor(**skewed)
