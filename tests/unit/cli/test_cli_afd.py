"""`mist afd`: what it prints, and how it refuses bad input."""

import json
from dataclasses import asdict
from functools import partial

import pytest

from mist_sim.hardware import load_gpu
from mist_sim.hardware.afd import FfnCards, step_coefficients
from mist_sim.hardware.devices import architecture_names, kernel_of, kernels_of
from mist_sim.models import load_model
from mist_sim.rng import Streams
from tests.warned import texts

SIX = ("--alpha-a", "0.00165", "--beta-a", "50", "--alpha-f", "0.083", "--beta-f", "100")
SIX += ("--alpha-c", "0.022", "--beta-c", "20")
PRESET = ("--coefficients", "deepseek-v3-ascend-910c")
SLOTS = ("--slots", "256")


@pytest.fixture(autouse=True)
def trace(tmp_path, monkeypatch):
    """Geometric lengths in the form of Azure's traces, and a terminal of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    rng = Streams(1).generator("trace")
    prefill, output = rng.geometric(1 / 100, 3000), rng.geometric(1 / 500, 3000) + 1
    pairs = zip(prefill.tolist(), output.tolist(), strict=True)
    rows = [f"2023-11-16 18:15:46.6805900,{p},{o}\n" for p, o in pairs]
    (tmp_path / "t.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
    (tmp_path / "short.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows[:12])
    )


@pytest.fixture
def mist(mist):
    return partial(mist, "afd")


def test_tables(mist):
    code, out, err = mist("t.csv", *SLOTS, *PRESET)
    assert (code, err) == (0, "")
    for words in ("theta, mean", "nu, standard deviation", "95 % interval", "best", "TPOT", "idle"):
        assert words in out
    assert max(map(len, out.splitlines())) <= 80


def test_json(mist):
    code, out, err = mist("t.csv", *SLOTS, *SIX, "--json")
    data = json.loads(out)
    assert (code, err) == (0, "")
    assert data["load"]["theta"]["value"] == pytest.approx(599, rel=0.06)
    assert data["load"]["theta"]["low"] < data["load"]["theta"]["value"]
    assert data["mean_field"]["ratio"] == pytest.approx(9.55, rel=0.1)
    assert data["mean_field"]["low"] < data["mean_field"]["ratio"] < data["mean_field"]["high"]
    assert data["candidates"][3]["ratio"] is None
    assert data["gaussian"]["throughput_gaussian"] > data["in_flight"]["throughput"]


def test_six_coefficients_are_those_of_the_name(mist):
    assert mist("t.csv", *SLOTS, *SIX, "--json") == mist("t.csv", *SLOTS, *PRESET, "--json")


def test_one_coefficient_takes_the_place_of_named_one(mist):
    _, out, _ = mist("t.csv", *SLOTS, *PRESET, "--beta-a", "80", "--json")
    assert json.loads(out)["coefficients"]["beta_a"] == 80


def test_a_cycle_makes_seconds(mist):
    _, cycles, _ = mist("t.csv", *SLOTS, *PRESET, "--json")
    _, seconds, _ = mist("t.csv", *SLOTS, *PRESET, "--cycle", "100 us", "--json")
    before, after = json.loads(cycles)["in_flight"], json.loads(seconds)["in_flight"]
    assert after["tpot"] == pytest.approx(1e-4 * before["tpot"])
    assert after["throughput"] == pytest.approx(1e4 * before["throughput"])
    assert after["attention_idle"] == pytest.approx(before["attention_idle"])


def test_who_emits_the_first_token(mist):
    _, prefill, _ = mist("t.csv", *SLOTS, *PRESET, "--json")
    _, decode, _ = mist("t.csv", *SLOTS, *PRESET, "--first-token", "decode", "--json")
    steps = [json.loads(out)["load"]["mean_decode"] for out in (prefill, decode)]
    assert steps[1] == pytest.approx(steps[0] + 1)


def test_coefficients_from_measured_times(mist, tmp_path):
    rows = "part,size,time\nattention,1000,51.65\nattention,2000,53.3\nffn,100,108.3\n"
    rows += "ffn,200,116.6\ncommunication,100,22.2\ncommunication,200,24.4\n"
    (tmp_path / "times.csv").write_text(rows)
    _, out, _ = mist("t.csv", *SLOTS, "--coefficients", "times.csv", "--json")
    assert json.loads(out)["coefficients"]["alpha_a"] == pytest.approx(1.65e-3)


HARDWARE = ("--model", "deepseek-v3", "--gpu", "h200")
DERIVED = (*HARDWARE, "--ffn-cards", "16", "--network-bandwidth", "50 GB/s")


def test_coefficients_from_model_and_gpus(mist):
    code, out, err = mist("t.csv", *SLOTS, *DERIVED, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)["coefficients"]
    gpu, model = load_gpu("h200"), load_model("deepseek-v3")
    cards = FfnCards(gpu=gpu, num_cards=16, network_bandwidth=50e9)
    assert found == asdict(step_coefficients(model, gpu, cards))
    assert found["beta_c"] == 0
    assert json.loads(out)["ffn_weight"] == 16
    _, tables, _ = mist("t.csv", *SLOTS, *DERIVED)
    assert "TPOT" in tables
    assert "tokens/s/GPU" in tables
    assert "ms" in tables
    assert max(map(len, tables.splitlines())) <= 80


def test_small_batches_are_told_which_experts_they_reach(mist):
    few = ("--slots", "2", *DERIVED, "--alpha-c", "1e-3")
    code, out, err = mist("t.csv", *few, "--json")
    told = [each["text"] for each in json.loads(out)["warnings"]]
    assert code == 0, err
    assert any("beta_f is the time to read all experts" in text for text in told), told


def test_what_is_measured_takes_the_place_of_what_is_derived(mist):
    bases = ("--attention-base", "1 us", "--ffn-base", "2 us", "--communication-base", "3 us")
    more = ("--mtp-depth", "1", "--expert-load-imbalance", "1.5", "--ffn-gpu", "h100-sxm")
    _, plain, _ = mist("t.csv", *SLOTS, *DERIVED, "--json")
    _, out, _ = mist("t.csv", *SLOTS, *DERIVED, *bases, *more, "--alpha-a", "1e-9", "--json")
    before, found = json.loads(plain)["coefficients"], json.loads(out)["coefficients"]
    assert found["alpha_a"] == 1e-9
    for name, seconds in (("beta_a", 1e-6), ("beta_f", 2e-6), ("beta_c", 3e-6)):
        assert found[name] == pytest.approx(61 * seconds)
    dense = 3 / (58 * 8 + 3)  # one copy of each token in 3 layers, which no expert holds up
    assert found["alpha_c"] == pytest.approx(2 * (1.5 - 0.5 * dense) * before["alpha_c"])
    changed = {"mtp_depth": 1, "ffn_base": 2e-6}
    cards = {"num_cards": 16, "network_bandwidth": 50e9, "expert_load_imbalance": 1.5}
    spec = FfnCards(gpu=load_gpu("h100-sxm"), **cards)
    expected = step_coefficients(load_model("deepseek-v3"), load_gpu("h200"), spec, **changed)
    assert found["alpha_f"] == pytest.approx(expected.alpha_f)


def test_the_best_bundles_under_limits(mist):
    many = ("--slots", "64,128,256", "--batches", "2,3")
    code, out, err = mist("t.csv", *many, *PRESET, "--max-tpot", "700", "--json")
    assert (code, err) == (0, "")
    data = json.loads(out)
    best = data["best_bundles"]
    assert all(bundle["tpot"] <= 700 for bundle in best)
    rates = [bundle["throughput"] for bundle in best]
    assert rates == sorted(rates, reverse=True)
    assert (data["slots"], data["batches"]) == (best[0]["slots"], best[0]["batches"])
    _, wide, _ = mist("t.csv", *many, *PRESET, "--json")
    assert json.loads(wide)["best_bundles"][0]["throughput"] > rates[0]
    few = 100_000
    _, out, _ = mist("t.csv", *many, *PRESET, "--max-kv-tokens", str(few), "--json")
    assert all(bundle["kv_tokens"] <= few for bundle in json.loads(out)["best_bundles"])
    _, tables, _ = mist("t.csv", *many, *PRESET, "--max-tpot", "700")
    assert "Best bundles" in tables
    assert max(map(len, tables.splitlines())) <= 80


def test_limits_as_a_time_and_a_memory(mist):
    """A token of deepseek-v3 has 61 x 1,152 bytes."""
    args = ("t.csv", "--slots", "64,128", *DERIVED, "--max-tpot", "60 ms", "--json")
    _, plain, _ = mist(*args)
    _, memory, _ = mist(*args, "--kv-memory", "10 GB")
    _, tokens, _ = mist(*args, "--max-kv-tokens", str(10_000_000_000 // (61 * 1152)))
    memory, tokens, plain = (json.loads(out)["best_bundles"] for out in (memory, tokens, plain))
    assert memory == tokens != plain
    assert all(bundle["tpot"] <= 0.06 for bundle in memory)


def test_one_value_and_no_limit_are_no_choice(mist):
    _, out, _ = mist("t.csv", *SLOTS, *PRESET, "--json")
    assert json.loads(out)["best_bundles"] == []


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("t.csv", *SLOTS, *DERIVED, *PRESET), "--coefficients must not be given with --model"),
        (("t.csv", *SLOTS, *DERIVED, "--cycle", "1 us"), "--cycle must not be given with --model"),
        (("t.csv", *SLOTS, *HARDWARE), "--ffn-cards and --network-bandwidth must be given"),
        (("t.csv", *SLOTS, *DERIVED[2:]), "--network-bandwidth: --model must be given as well"),
        (("t.csv", *SLOTS, *DERIVED[:2]), "error: --model: --gpu must be given as well"),
        (("t.csv", *SLOTS, "--ffn-cards", "8"), "--model and --gpu must be given as well"),
        (("t.csv", *SLOTS, *DERIVED[:-1], "9"), "--network-bandwidth: a bandwidth needs"),
        (("t.csv", *SLOTS, *DERIVED[:-1], "0 B/s"), "network_bandwidth must be finite and > 0"),
        (("t.csv", *SLOTS, *DERIVED, "--ffn-base", "-1 us"), "beta_f must be finite and >= 0"),
        (("t.csv", *SLOTS, *DERIVED, "--ffn-cards", "2"), "num_cards must be >= 5: 128 experts"),
        (("t.csv", *SLOTS, *DERIVED, "--expert-load-imbalance", "0"), "expert_load_imbalance must"),
        (("t.csv", *SLOTS, *DERIVED, "--mtp-depth", "65"), "--mtp-depth"),
        (("t.csv", *SLOTS, *DERIVED, "--gpu", "h201"), "h200"),
        (("t.csv", *SLOTS, *DERIVED, "--model", "llama-3.1-8b"), "model must have experts"),
        (("t.csv", *SLOTS, *DERIVED, "--ffn-gpu", "a100-80gb-sxm"), "a rate for fp8"),
        (("t.csv", *SLOTS, *PRESET, "--max-tpot", "5 ms"), "--max-tpot must be a number of cycles"),
        (("t.csv", *SLOTS, *PRESET, "--max-tpot", "5"), "max_tpot must be >= 5"),
        (("t.csv", *SLOTS, *DERIVED, "--max-tpot", "5"), "--max-tpot: a duration needs"),
        (("t.csv", *SLOTS, *PRESET, "--kv-memory", "9 GB"), "--kv-memory needs --model"),
        (
            ("t.csv", *SLOTS, *PRESET, "--max-kv-tokens", "9"),
            "(--max-kv-tokens), which are enough for 0 slots",
        ),
        (("t.csv", "--slots", "65536", *DERIVED), "of the 150.1 GB of h200, less"),
        (("t.csv", "--slots", "64,x", *PRESET), "--slots must be whole numbers from 1 to 65536"),
        (("t.csv", "--slots", "", *PRESET), "--slots must be whole numbers"),
        (("t.csv", *SLOTS, *PRESET, "--batches", "2,65"), "--batches must be whole numbers from 2"),
        (("t.csv", *SLOTS), "coefficients are missing: --alpha-a, --beta-a"),
        (("t.csv", *SLOTS, *SIX[:-2]), "coefficients are missing: --beta-c; give all six"),
        (
            ("t.csv", *SLOTS, *PRESET, "--alpha-f", "-1"),
            "coefficients: alpha_f must be finite and > 0",
        ),
        (("t.csv", *SLOTS, "--coefficients", "deepseek-v3"), "did you mean 'deepseek-v3-ascend"),
        (("t.csv", *SLOTS, *PRESET, "--cycle", "5"), "--cycle: a duration needs a number and"),
        (("t.csv", *SLOTS, *PRESET, "--cycle", "0 s"), "--cycle must be > 0 s"),
        (("t.csv", *SLOTS, *PRESET, "--first-token", "x"), "--first-token must be prefill or"),
        (("t.csv", *SLOTS, *PRESET, "--format", "azur"), "did you mean 'azure'"),
        (("t.csv", *SLOTS, *PRESET, "--format", "lengths_csv"), "t.csv:1: no column"),
        (("none.csv", *SLOTS, *PRESET), "none.csv"),
        (("short.csv", *SLOTS, *PRESET), "too short: it must have 30 requests that decode, or"),
        (("t.csv", *SLOTS, *PRESET, "--beta-f", "1e12"), "above 0, got"),
        (("t.csv", *SLOTS, *PRESET, "--beta-f", "1e13"), "beta_f must be <= 1e+12, got 1e+13"),
        (("t.csv", *SLOTS, *PRESET, "--alpha-a", "9"), "best ratio must be <= 1024"),
        (("t.csv", "--slots", "0", *PRESET), "--slots"),
        (("t.csv", *SLOTS, *PRESET, "--batches", "1"), "--batches"),
    ],
)
def test_bad_input(mist, args, words):
    code, out, err = mist(*args)
    assert (code, out) == (2, "")
    assert words in " ".join(err.split())


def test_each_bundle_shows_its_communication_and_what_binds(mist):
    _, out, _ = mist("t.csv", *SLOTS, *PRESET, "--json")
    for name in ("in_flight", "gaussian", "mean_field_integer"):
        found = json.loads(out)[name]
        parts = {part: found[part] for part in ("attention", "ffn", "communication")}
        is_sum = sum(parts.values()) > 2 * max(parts.values())  # two batches
        assert found["binds"] == ("sum" if is_sum else max(parts, key=parts.get))
        assert found["cycle_mean_field"] == pytest.approx(max(parts.values()))
    _, out, _ = mist("t.csv", *SLOTS, *PRESET)
    table = out[out.index("Bundles with") :].splitlines()
    assert table[1].split()[1:4] == ["cycle", "comm.", "cycle"]
    assert {row.split()[-1] for row in table[3:] if ":1" in row} <= {"A", "F", "comm.", "sum"}


SHEET = """
memory = "180 GB"
memory_bandwidth = "8 TB/s"
flops.bf16 = "2250 TFLOP/s"
flops.fp8 = "4500 TFLOP/s"
interconnect = {kind = "nvlink", bandwidth = "900 GB/s"}
host_bandwidth = "64 GB/s"
power = "1000 W"
"""


def warnings_of(mist, *more):
    code, out, _ = mist("t.csv", *SLOTS, *DERIVED[:2], *more, *DERIVED[4:], "--json")
    assert code == 0
    return [line for line in texts(json.loads(out)) if "alpha" in line]


def test_kernels_that_reach_another_share_of_the_peak_are_told(mist):
    """Hopper's experts in FP8 blocks reach 37.2 % of the peak, its entry 83 % in decode."""
    attention, experts = warnings_of(mist, "--gpu", "h200")
    assert attention.startswith("alpha_a is 1.58 times what 88 % of the bandwidth of h200")
    assert experts == (
        "alpha_f is 2.23 times what 83 % of the peak rate of h200 would make it, since the GPU's "
        "kernels reach another share, or compute for longer than they read."
    )
    assert warnings_of(mist, "--gpu", "h200", "--alpha-f", "1e-6", "--alpha-a", "1e-9") == []
    _, out, _ = mist("t.csv", *SLOTS, *DERIVED)
    assert "the GPU's kernels reach another share" in " ".join(out.split())


def test_a_given_coefficient_stays_whatever_kernels_reach(mist):
    _, out, _ = mist("t.csv", *SLOTS, *DERIVED, "--alpha-f", "1e-6", "--json")
    assert json.loads(out)["coefficients"]["alpha_f"] == 1e-6


def test_gpu_without_architecture_tells_range_of_known_ones(mist, tmp_path):
    (tmp_path / "new.toml").write_text(SHEET)
    attention, experts = warnings_of(mist, "--gpu", "new.toml")
    gpu = load_gpu(str(tmp_path / "new.toml"))
    kernels = {name: kernels_of(name) for name in architecture_names()}
    reached = [kernel_of(each, "latent_decode_attention") for each in kernels.values()]
    compute, read = 2 * 128 * (576 + 512) / gpu.flops["bf16"], 2 * 576 / gpu.memory_bandwidth
    factors = [0.8 * max(1 / of.mbu, compute / read / (of.mfu or 0.55)) for of in reached]
    assert f"by {min(factors):.2f} to {max(factors):.2f}" in attention
    assert "names no architecture" in experts
    (tmp_path / "new.toml").write_text(SHEET + 'architecture = "hopper"\n')
    assert "alpha_f is 1.48 times what 55 % of the peak rate" in "".join(
        warnings_of(mist, "--gpu", "new.toml")
    )


def test_bundles_that_do_not_fit_the_gpu_are_left_out(mist):
    _, out, _ = mist("t.csv", "--slots", "64,65536", *DERIVED, "--json")
    data = json.loads(out)
    assert {bundle["slots"] for bundle in data["best_bundles"]} == {64}
    (told,) = [line for line in texts(data) if "do not fit" in line]
    assert "65536 slots in 2 batches" in told


def test_few_attention_gpus_send_as_long_as_all_ffn_cards(mist):
    """Each of fewer than 16 sends its whole batch over its own link."""
    _, out, _ = mist("t.csv", *SLOTS, *DERIVED, "--json")
    data = json.loads(out)
    alpha, beta = (data["coefficients"][name] for name in ("alpha_c", "beta_c"))
    for name in ("in_flight", "gaussian", "mean_field_integer"):
        found = data[name]
        sent = max(found["attention_workers"], 16) * found["slots"]
        assert found["communication"] == pytest.approx(alpha * sent + beta)
