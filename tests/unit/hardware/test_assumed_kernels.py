"""A GPU without figures of kernels: steps come out too fast, and the run says by how much."""

from dataclasses import replace

import pytest

from mist_sim import Scenario, llm_client, load_gpu, load_model, simulate
from mist_sim.core.batch import StepBatch
from mist_sim.hardware import Cluster
from mist_sim.hardware.devices import architecture_names, fitted_gpus, kernels_of
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.metrics.assumptions import assumption_warnings
from mist_sim.search.comparison import compare
from tests.warned import about, texts

B200 = load_gpu("b200")
BARE = replace(B200, name="bare", architecture="", kernels={}, confidence="spec-only")
SHEET = """
memory = "180 GB"
memory_bandwidth = "8 TB/s"
flops.bf16 = "2250 TFLOP/s"
interconnect = {kind = "nvlink", bandwidth = "900 GB/s"}
host_bandwidth = "64 GB/s"
power = "1000 W"
"""


def assumed(gpu):
    names = llm_client("llm", gpu=gpu).traits.times.assumed
    return [name for name in names if name.startswith("architecture")]


@pytest.mark.parametrize("architecture", architecture_names())
def test_kernels_of_architecture_are_those_of_its_gpus(architecture):
    gpus = {"hopper": "h100-sxm", "ampere": "a100-80gb-sxm", "blackwell": "b200"}
    kernels = kernels_of(architecture)
    assert kernels
    if architecture in gpus:
        assert kernels == load_gpu(gpus[architecture]).kernels


@pytest.mark.parametrize("gpu", ["h100-sxm", B200, "ascend-910b3"])
def test_kernels_or_fitted_efficiencies_assume_nothing(gpu):
    assert assumed(gpu) == []


def test_the_difference_is_that_of_the_steps():
    model, times = load_model("llama-3.1-8b"), {}
    step = StepBatch((), 1, 1024, longest_context=1024)
    for name in ("", *architecture_names()):
        gpu = replace(BARE, kernels=kernels_of(name) if name else {})
        times[name] = RooflinePredictor(model, Cluster(gpu)).step_time(step)
    bare = times.pop("")
    low, high = (min(times.values()) / bare, max(times.values()) / bare)
    assert 1.2 < low < high < 2.5
    (text,) = assumed(BARE)
    assert text.startswith(f"architecture: {low:.2f} to {high:.2f} with 1 decode and ")


def test_the_run_and_a_comparison_say_it(tmp_path):
    (tmp_path / "bare.toml").write_text(SHEET, "utf-8")
    demo = Scenario.load("demo", overrides={"workload.lengths.num_requests": 50})
    bare = demo.changed({"clients.0.gpu": str(tmp_path / "bare.toml")})
    result = simulate(bare)
    (line,) = texts(result.summary, "architecture")
    assert "so steps come out too fast" in line
    assert "with 1 decode and" in line
    known = demo.changed({"clients.0.gpu": "b200"})
    both = compare({"bare": bare, "known": known}).summary
    assert [name for name in ("bare", "known") if line in about(both, name)] == ["bare"]


def test_a_gpu_of_ones_own_tells_what_it_would_do_as_others_do(tmp_path):
    """The steps of one decode with all that each fitted GPU reaches, by hand."""
    (tmp_path / "x1.toml").write_text('name = "x1"\nbased_on = "b200"\nmemory = "256 GiB"\n')
    demo = Scenario.load("demo", overrides={"workload.lengths.num_requests": 50})
    result = simulate(demo.changed({"clients.0.gpu": str(tmp_path / "x1.toml")}))
    (line,) = texts(result.summary, "kernels")
    model, gpu = load_model("llama-3.1-8b"), load_gpu(str(tmp_path / "x1.toml"))
    step, times = StepBatch((), 1, 1024, longest_context=1024), {}
    for other in fitted_gpus():
        shares = {name: getattr(other, name) for name in ("kernels", "prefill", "decode")}
        like = replace(gpu, **shares)  # one GPU has no links
        times[other.name] = RooflinePredictor(model, Cluster(like)).step_time(step)
    assert {"b200", "h100-sxm", "a100-80gb-sxm"} <= set(times)
    low, high = min(times, key=times.get), max(times, key=times.get)
    ratios = times[low] / times["b200"], times[high] / times["b200"]
    assert f"x1 as blackwell, {ratios[0]:.2f} ({low}) to {ratios[1]:.2f} ({high})" in line
    assert line.count(") to ") == 3


def test_a_link_of_the_same_kind_keeps_the_latencies_of_its_base(tmp_path):
    own = 'based_on = "b200"\ninterconnect = {kind = "%s", bandwidth = "1200 GB/s", domain = 32}\n'
    (tmp_path / "same.toml").write_text(own % "nvlink")
    link, base = load_gpu(str(tmp_path / "same.toml")).interconnect, B200.interconnect
    assert (link.bandwidth, link.domain) == (1.2e12, 32)
    assert (link.nccl_latency, link.kernel_latency) == (base.nccl_latency, base.kernel_latency)
    (tmp_path / "other.toml").write_text(own % "pcie")
    assert load_gpu(str(tmp_path / "other.toml")).interconnect.nccl_latency == 1.0


def test_two_gpus_are_told_apart():
    factors = {"p": ["architecture: 2 to 3"], "d": ["front_end", "architecture: 4 to 5"]}
    _, line = assumption_warnings({}, factors, {}, {})
    assert "by 2 to 3 (p); 4 to 5 (d). Set" in str(line)
