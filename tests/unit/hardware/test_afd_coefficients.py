"""AFD coefficients: derived from model and hardware, and fitted to measured times."""

import pytest

from mist_sim.calibration.afd_latency import fit_afd_coefficients
from mist_sim.errors import ScenarioError
from mist_sim.hardware import load_gpu
from mist_sim.hardware.afd import FfnCards, activation_bytes, derive_coefficients, step_coefficients
from mist_sim.hardware.devices import kernel_of, kernels_of
from mist_sim.models import load_model
from tests.refusals import refused

H200 = load_gpu("h200")
DEEPSEEK = load_model("deepseek-v3")


def cards(num_cards=32, **changes):
    return FfnCards(gpu=H200, num_cards=num_cards, network_bandwidth=50e9, **changes)


def derived(model=DEEPSEEK, ffn=None, **changes):
    bases = {"ffn_base": 1e-4, "communication_base": 2e-5}
    return derive_coefficients(model, H200, ffn or cards(), **(bases | changes))


def test_the_formulas_of_appendix_b():
    """8 of 256 experts on each of 32 cards, and two tokens a request with one MTP layer."""
    found = derived(mtp_depth=1)
    assert found.alpha_a == pytest.approx(576 * 2 / (4.8e12 * 0.88), rel=1e-12)  # (19)
    per_expert = 6 * 7168 * 2048 / (1978.9e12 * 0.83)  # (22)
    assert found.alpha_f == pytest.approx(8 * per_expert * 8 * 2 / 256, rel=1e-12)  # (26)
    assert found.alpha_c == pytest.approx(8 * 3 * 7168 / 50e9 * 8 * 2 / 256, rel=1e-12)  # (31)
    assert (found.beta_f, found.beta_c) == (1e-4, 2e-5)


def test_a_step_has_layers_with_experts_and_layers_without():
    """58 of 61 layers have experts; the MLPs of the other three lie on all 32 cards."""
    layer, step = derived(ffn_base=None), step_coefficients(DEEPSEEK, H200, cards())
    rate, bandwidth = H200.flops["fp8"] * H200.decode.mfu, 4.8e12 * 0.88
    mlp = 3 * 7168 * 18432
    # Hopper's experts in FP8 blocks reach 37.2 % of the peak, the entry says 83 %
    of_experts = 58 * layer.alpha_f * 0.83 / 0.372
    assert step.alpha_f == pytest.approx(of_experts + 3 * 2 * mlp / 32 / rate, rel=1e-12)
    byte = DEEPSEEK.bytes_per_param("mlp")
    assert step.beta_f == pytest.approx(
        58 * layer.beta_f + 3 * byte * mlp / 32 / bandwidth, rel=1e-12
    )
    sent = 3 * 3 * 7168 / 32 / 50e9  # a byte there and two back, to one card
    assert step.alpha_c == pytest.approx(58 * layer.alpha_c + sent, rel=1e-12)
    assert activation_bytes(DEEPSEEK) == (7168 * (58 * 8 + 3), 2 * 7168 * (58 * 8 + 3))
    assert step.beta_a == pytest.approx(61 * layer.beta_a, rel=1e-12)
    # each of 128 heads multiplies with a latent of 576 numbers, and with 512 of them, which takes
    # longer than to read 576
    kernel = kernel_of(kernels_of("hopper"), "latent_decode_attention")
    alpha_a = 61 * 2 * 128 * (576 + 512) / (H200.flops["bf16"] * kernel.mfu)
    assert step.alpha_a == pytest.approx(alpha_a, rel=1e-12)


def test_bases_are_of_every_layer():
    bases = {"attention_base": 1e-6, "ffn_base": 2e-6, "communication_base": 3e-6}
    step = step_coefficients(DEEPSEEK, H200, cards(), **bases)
    found = (step.beta_a, step.beta_f, step.beta_c)
    assert found == pytest.approx((61e-6, 122e-6, 183e-6), rel=1e-12)


def test_attention_reads_the_weights_of_its_projections():
    weights = DEEPSEEK.attention_params_per_layer * DEEPSEEK.bytes_per_param("attention")
    assert derived().beta_a == pytest.approx(weights / (4.8e12 * 0.88), rel=1e-12)
    assert derived(attention_base=3e-6).beta_a == 3e-6


def test_the_busiest_card_is_waited_for():
    even, uneven = derived(), derived(ffn=cards(expert_load_imbalance=1.5))
    assert uneven.alpha_f == pytest.approx(1.5 * even.alpha_f)
    assert uneven.alpha_c == pytest.approx(1.5 * even.alpha_c)


def test_experts_that_do_not_fit_say_how_many_cards_they_need():
    with pytest.raises(ScenarioError, match=r"num_cards must be >= 5: .* GiB; got 2"):
        derived(ffn=cards(2))
    derived(ffn=cards(5))
    with pytest.raises(ScenarioError, match="num_cards must be >= 5"):
        derived(ffn=cards(4))


test_what_cannot_be_derived = refused(
    lambda changes: derived(**changes),
    ({"model": load_model("llama-3.1-8b")}, "model must have experts"),
    ({"mtp_depth": -1}, "mtp_depth must be >= 0, got -1"),
    ({"ffn_base": -1.0}, "beta_f must be finite and >= 0"),
    error=ValueError,
)


def test_a_gpu_without_the_experts_data_type():
    a100 = load_gpu("a100-80gb-sxm")
    ffn = FfnCards(gpu=a100, num_cards=64, network_bandwidth=50e9)
    with pytest.raises(ScenarioError, match="gpu must have a rate for fp8"):
        derived(ffn=ffn)


@pytest.mark.parametrize(
    "changes", [{"num_cards": 0}, {"network_bandwidth": 0.0}, {"expert_load_imbalance": 0.5}]
)
def test_cards_that_are_none(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        FfnCards(**({"gpu": H200, "num_cards": 8, "network_bandwidth": 1e9} | changes))


# --- fitted -------------------------------------------------------------------------------------

ROWS = """part,size,time
attention,10000,66.5
attention,100000,215
ffn,256,121.248
ffn,2560,312.48
communication,256,25.632
communication,2560,76.32
"""


@pytest.fixture
def measured(tmp_path):
    def write(text):
        path = tmp_path / "times.csv"
        path.write_text(text)
        return path

    return write


def test_times_on_a_line_give_the_line(measured):
    found = fit_afd_coefficients(measured(ROWS))
    c = found.coefficients
    assert (c.alpha_a, c.beta_a) == pytest.approx((1.65e-3, 50))
    assert (c.alpha_f, c.beta_f) == pytest.approx((0.083, 100))
    assert (c.alpha_c, c.beta_c) == pytest.approx((0.022, 20))
    assert found.r_squared == pytest.approx({"attention": 1, "ffn": 1, "communication": 1})


def test_scattered_times_give_the_line_of_least_squares(measured):
    text = ROWS + "attention,55000,200\n"
    found = fit_afd_coefficients(measured(text))
    assert found.coefficients.alpha_a == pytest.approx(1.65e-3)  # the point is in the middle
    assert found.coefficients.beta_a == pytest.approx(50 + (200 - 140.75) / 3)
    assert 0.5 < found.r_squared["attention"] < 0.9


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ROWS.replace("ffn,2560,312.48\n", ""), "ffn must be measured at two sizes or more, got 1"),
        (ROWS.replace("312.48", "12"), "gives alpha_f = -"),
        (ROWS.replace("66.5", "0.5"), "gives beta_a = -"),
        (ROWS + "mlp,1,1\n", r"times.csv:8: part must be one of attention, .* got 'mlp'"),
        (ROWS + "ffn,x,1\n", "times.csv:8: size must be a number from 1e-12 to 1e[+]12, got 'x'"),
        (ROWS + "ffn,1,-1\n", "times.csv:8: time must be a number from 1e-12 to"),
        (ROWS + "ffn,1e308,1\n", "times.csv:8: size must be a number from"),
        (ROWS.replace("size", "tokens"), "no column 'size'"),
    ],
)
def test_measurements_that_cannot_be_fitted(measured, text, words):
    with pytest.raises(ScenarioError, match=words):
        fit_afd_coefficients(measured(text))


def test_few_requests_reach_some_experts_of_a_card():
    bases = {"ffn_base": None}
    whole, many = derived(**bases), derived(**bases, num_requests=4096)
    assert many.beta_f == pytest.approx(whole.beta_f, rel=1e-6)
    few = derived(**bases, num_requests=4, mtp_depth=1)
    assert few.beta_f == pytest.approx(whole.beta_f * DEEPSEEK.moe.on_busiest_rank(8, 32) / 8)
    assert few.alpha_f == derived(mtp_depth=1).alpha_f
