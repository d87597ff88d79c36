"""Kernels by back end: which a version takes, how long, and what is said without figures."""

from dataclasses import replace

import pytest

from benchmarks import measured_itl
from mist_sim import ScenarioError
from mist_sim.core.batch import StepBatch
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.devices import KERNELS
from mist_sim.hardware.kernel_choice import (
    KernelChoice,
    deployment_of,
    experts_kind,
    has_figures,
    usual_backend,
    with_backend,
)
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.hardware.setting import Setting
from mist_sim.metrics.load import LOW_LOAD
from mist_sim.models import load_model
from mist_sim.models.moe_backends import _RUNS_ON, Deployment, expert_format
from mist_sim.scenario.engines.llm_client import llm_client
from mist_sim.scenario.engines.versions import ATTENTION, EXPERTS, VERSIONS
from mist_sim.scenario.from_vllm.commands import from_vllm
from tests.refusals import refused

ARCHITECTURES = ("ampere", "ada", "hopper", "blackwell", "blackwell-ultra", "blackwell-rtx")

# as the log lines "Using ... MoE backend" of each version say, by version, format, architecture
CHOSEN = [
    ("vllm-0.12", "bf16", Deployment("blackwell"), "triton"),
    ("vllm-0.19", "bf16", Deployment("blackwell"), "triton"),
    ("vllm-0.24", "bf16", Deployment("blackwell"), "flashinfer_trtllm"),
    ("vllm-0.33", "bf16", Deployment("hopper"), "triton"),
    ("vllm-0.33", "bf16", Deployment("blackwell", has_gelu=True), "flashinfer_cutlass"),
    ("vllm-0.33", "bf16", Deployment("blackwell", inner=192), "triton"),
    ("vllm-0.33", "bf16", Deployment("blackwell-rtx"), "flashinfer_cutlass"),
    ("vllm-0.33", "bf16", Deployment("blackwell-rtx", replicas=2), "triton"),
    ("vllm-0.12", "fp8_block", Deployment("hopper", ranks=4), "deep_gemm"),
    ("vllm-0.12", "fp8_block", Deployment("hopper", ranks=8), "triton"),
    ("vllm-0.12", "fp8_block", Deployment("blackwell", ranks=8), "cutlass"),
    ("vllm-0.14", "fp8_block", Deployment("blackwell", ranks=8), "triton"),
    ("vllm-0.19", "fp8_block", Deployment("hopper"), "triton"),
    ("vllm-0.19", "fp8_block", Deployment("hopper", spread=True), "flashinfer_cutlass"),
    ("vllm-0.19", "fp8_block", Deployment("blackwell", spread=True), "flashinfer_trtllm"),
    ("vllm-0.33", "fp8", Deployment("blackwell"), "triton"),
    ("vllm-0.33", "fp8_static", Deployment("blackwell"), "flashinfer_trtllm"),
    ("vllm-0.33", "fp8_static", Deployment("hopper"), "flashinfer_cutlass"),
    ("vllm-0.33", "fp8", Deployment("ampere"), "marlin"),
    ("vllm-0.14", "nvfp4", Deployment("blackwell"), "cutlass"),
    ("vllm-0.19", "nvfp4", Deployment("blackwell-rtx"), "flashinfer_cutlass"),
    ("vllm-0.33", "nvfp4", Deployment("hopper"), "marlin"),
    ("vllm-0.33", "mxfp4", Deployment("ada"), "marlin"),
    ("vllm-0.11.0", "mxfp4", Deployment("hopper"), "marlin"),
    ("vllm-0.11", "mxfp4", Deployment("hopper"), "triton"),
    ("vllm-0.33", "mxfp4_afp8", Deployment("blackwell"), "flashinfer_trtllm_afp8"),
    ("vllm-0.33", "mxfp4_afp8", Deployment("hopper"), "marlin"),
    ("vllm-0.33", "bf16", Deployment(""), None),
]


@pytest.mark.parametrize(("version", "format_", "deployment", "backend"), CHOSEN)
def test_each_version_takes_the_back_end_that_its_package_does(
    version, format_, deployment, backend
):
    assert VERSIONS[version].default(f"{EXPERTS}{format_}").of(deployment) == backend


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_version_takes_runs_on_that_gpu(version):
    for format_ in _RUNS_ON:
        for architecture in ARCHITECTURES:
            taken = VERSIONS[version].default(f"{EXPERTS}{format_}").of(Deployment(architecture))
            runs = _RUNS_ON[format_].get(taken, ())
            possible = [name for name, on in _RUNS_ON[format_].items() if architecture in on]
            assert architecture in runs or not possible, (format_, architecture, taken)


def test_attention_is_chosen_by_gpu_model_and_cache():
    def chosen(model, architecture, version="vllm-0.33", kv_cache=None):
        spec = load_model(model).with_dtypes(kv_cache=kv_cache)
        return VERSIONS[version].default(ATTENTION).of(spec, architecture)

    assert chosen("llama-3.1-8b", "hopper") == "FLASH_ATTN"
    assert chosen("llama-3.1-8b", "hopper", kv_cache="fp8") == "FLASH_ATTN"
    assert chosen("llama-3.1-8b", "ada", kv_cache="fp8") == "FLASHINFER"
    assert chosen("llama-3.1-8b", "blackwell") == "FLASHINFER"
    assert chosen("gpt-oss-20b", "hopper") == "FLASH_ATTN"
    assert chosen("gpt-oss-20b", "ampere") == chosen("gpt-oss-20b", "ada") == "TRITON_ATTN"
    assert chosen("deepseek-v3", "hopper") == "FLASH_ATTN_MLA"
    assert chosen("deepseek-v3", "blackwell") == "FLASHINFER_MLA"
    assert chosen("deepseek-v3", "blackwell", "vllm-0.14") == "CUTLASS_MLA"
    assert chosen("llama-3.1-8b", "") is None


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_figures_are_of_kinds_and_back_ends_that_exist(architecture):
    kinds = [kind for kind in KERNELS if usual_backend(architecture, kind)]
    assert kinds
    for kind in kinds:
        if kind.startswith("experts_"):
            assert usual_backend(architecture, kind) in _RUNS_ON[kind.removeprefix("experts_")]


def test_figures_of_a_back_end_take_the_place_of_the_usual_ones():
    """And those that a GPU's file changed stay: they are of the card at hand."""
    b200 = load_gpu("b200")
    other = with_backend(b200, ["experts_bf16"], "triton")
    assert other.kernels["experts_bf16"] != b200.kernels["experts_bf16"]
    assert {**other.kernels, "experts_bf16": None} == {**b200.kernels, "experts_bf16": None}
    assert with_backend(b200, ["experts_bf16"], "flashinfer_trtllm") == b200
    assert with_backend(b200, ["experts_bf16"], "cutlass") == b200
    assert with_backend(other, ["experts_bf16"], "flashinfer_cutlass") == other


def test_deep_gemm_fills_the_rows_of_every_expert():
    """It has no figures of its own, but 128 rows of an expert are computed where one is there."""
    kind, h100 = "experts_fp8_block", load_gpu("h100-sxm")
    filled, usual = with_backend(h100, [kind], "deep_gemm").kernels[kind], h100.kernels[kind]
    assert filled == replace(usual, padding=0.0, filled=127.0)
    own = replace(h100, kernels={**h100.kernels, kind: replace(usual, mfu=0.5)})
    assert with_backend(own, [kind], "deep_gemm") == own


@pytest.mark.parametrize(
    ("ranks", "spread", "taken"),
    [(8, False, "triton"), (8, True, "deep_gemm"), (4, False, "deep_gemm")],
)
def test_deep_gemm_is_left_where_eight_ranks_slice_an_expert(ranks, spread, taken):
    """`moe_parallel_config.tp_size >= 8`, which is 1 where experts lie whole on ranks."""
    deployment = Deployment("hopper", ranks=ranks, spread=spread)
    assert VERSIONS["vllm-0.14"].default(f"{EXPERTS}fp8_block").of(deployment) == taken


def test_steps_take_the_time_of_kernel_that_runs():
    """Marlin reads as fast as Triton on H100, and computes at a third of its rate."""
    model, cluster = load_model("gpt-oss-20b"), Cluster(load_gpu("h100-sxm"), 1)

    def seconds(backend, batch):
        timed = KernelChoice(experts=backend).timed(model, cluster)
        return RooflinePredictor(model, timed).step_time(batch)

    prompt, decodes = StepBatch(((8192, 0),)), StepBatch((), 8, 8192, window_sum=1016)
    assert seconds("marlin", prompt) > 1.5 * seconds("triton", prompt)
    assert seconds("marlin", decodes) < 1.3 * seconds("triton", decodes)


def _client(**options):
    return llm_client("llm", **{"model": "qwen3-30b-a3b", "gpu": "b200", **options})


def test_a_client_says_whose_kernels_it_times():
    assert _client().traits.times.kernels == {
        "experts": "flashinfer_trtllm",
        "attention": "FLASHINFER",
    }
    assert _client(engine="vllm-0.19").traits.times.kernels["experts"] == "triton"
    named = _client(engine="vllm-0.19", moe_backend="flashinfer_cutlass").traits.times
    assert named.kernels["experts"] == "flashinfer_cutlass"
    assert all(isinstance(setting, Setting) for setting in named.settings.values())
    dense = llm_client("llm", model="qwen3-8b").traits.times.kernels
    assert dense == {"attention": "FLASH_ATTN"}


def test_kernels_that_nobody_timed_leave_no_error_bar():
    """Those of the usual back end are timed instead."""
    model = "qwen3-235b-a22b-fp8"
    options = {"model": model, "gpu": "h200", "tensor_parallel_size": 4}
    times = _client(engine="vllm-0.12", **options).traits.times
    assert times.kernels["experts"] == "deep_gemm"
    for setting in times.settings.values():
        assert setting.why == "not known: kernels of deep_gemm; the measurements are for triton"
    newer = _client(engine="vllm-0.19", **options).traits.times
    assert all(isinstance(setting, Setting) for setting in newer.settings.values())
    flex = llm_client("llm", model="qwen3-8b", attention_backend="FLEX_ATTENTION").traits.times
    for setting in flex.settings.values():
        assert (
            setting.why
            == "not known: kernels of FLEX_ATTENTION; the measurements are for FLASH_ATTN"
        )


def test_a_format_that_gpu_cannot_multiply_is_widened():
    model = load_model("qwen3-30b-a3b").with_dtypes(weights="fp8")
    a100, h100 = (Cluster(load_gpu(name), 1) for name in ("a100-80gb-sxm", "h100-sxm"))
    assert experts_kind(model, a100) == "experts_int4"
    assert experts_kind(model, h100) == "experts_fp8"
    assert has_figures("ampere", "experts_int4", "marlin")
    assert deployment_of(load_model("qwen3-8b"), h100) == Deployment("hopper")


def test_scales_of_inputs_decide_between_kernels_of_fp8():
    assert expert_format(load_model("nemotron-3-super-120b-a12b-fp8")) == "fp8_static"
    assert expert_format(load_model("qwen3-30b-a3b").with_dtypes(weights="fp8")) == "fp8"
    assert expert_format(load_model("qwen3-30b-a3b-fp8")) == "fp8_block"
    assert not expert_format(load_model("qwen3-8b"))
    assert expert_format(load_model("deepseek-v4-flash")) == "mxfp4_afp8"
    assert expert_format(load_model("gpt-oss-20b")) == "mxfp4"


def test_gates_and_slices_decide_between_kernels_of_bf16():
    def taken(name, ranks, **split):
        model, cluster = load_model(name), Cluster(load_gpu("b200"), ranks, **split)
        return VERSIONS["vllm-0.33"].default(f"{EXPERTS}bf16").of(deployment_of(model, cluster))

    assert taken("gemma-4-26b-a4b", 1) == "flashinfer_cutlass"
    assert taken("qwen3-30b-a3b", 2) == "flashinfer_trtllm"
    assert taken("qwen3-30b-a3b", 8) == "triton"  # 96 of 768 inner values
    assert taken("qwen3-30b-a3b", 8, enable_expert_parallel=True) == "flashinfer_trtllm"


test_back_ends_that_cannot_run_are_refused = refused(
    lambda options: _client(**options),
    ({"model": "qwen3-8b", "moe_backend": "marlin"}, "must be null for qwen3-8b, which has no"),
    (
        {"gpu": "l40s", "model": "gpt-oss-20b", "moe_backend": "triton"},
        "must be marlin on l40s for experts in mxfp4",
    ),
    ({"attention_backend": "FLASHMLA"}, "must be one without MLA in its name"),
    ({"model": "deepseek-v3", "attention_backend": "FLASH_ATTN"}, "one with MLA in its name"),
    (
        {"model": "deepseek-v3", "gpu": "b200", "attention_backend": "FLASH_ATTN_MLA"},
        "must not be FLASH_ATTN_MLA on b200: it runs on hopper",
    ),
    ({"model": "qwen3.5-35b-a3b", "attention_backend": "FLASHINFER"}, "layers have kernels"),
)


def test_back_end_is_refused_where_nothing_times_it():
    """A predictor with measured times has the kernels that were measured."""
    step_times = RooflinePredictor(load_model("qwen3-30b-a3b"), Cluster(load_gpu("b200"), 1))

    class Measured:
        traits = step_times.traits
        step_time, run = step_times.step_time, step_times.run

    with pytest.raises(ScenarioError, match="moe_backend must be null with this predictor"):
        _client(predictor=Measured(), moe_backend="triton")


def _read(line, gpu="b200", engine=None):
    return from_vllm([line], gpu=gpu, engine=engine).keys["clients"][0]


@pytest.mark.parametrize(
    ("line", "backend"),
    [
        ("vllm serve gpt-oss-20b", None),
        ("vllm serve gpt-oss-20b --moe-backend auto", None),
        ("vllm serve gpt-oss-20b --moe-backend marlin", "marlin"),
        ("vllm serve qwen3-30b-a3b --moe-backend flashinfer-cutlass", "flashinfer_cutlass"),
        ("vllm serve qwen3-8b --moe-backend triton", None),
        ("VLLM_MXFP4_USE_MARLIN=1 vllm serve gpt-oss-20b", "marlin"),
        ("VLLM_MXFP4_USE_MARLIN=0 vllm serve gpt-oss-20b", None),
        ("VLLM_MXFP4_USE_MARLIN=1 vllm serve gpt-oss-20b --moe-backend triton", "triton"),
        ("VLLM_MXFP4_USE_MARLIN=1 vllm serve qwen3-8b", None),
        ("VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8=1 vllm serve gpt-oss-20b", "flashinfer_trtllm_afp8"),
        ("VLLM_USE_FLASHINFER_MOE_FP16=1 vllm serve qwen3-30b-a3b", "flashinfer_cutlass"),
        (
            (
                "VLLM_USE_FLASHINFER_MOE_FP16=1 VLLM_FLASHINFER_MOE_BACKEND=latency "
                "vllm serve qwen3-30b-a3b"
            ),
            "flashinfer_trtllm",
        ),
        ("VLLM_USE_FLASHINFER_MOE_FP8=1 vllm serve qwen3-30b-a3b-fp8", "flashinfer_trtllm"),
        ("VLLM_MOE_USE_DEEP_GEMM=1 vllm serve qwen3-30b-a3b-fp8", "deep_gemm"),
    ],
)
def test_the_kernels_of_experts_are_taken_from_flags_and_variables(line, backend):
    assert _read(line).get("moe_backend") == backend


def test_the_kernels_of_attention_are_taken_from_flags_and_variables():
    def backend(line):
        return _read(line, gpu="h100-sxm").get("attention_backend")

    assert backend("vllm serve qwen3-8b --attention-backend FLASHINFER") == "FLASHINFER"
    assert backend("VLLM_ATTENTION_BACKEND=TRITON_ATTN vllm serve qwen3-8b") == "TRITON_ATTN"
    line = "VLLM_ATTENTION_BACKEND=TRITON_ATTN vllm serve qwen3-8b --attention-backend FLASHINFER"
    assert backend(line) == "FLASHINFER"
    assert backend("VLLM_ATTENTION_BACKEND=XFORMERS vllm serve qwen3-8b") is None
    assert backend("vllm serve qwen3-8b --attention-backend auto") is None


@pytest.mark.parametrize(
    ("line", "backend"),
    [
        ("VLLM_ALL2ALL_BACKEND=deepep_v2 vllm serve qwen3-30b-a3b -dp 8 -ep", "deepep_v2"),
        (
            "VLLM_ALL2ALL_BACKEND=pplx vllm serve qwen3-4b -dp 8 -ep --all2all-backend deepep_v2",
            "deepep_v2",
        ),
        ("VLLM_ALL2ALL_BACKEND=naive vllm serve qwen3-30b-a3b -dp 8 -ep", None),
        ("VLLM_ALL2ALL_BACKEND=pplx vllm serve qwen3-30b-a3b -dp 8 -ep", None),
        ("VLLM_ALL2ALL_BACKEND=deepep_v2 vllm serve qwen3-30b-a3b -tp 8 -ep", None),
    ],
)
def test_the_exchange_of_experts_is_taken_from_flags_and_variables(line, backend):
    assert _read(line).get("all2all_backend") == backend


def test_deep_gemm_takes_as_long_for_experts_that_no_token_reaches(shared):
    """Qwen3-235B-A22B in FP8 by vLLM 0.11 on H100 and B200 (ML.ENERGY), 2 to 16 sequences."""
    file = shared("measurements/ml-energy-vllm-0.11/mlenergy_calibration.csv")
    runs = measured_itl.compared(file)
    runs = runs[runs["even"] & (runs["kernels_of"] == "deep_gemm") & (runs["load"] == LOW_LOAD)]
    found = runs["measured"] / runs["computed"]
    assert len(found) == 16
    assert found.between(0.85, 1.15).all()
