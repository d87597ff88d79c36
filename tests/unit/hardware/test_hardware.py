"""Hardware: the GPU catalog and its sources, spec files, and the cost of an all-reduce."""

from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest

from mist_sim import Simulation, Workload, llm_client
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster, Efficiency, GpuSpec, gpu_names, load_gpu
from mist_sim.hardware.devices import TYPICAL_DECODE, TYPICAL_PREFILL
from tests.reference.sources import source_of
from tools.catalog import catalog_figures

NAMES = gpu_names()
SPEC = """
memory = "80 GB"
memory_bandwidth = "3.35 TB/s"
flops.bf16 = "989 TFLOP/s"
interconnect = {kind = "nvlink", bandwidth = "450 GB/s"}
host_bandwidth = "64 GB/s"
power = "700 W"
"""


NEUTRAL = dict.fromkeys(("nccl_latency", "kernel_latency", "clock"), 1.0)
NEUTRAL |= {"domain": None, "peer_access": True}


def figures(value: object, prefix: str = "") -> list[str]:
    """Dotted names of all numbers, and of the choices that change them."""
    if is_dataclass(value):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
    elif isinstance(value, dict):
        parts = value
    else:
        return [] if value is None else [prefix.removesuffix(".")]
    left_out = {"name", "based_on", "kind", "confidence", "architecture", "sources", "clock"}
    return [
        name
        for key, part in parts.items()
        if key not in left_out and NEUTRAL.get(key, ...) != part
        for name in figures(part, f"{prefix}{key}.")
    ]


@pytest.fixture
def spec_file(tmp_path: Path):
    def write(text: str) -> str:
        path = tmp_path / "my-gpu.toml"
        path.write_text(text, "utf-8")
        return str(path)

    return write


# ------------------------------------------------------------------ the catalog


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_has_a_source(name):
    gpu = load_gpu(name)
    assert gpu.name == name
    without = [figure for figure in figures(gpu) if not source_of(gpu, figure)]
    assert not without
    tables = {f"kernels.{kind}" for kind in gpu.kernels}
    unused = set(gpu.sources) - set(figures(gpu)) - {field.name for field in fields(gpu)} - tables
    assert not unused, "sources of figures that do not exist"
    fitted = "measured" in gpu.confidence or "fitted" in gpu.confidence
    assert fitted != source_of(gpu, "prefill.mfu").startswith("rule:")


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_of_the_right_size(name):
    """Catches a slipped unit or a rate with sparsity."""
    gpu = load_gpu(name)
    if name not in SMALL_OR_OLD:
        assert 20e9 < gpu.memory < 310e9
        assert 0.3e12 <= gpu.memory_bandwidth <= 22e12
        assert 70e12 <= gpu.flops["bf16"] <= 4000e12
        assert 30e9 < gpu.interconnect.bandwidth <= 1800e9
        assert 30e9 < gpu.host_bandwidth <= 450e9
        assert 70 < gpu.power <= 1800
    for dtype, factors in (("fp8", (1.9, 4.5)), ("int8", (1.9, 4.1)), ("fp4", (3.9, 9.0))):
        if dtype == "int8" and name in ("b300", "gb300"):
            assert gpu.flops[dtype] < gpu.flops["bf16"] / 10  # Blackwell Ultra
        elif dtype in gpu.flops:
            assert factors[0] < gpu.flops[dtype] / gpu.flops["bf16"] < factors[1]
    assert (gpu.interconnect.kind == "pcie") == (gpu.interconnect.all_reduce == "host")
    assert bool(gpu.dispatch) == (name == "ascend-910b3")


# GiB, GB/s, TFLOP/s of 16, 8 and 4 bits, GB/s between GPUs and to the host, W, capability: of the
# sources that their entries name.
SMALL_OR_OLD = {
    "gb10": (121.69, 273, {"bf16": 125, "fp8": 250, "int8": 250, "fp4": 500}, 25, 273, 140, None),
    "t4": (14.56, 300, {"bf16": 65, "int8": 130}, 16, 16, 70, 7.5),
    "v100-16gb-sxm": (15.77, 900, {"bf16": 125}, 150, 16, 300, 7.0),
    "v100-32gb-sxm": (31.73, 900, {"bf16": 125}, 150, 16, 300, 7.0),
}


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        *SMALL_OR_OLD.items(),
        ("h20", (95, 4000, {"bf16": 148, "fp8": 296, "int8": 296}, 450, 64, 400, None)),
        ("h800", (79.1, 3350, {"bf16": 989.4, "fp8": 1978.9, "int8": 1978.9}, 200, 64, 700, None)),
    ],
)
def test_cards_that_nobody_measured(name, figures):
    gpu = load_gpu(name)
    memory, bandwidth, rates, between, host, watts, capability = figures
    assert gpu.memory == memory * 2**30
    assert gpu.memory_bandwidth == bandwidth * 1e9
    assert gpu.flops == pytest.approx({dtype: rate * 1e12 for dtype, rate in rates.items()})
    assert (gpu.interconnect.bandwidth, gpu.host_bandwidth) == (between * 1e9, host * 1e9)
    assert (gpu.power, gpu.compute_capability) == (watts, capability)
    assert gpu.confidence == "spec-only"


def test_ampere_has_its_compute_capability():
    """NVIDIA, CUDA GPU Compute Capability; newer cards have none, since all versions serve them."""
    found = {name: load_gpu(name).compute_capability for name in NAMES}
    a100s = dict.fromkeys((name for name in NAMES if name.startswith("a100")), 8.0)
    others = dict.fromkeys(("a10", "a10g", "a40", "rtx-3090", "rtx-a6000"), 8.6)
    older = {name: figures[-1] for name, figures in SMALL_OR_OLD.items() if name != "gb10"}
    assert {name: each for name, each in found.items() if each} == a100s | others | older


@pytest.mark.parametrize("name", ["v100-16gb-sxm", "v100-32gb-sxm", "t4"])
def test_cards_of_unknown_kernels_are_told(name):
    """No table is of Volta or Turing: no error bar, and a range by other architectures."""
    client = llm_client("llm", model="qwen2.5-1.5b", gpu=name, engine="vllm-0.19")
    workload = Workload.from_lists([500], [50], [0.0])
    summary = Simulation(clients=[client], workload=workload).run().summary
    assert any(each.startswith("architecture: ") for each in summary["assumed"]["llm"])
    assert {bar["low"] for bar in summary["expected_errors"]["llm"].values()} == {None}
    assert "spec-only" in {each["kind"] for each in summary["warnings"]}


def test_ascend_has_the_constants_of_bestserve():
    gpu = load_gpu("ascend-910b3")
    assert gpu.flops["bf16"] == 313e12
    assert gpu.memory_bandwidth == 1.6 * 2**40
    assert gpu.interconnect.bandwidth == 90 * 2**30
    assert gpu.prefill == Efficiency(mfu=0.65, mbu=0.6)
    assert gpu.decode == Efficiency(mfu=0.65, mbu=0.3)
    assert gpu.dispatch == pytest.approx({"rmsnorm": 24e-6, "attention": 190e-6, "mlp": 41e-6})


def test_aliases_in_any_case_stand_for_one_card():
    for name in NAMES:
        assert load_gpu(name).name == name
    assert load_gpu("H100") == load_gpu("h100-sxm")
    assert load_gpu("A100-80GB") == load_gpu("a100-80gb-sxm")
    assert hash(load_gpu("h100")) == hash(load_gpu("h100-sxm"))


FITTED = {  # by tools.catalog
    "rtx-a6000": {
        **dict.fromkeys(("prefill.mfu", "decode.mfu"), 0.675),
        **dict.fromkeys(("prefill.mbu", "decode.mbu"), 0.95),
        "kernels.bf16.floor": 8.22e-06,
    },
    "rtx-3090": {
        **dict.fromkeys(("prefill.mfu", "decode.mfu"), 0.912),
        **dict.fromkeys(("prefill.mbu", "decode.mbu"), 0.868),
        "kernels.bf16.floor": 1.01e-05,
    },
}


def test_the_measurements_say_these_efficiencies(shared):
    found = catalog_figures(shared("measurements"))
    assert found.keys() == FITTED.keys()
    for name, figures in FITTED.items():
        assert found[name] == pytest.approx(figures)


def test_fitted_efficiencies_are_what_the_measurements_say():
    for name, figures in FITTED.items():
        gpu, fitted = load_gpu(name), dict(figures)
        floor = fitted.pop("kernels.bf16.floor")
        assert gpu.kernels["bf16"].floor == pytest.approx(floor)
        for figure, value in fitted.items():
            phase, field = figure.split(".")
            assert getattr(getattr(gpu, phase), field) == pytest.approx(value, abs=0.0051), figure


# ------------------------------------------------------------------ spec files


def test_a_short_spec_file(spec_file):
    path = spec_file(SPEC)
    gpu = load_gpu(path)
    assert (gpu.name, gpu.memory, gpu.flops) == ("my-gpu", 80e9, {"bf16": 989e12})
    assert gpu.interconnect.all_reduce == "auto"
    assert (gpu.prefill, gpu.decode) == (TYPICAL_PREFILL, TYPICAL_DECODE)
    assert gpu.confidence == "spec-only"
    assert load_gpu(spec_file(SPEC.replace("nvlink", "pcie"))).interconnect.all_reduce == ("host")


def test_a_full_spec_file(spec_file):
    text = f"""
    name = "dream"
    confidence = "measured"
    {SPEC}
    flops.fp8 = "2 PFLOP/s"
    prefill = {{mfu = 0.5, mbu = 1}}
    decode = {{mfu = 0.4, mbu = 0.7}}
    dispatch.mlp = "41 us"
    sources = {{memory = "guess", prefill.mfu = "hope"}}
    """
    gpu = load_gpu(spec_file(text))
    assert gpu.name == "dream"
    assert gpu.prefill == Efficiency(mfu=0.5, mbu=1.0)
    assert gpu.dispatch == {"mlp": pytest.approx(41e-6)}
    assert gpu.confidence == "measured"
    assert source_of(gpu, "memory") == "guess"
    assert source_of(gpu, "prefill.mfu") == "hope"
    assert source_of(gpu, "prefill.mbu") == ""


def test_based_on_changes_only_what_is_given(spec_file):
    base = load_gpu("h100-sxm")
    path = spec_file('based_on = "H100"\nmemory = "120 GB"\nflops.fp8 = "3 PFLOP/s"\n')
    gpu = load_gpu(path)
    assert gpu.name == "my-gpu"
    assert gpu.confidence == "spec-only"
    assert gpu.flops == {**base.flops, "fp8": 3e15}
    changed = {"name", "memory", "flops", "confidence", "sources"}
    for field in fields(GpuSpec):
        same = getattr(gpu, field.name) == getattr(base, field.name)
        assert same != (field.name in changed), field.name
    assert source_of(gpu, "memory") == source_of(gpu, "flops.fp8") == path
    assert source_of(gpu, "flops.bf16") == source_of(base, "flops.bf16")


def test_based_on_merges_tables_but_replaces_an_interconnect_of_another_kind(spec_file):
    gpu = load_gpu(spec_file('based_on = "h100"\ninterconnect.bandwidth = "1 TB/s"\n'))
    assert gpu.interconnect == replace(load_gpu("h100").interconnect, bandwidth=1e12)
    text = 'based_on = "h100"\ninterconnect = {kind = "pcie", bandwidth = "64 GB/s"}\n'
    assert load_gpu(spec_file(text)).interconnect.all_reduce == "host"
    gpu = load_gpu(spec_file('based_on = "h100"\ndecode.mbu = 0.9\n'))
    assert gpu.decode == replace(load_gpu("h100").decode, mbu=0.9)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("memory =", "memmory =", "unknown key 'memmory'; did you mean 'memory'"),
        ("memory =", 'aliases = ["x"]\nmemory =', "unknown key 'aliases'"),
        ('memory = "80 GB"', "", "missing memory"),
        ("memory =", "price = 5.0\nmemory =", "price must not stand here.* gpu_price: 5 [$]/h"),
        ('"80 GB"', "80", "memory: a size needs a number and a unit, such as '1 B', got 80"),
        ('"80 GB"', '"80"', "memory: a size needs a number and a unit"),
        ('"80 GB"', '"80 GBB"', "memory: 'GBB' is not a unit of size"),
        ('"80 GB"', '"80 W"', "memory: 'W' is not a unit of size"),
        ('"80 GB"', '"-80 GB"', "memory must be finite and > 0 B"),
        ('"80 GB"', '"0 GB"', "memory must be finite and > 0 B"),
        ('"989 TFLOP/s"', "989e12", "flops.bf16: a compute rate needs"),
        ("flops.bf16", "flops.bf8", "flops.bf16 is missing"),
        ("flops.bf16 =", 'flops.fp7 = "1 FLOP/s"\nflops.bf16 =', "flops has no 'fp7'"),
        ('flops.bf16 = "989 TFLOP/s"', 'flops = "989 TFLOP/s"', "flops must be a table"),
        ("nvlink", "nvlnk", "interconnect: kind has no 'nvlnk'; did you mean 'nvlink'"),
        ('kind = "nvlink", ', "", "interconnect: missing kind"),
        ('bandwidth = "450 GB/s"', 'bandwidth = "450 GB"', "interconnect.bandwidth: 'GB' is"),
        ('"450 GB/s"', '"450 GB/s", eficiency = 1', "interconnect: unknown key 'eficiency'"),
        ('"nvlink"', '["nvlink"]', r"interconnect.kind must be a string, got \['nvlink'\]"),
        ('"450 GB/s"', '"450 GB/s", efficiency = 1.2', r"efficiency must be in \(0, 1\], got 1.2"),
        ('"450 GB/s"', '"450 GB/s", all_reduce = "rng"', "all_reduce has no 'rng'"),
        ('{kind = "nvlink", bandwidth = "450 GB/s"}', '"nvlink"', "interconnect must be a table"),
        ("power", "prefill = {mfu = 0, mbu = 1}\npower", r"prefill: mfu must be in \(0, 1\], got"),
        ("power", "prefill = {mfu = nan, mbu = 1}\npower", "prefill: mfu must be in"),
        ("power", 'prefill = {mfu = "1", mbu = 1}\npower', "prefill.mfu must be a number, got '1'"),
        ("power", "prefill = {mfu = true, mbu = 1}\npower", "prefill.mfu must be a number"),
        ("power", "prefill = {mfu = 0.5}\npower", "prefill: missing mbu"),
        ("power", "prefill = 0.5\npower", "prefill must be a table, got 0.5"),
        ("power", 'dispatch.mpl = "1 us"\npower', "dispatch has no 'mpl'; did you mean 'mlp'"),
        ("power", 'dispatch.mlp = "0 us"\npower', "dispatch.mlp must be finite and > 0 s"),
        ("power", 'confidence = "sure"\npower', "confidence has no 'sure'; did you mean"),
        ("power", "name = 7\npower", "name must be a string, got 7"),
        ("power", 'sources = "me"\npower', "sources must be a table, got 'me'"),
        ("power", "sources.memory = 7\npower", "sources.memory must be a string, got 7"),
        ("power", 'based_on = "h10"\npower', "no accelerator and no file is named 'h10'; did you"),
        ("power", "based_on = 5\npower", "based_on: no accelerator and no file is named '5'"),
        ("power", "memory = 1\npower", "not valid TOML"),
        ("power", "= 1\npower", "not valid TOML"),
    ],
)
def test_wrong_spec_files_name_the_file_and_field(spec_file, old, new, problem):
    assert old in SPEC
    path = spec_file(SPEC.replace(old, new, 1))
    with pytest.raises(ScenarioError, match=problem) as caught:
        load_gpu(path)
    assert str(caught.value).startswith(path)


def test_unknown_names_help(tmp_path):
    with pytest.raises(ScenarioError, match=r"did you mean 'h100-sxm'.* or give the path"):
        load_gpu("h100-sx")
    with pytest.raises(ScenarioError, match=r"named 'zzz'\. Known: a10, "):
        load_gpu("zzz")
    with pytest.raises(ScenarioError, match="no accelerator and no file"):
        load_gpu(str(tmp_path))  # a folder
    binary = tmp_path / "x.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(ScenarioError, match=r"x\.toml: not a UTF-8 text file"):
        load_gpu(str(binary))


def test_a_spec_made_in_python_is_checked_too():
    gpu = load_gpu("l4")
    with pytest.raises(ValueError, match=r"memory must be finite and > 0 B, got -1"):
        replace(gpu, memory=-1.0)
    with pytest.raises(ValueError, match=r"mbu must be in \(0, 1\], got nan"):
        Efficiency(mfu=0.5, mbu=float("nan"))


# ------------------------------------------------------------------ clusters


def test_a_cluster_has_at_least_one_rank():
    with pytest.raises(ValueError, match="tensor_parallel_size must be >= 1, got 0"):
        Cluster(load_gpu("l4"), 0)
