"""What kernels of the roofline take, worked out by hand from the figures of their kind."""

import math
from dataclasses import replace

import numpy as np
import pytest

from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster, GpuSpec, gpu_names, load_gpu
from mist_sim.hardware.devices import KERNELS, Efficiency, Kernel, kernel_of
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.hardware.predictors.analytic.attention_time import DecodeAttention, PromptAttention
from mist_sim.hardware.predictors.analytic.compile import Phase, decode_attention, prompt_attention
from mist_sim.hardware.predictors.analytic.phase_time import Experts, Term
from mist_sim.models import ModelSpec, MoeSpec, load_model, operators

LLAMA = load_model("llama-3.1-8b")
HALF = Efficiency(mfu=0.5, mbu=0.5)


def gpu(**kernels: Kernel) -> GpuSpec:
    """Return a GPU of 1 PFLOP/s in 16 bits, 2 in 8, and 1 TB/s."""
    return replace(
        load_gpu("h100-sxm"),
        flops={"bf16": 1e15, "fp8": 2e15},
        memory_bandwidth=1e12,
        prefill=HALF,
        decode=HALF,
        kernels=kernels,
    )


# ------------------------------------------------------------------ products


def product(spec: GpuSpec, weights: str | None = None) -> Term:
    """Return the term of the first matrix of an MLP, 4,096 x 28,672, in one layer."""
    model = LLAMA.with_dtypes(weights=weights)
    parts = (operators.token_operators(model, n, 1, True)[1][1] for n in (0, 1))
    none, one = ([part for part in parts if part.name == "up_proj"] for parts in parts)
    (term,) = Phase(spec, spec.prefill).terms(1, none, one)
    return term


def test_product_overlaps_compute_and_memory_but_for_ramps():
    inputs, outputs, n = 4096, 28672, 300
    compute = 2 * n * inputs * outputs / 0.5e15
    memory = 2 * (inputs * outputs + n * (inputs + outputs)) / 0.5e12
    assert product(gpu()).time(n) == pytest.approx(math.hypot(compute, memory), rel=1e-12)


def test_a_quantised_product_brings_its_inputs_into_its_format_and_goes_through_its_depth():
    inputs, outputs, n = 4096, 28672, 300
    spec = gpu(fp8=Kernel(mfu=0.8, mbu=0.9, floor=5e-6, serial=0.5e-6, per_input=3e-6))
    compute = 2 * n * inputs * outputs / (0.8 * 2e15)
    memory = (inputs * outputs + 2 * n * (inputs + outputs)) / (0.9 * 1e12)
    on_top = 5e-6 + 0.5e-6 * 4.096 + 3e-6 * n * 4096 / 1e6
    expected = on_top + math.hypot(compute, memory)
    assert product(spec, "fp8").time(n) == pytest.approx(expected, rel=1e-12)


def test_a_format_without_figures_takes_those_of_nearest():
    figures = {"bf16": Kernel(floor=1e-6), "fp8": Kernel(floor=2e-6)}
    assert kernel_of(figures, "fp8_block").floor == 2e-6
    assert kernel_of(figures, "int4").floor == 1e-6
    assert kernel_of(figures, "experts_fp8_block").floor == 1e-6
    assert kernel_of({}, "experts_nvfp4") == Kernel()


def test_a_gpu_that_cannot_multiply_type_widens_weights():
    figures = {"bf16": Kernel(floor=1e-6), "fp8": Kernel(floor=2e-6), "int4": Kernel(floor=3e-6)}
    with_fp8 = gpu(**figures)
    without = replace(with_fp8, flops={"bf16": 1e15})
    assert product(with_fp8, "fp8").fixed == 2e-6
    assert product(without, "fp8").fixed == 3e-6


# ------------------------------------------------------------------ experts


def test_every_expert_that_is_reached_computes_padding():
    """8 tokens, each to 1 of 4 experts: 4 (1 - 0.75^8) = 3.6 of them are reached."""
    moe = MoeSpec(num_experts=4, num_experts_per_token=1, intermediate_size=8)
    term = Term(fixed=1.0, per_token=0.5, work=2.0, weights=3.0, traffic=0.25)
    reached = 4 * (1 - 0.75**8)
    expected = 1 + 8 * 0.5 + math.hypot((8 + 10 * reached) * 2.0, 3 * reached + 8 * 0.25)
    all_of_it = Experts(moe, (term,), (10.0,), (0.0,), (0.0,))
    assert all_of_it.time(8) == pytest.approx(expected, rel=1e-12)
    half_of_it = Experts(moe, (term,), (20.0,), (8 / reached,), (0.0,))
    assert half_of_it.time(8) == pytest.approx(expected, rel=1e-12)
    expected = 1 + 8 * 0.5 + math.hypot((8 + 40) * 2.0, 3 * reached + 8 * 0.25)
    filled = Experts(moe, (term,), (0.0,), (0.0,), (40.0,))
    assert filled.time(8) == pytest.approx(expected, rel=1e-12)


# ------------------------------------------------------------------ attention


def test_attention_of_prompts():
    """32 heads and 8 KV heads of 128 in 32 layers; 100 tokens after 50."""
    spec = gpu(prefill_attention=Kernel(mfu=0.8, floor=6e-6, serial=9e-6, per_pair=50, padding=10))
    found = prompt_attention(LLAMA, Cluster(spec), 32).of_step(0.0, ((100, 50),))
    pairs = 100 * (50 + 101 / 2) + 100 * 10
    compute = 32 * (4 * 128 + 50) * pairs / (0.8 * 1e15)
    moved = 2 * 128 * (2 * 8 * 150 + 2 * 32 * 100) / (0.5 * 1e12)
    assert found == pytest.approx(32 * (6e-6 + 9e-6 * 0.15 + compute + moved), rel=1e-12)


def test_prompts_of_a_step_share_a_kernel_which_lasts_as_long_as_the_longest():
    attention = PromptAttention(1.0, 0.0, 0.0, 0.0, serial=0.01)
    assert attention.of_step(0.0, ((100, 0), (10, 40), (20, 300))) == 1.0 + 0.01 * 320


def test_decodes_beside_a_prompt_take_longer_where_one_kernel_computes_both():
    kernel = Kernel(mbu=0.8, floor=11e-6, beside_prompts=1.8)
    attention = decode_attention(LLAMA, Cluster(gpu(decode_attention=kernel)), 32)
    key = 2 * 2 * 8 * 128 / (0.8 * 1e12)
    query = 2 * 2 * 32 * 128 / (0.8 * 1e12)
    four = StepBatch((), 4, 3996)
    alone = attention.add(0.0, four, 4000, 4000)
    beside = attention.beside().add(0.0, four, 4000, 4000)
    assert alone == pytest.approx(32 * (11e-6 + 4000 * key + 4 * query), rel=1e-12)
    assert beside == pytest.approx(32 * (11e-6 + 1.8 * 4000 * key + 4 * query), rel=1e-12)
    assert DecodeAttention(0, 0, 1, 0).beside().per_key == 1  # one kernel that splits contexts


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-3-27b", "deepseek-v3"])
@pytest.mark.parametrize("card", ["l40s", "h100-sxm"])
def test_runs_with_prompts_have_bits_of_their_steps(name, card):
    model = load_model(name)
    predictor = RooflinePredictor(model, Cluster(load_gpu(card), 8))
    batch = StepBatch(((512, 100), (30, 9000), (7, 0)), 20, 20 * 900)
    durations = predictor.run(batch, StepGrowth(20), 5)
    assert durations[0] == predictor.step_time(batch)
    assert (np.diff(durations) > 0).all()


# ------------------------------------------------------------------ figures of a GPU


def test_every_nvidia_card_takes_kernels_of_its_architecture():
    for name in gpu_names():
        card = load_gpu(name)
        if card.architecture:
            assert set(card.kernels) <= set(KERNELS)
            assert card.kernels["decode_attention"].floor > 5e-6
            assert card.kernels["bf16"].floor >= 2e-6
            assert card.sources["kernels.decode_attention"]


def test_a_spec_file_changes_one_figure_of_kernel(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('based_on = "h100-sxm"\nkernels.fp8.floor = "9 us"\n', "utf-8")
    mine, base = load_gpu(str(path)), load_gpu("h100-sxm")
    assert mine.kernels["fp8"] == replace(base.kernels["fp8"], floor=9e-6)
    assert mine.kernels["bf16"] == base.kernels["bf16"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('kernels.fp9.floor = "9 us"', "kernels has no 'fp9'; did you mean 'fp8'"),
        ("kernels.fp8.mfu = 1.2", r"kernels.fp8: mfu must be in \(0, 1\], got 1.2"),
        ("kernels.fp8.floor = 3", "kernels.fp8.floor: a duration needs a number and a unit"),
        ('kernels.fp8.floor = "-1 us"', "kernels.fp8: floor must be finite and >= 0 s"),
        ("kernels.decode_attention.beside_prompts = 0.5", "beside_prompts must be finite and >= 1"),
        ('architecture = "hoper"', "architecture has no 'hoper'; did you mean 'hopper'"),
        ("kernels = 3", "kernels must be a table"),
        ("kernels.bf16.padding = 5", "kernels.bf16: padding must be left out, got 5; it counts"),
        ("kernels.experts_fp8.per_pair = 5", "kernels.experts_fp8: per_pair must be left out"),
        ("kernels.fp8.beside_prompts = 2", "kernels.fp8: beside_prompts must be left out"),
        ('kernels.vector.serial = "1 us"', "kernels.vector: serial must be left out"),
        ('kernels.prefill_attention.per_input = "1 us"', "prefill_attention: per_input must be"),
    ],
)
def test_figures_that_cannot_be(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(f'based_on = "h100-sxm"\n{text}\n', "utf-8")
    with pytest.raises(ScenarioError, match=message):
        load_gpu(str(path))


# ------------------------------------------------------------------ experts that a batch reaches


COUNTED = {"num_experts": 16, "num_experts_per_token": 2, "intermediate_size": 8}


def test_counted_experts_take_the_place_of_the_formula():
    moe = MoeSpec(**COUNTED, experts_reached=((2, 3.0), (10, 11.0), (50, 14.0)))
    found = [moe.distinct_experts(n) for n in (0, 1, 2, 6, 10, 30, 50, 1000)]
    assert found == [0, 1.5, 3, 7, 11, 12.5, 14, 14]


@pytest.mark.parametrize("points", [((4, 9),), ((8, 17),), ((8, 5), (16, 4)), ((8, 5), (8, 6))])
def test_experts_that_cannot_be_reached(points):
    with pytest.raises(ValueError, match="experts_reached must rise with the tokens"):
        MoeSpec(**COUNTED, experts_reached=points)


def test_a_config_may_hold_counted_experts():
    config = {
        "model_type": "mixtral",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 100,
        "max_position_embeddings": 128,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "experts_reached": {"32": 6.5, "4": 5},
    }
    model = ModelSpec.from_config(config, name="tiny", source="tiny")
    assert model.moe.experts_reached == ((4, 5.0), (32, 6.5))
    for wrong in ({"four": 5}, {"4": "5"}):
        with pytest.raises(ScenarioError, match="experts_reached must give numbers of experts"):
            ModelSpec.from_config(config | {"experts_reached": wrong}, name="tiny", source="tiny")


# ------------------------------------------------------------------ figures of the catalog


@pytest.mark.parametrize("name", ["h100-sxm", "h200", "l40s", "b200", "b300", "rtx-pro-6000"])
@pytest.mark.parametrize("weights", ["fp8", "int8"])
def test_experts_of_8_bits_are_no_slower_than_those_of_16(name, weights):
    spec, model = load_gpu(name), load_model("qwen3-235b-a22b")
    if spec.flops.get(weights, 0.0) < spec.flops["bf16"]:
        pytest.skip(f"{name} multiplies {weights} slower than 16 bits")
    wide, narrow = (
        RooflinePredictor(each, Cluster(spec, tensor_parallel_size=8))
        for each in (model, model.with_dtypes(weights=weights))
    )
    for batch in (*(StepBatch((), n, 1000 * n) for n in (1, 8, 64, 256)), StepBatch(((4096, 0),))):
        assert narrow.parts(batch)["experts"] < 1.05 * wide.parts(batch)["experts"], batch
