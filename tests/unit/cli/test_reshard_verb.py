"""`mist reshard`: what it prints and writes, and what it refuses."""

import json

import pytest
from typer.testing import CliRunner

from mist_sim.cli.app import app
from mist_sim.clients import EngineConfig
from mist_sim.hardware import GPU_MEMORY_UTILIZATION, load_gpu, load_host
from mist_sim.hardware.collectives import all_reduce
from mist_sim.hardware.resharding import device_of
from mist_sim.scenario.engines.links import with_host
from mist_sim.scenario.engines.versions import version_of

ASKED = ["reshard", "--model", "llama-2-70b", "--gpu", "a10", "--gpus", "8"]
LENGTHS = ["--input-len", "3000", "--output-len", "200"]


def mist(*words):
    return CliRunner().invoke(app, [*words], env={"COLUMNS": "100"})


def test_tables_say_which_pair_is_best():
    result = mist(*ASKED, *LENGTHS)
    assert result.exit_code == 0
    assert "the requests of TP2PP4, the best layout that stays." in result.stdout
    assert "Host of the GPUs assumed, as in simulated steps: host-bridge" in result.stdout
    assert "DP2TP4 has 31.9 GiB of weights on each device, which can use 20.3 GiB" in result.stdout


def test_json_and_files_have_every_pair(tmp_path):
    result = mist(*ASKED, *LENGTHS, "--json", "--quiet", "--out", str(tmp_path / "out"))
    summary = json.loads(result.stdout)
    assert len(summary["pairs"]) == 16
    assert summary["best"]["prefill"] == "PP8"
    assert summary == json.loads((tmp_path / "out" / "resharding.json").read_text("utf-8"))
    assert len((tmp_path / "out" / "resharding.csv").read_text("utf-8").splitlines()) == 17


def test_a_number_of_copies_that_is_said_twice_is_compared_once():
    once, twice = (mist(*ASKED, *LENGTHS, "--json", "--dp", n).stdout for n in ("1", "1,1"))
    assert len(json.loads(once)["pairs"]) == len(json.loads(twice)["pairs"]) == 16


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("host", [None, "pcie-peer"])
def test_large_sums_take_as_long_as_those_of_simulated_engines(host, ranks):
    config = EngineConfig(tensor_parallel_size=ranks, host=host)
    link = with_host(load_gpu("a10g"), config).interconnect
    device = device_of(load_gpu("a10g"), host=load_host(host) if host else None)
    rate = 1e12 / all_reduce(link, ranks)(1e12)
    assert device.all_reduce_bandwidth(ranks) == pytest.approx(rate, rel=1e-3)


def test_memory_is_as_that_of_simulated_engines():
    """The share that an engine of the newest vLLM takes."""
    plain, said = (
        mist(*ASKED, *LENGTHS, "--json", *more).stdout
        for more in ([], ["--gpu-memory-utilization", str(GPU_MEMORY_UTILIZATION)])
    )
    assert plain == said
    newest = version_of(None).default("kv_cache.gpu_memory_utilization")
    assert newest == GPU_MEMORY_UTILIZATION
    assert device_of(load_gpu("a10g")).memory == newest * load_gpu("a10g").memory


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        (["--dp", "1"], "left_out"),
        (["--max-num-seqs", "8"], "best"),
        (["--host-memory", "2 GiB"], "best"),
        (["--host-bandwidth", "1 GB/s"], "best"),
        (["--link-bandwidth", "1 GB/s"], "best_static"),
        (["--host", "pcie-peer"], "best"),
        (["--gpu-memory-utilization", "0.95"], "best"),
        (["--piggyback", "1"], "best_static"),
    ],
)
def test_every_option_changes_what_is_found(options, changed):
    found = [json.loads(mist(*ASKED, *LENGTHS, "--json", *more).stdout) for more in ([], options)]
    assert found[0][changed] != found[1][changed]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--gpus", "2"], "no layout of llama-2-70b fits on 2 x a10: TP2 has 63.8 GiB of weights"),
        (
            ["--host-memory", "100 MB"],
            "host_memory must hold one prompt: 3000 tokens have 0.92 GiB",
        ),
        (["--link-bandwidth", "0 GB/s"], "link_bandwidth must be > 0 bytes/s, got 0"),
        (["--host", "pcie-peer", "--link-bandwidth", "9 GB/s"], "host must be left out with link"),
        (["--host-bandwidth", "0 GB/s"], "host_bandwidth must be > 0 bytes/s, got 0"),
        (["--input-len", "0"], "prompt tokens must be >= 1, got 0"),
        (["--model", "mixtral-8x7b"], "has formulas for dense models in 16 bits"),
        (["--piggyback", "2"], "piggyback must be in [0, 1], got 2"),
        (["--dp", "x"], "--dp must be whole numbers"),
        (["--gpu-memory-utilization", "1.5"], "gpu_memory_utilization must be in (0, 1]"),
        (["--dp", "1,3"], "data_parallel_sizes must divide 8 devices, got 3"),
        (["--max-num-seqs", "0"], "max_num_seqs must be >= 1, got 0"),
    ],
)
def test_bad_input_is_refused(words, text):
    result = mist(*ASKED, *LENGTHS, *words)
    assert result.exit_code == 2
    assert text in result.stderr
