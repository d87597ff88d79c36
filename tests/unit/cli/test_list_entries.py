"""`mist list FAMILY NAME`: an entry as its file has it."""

import json
import re
import tomllib
from dataclasses import replace

import pytest

from mist_sim import Scenario, load_gpu, load_model
from mist_sim.cli.listings.entries import entry
from mist_sim.hardware import gpu_names
from mist_sim.hardware.devices import gpu_from_table
from mist_sim.scenario.engines.versions import TABLE, VERSIONS


def test_a_gpu_is_shown_by_any_of_its_names_with_its_kernels_as_comments(mist):
    code, out, _ = mist("list", "gpus", "H100")
    assert code == 0
    assert out == mist("list", "gpus", "h100-sxm")[1]
    _, head, kernels = out.partition("# Kernels of architecture")
    assert head
    figures = tomllib.loads(re.sub("^# ?", "", kernels.partition("\n")[2], flags=re.MULTILINE))
    assert figures["bf16"]["floor"].endswith(" us")
    assert figures["sources"]


@pytest.mark.parametrize("name", gpu_names())
def test_every_gpu_that_is_shown_can_be_saved_as_a_file_and_is_the_same(tmp_path, name):
    file = tmp_path / f"{name}.toml"
    file.write_text(entry("gpus", name), "utf-8")
    read, known = load_gpu(str(file)), load_gpu(name)
    assert replace(read, sources={}) == replace(known, sources={})
    assert known.sources.keys() <= read.sources.keys()


def test_a_gpu_of_a_file_is_shown_with_what_it_is_based_on(mist, tmp_path):
    (tmp_path / "b200.toml").write_text(
        'based_on = "h100"\nmemory = "99 GB"\ninterconnect = {domain = 4}\n', "utf-8"
    )
    path = str(tmp_path / "b200.toml")
    code, out, _ = mist("list", "gpus", path)
    assert code == 0
    text, *kernels = out.partition("# Kernels of architecture")
    assert kernels[0]
    read = gpu_from_table(tomllib.loads(text), name="b200", source="printed")
    assert replace(read, sources={}) == replace(load_gpu(path), sources={})
    assert (read.memory, read.interconnect.domain) == (99e9, 4)
    assert read.memory_bandwidth == load_gpu("h100").memory_bandwidth


def test_own_models_show_their_sizes(mist, tmp_path):
    config = json.loads(mist("list", "models", "qwen3-30b-a3b")[1]) | {"num_hidden_layers": 24}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    model = load_model(str(tmp_path))
    for name in (tmp_path, tmp_path / "config.json"):
        rows = mist("list", "models", str(name))[1].splitlines()
        sizes = dict(re.split(r"\s{2,}", row.strip()) for row in rows)
        assert sizes["model"] == model.name
        assert (sizes["layers"], sizes["KV per token"]) == ("24", "48 KiB")
        assert sizes["active"] == f"{model.num_active_parameters / 1e9:.1f} B"
        assert sizes["weights"] == f"{model.weight_bytes_per_rank(1) / 2**30:.1f} GiB"


def test_hosts_of_files_are_their_text(mist, tmp_path):
    (tmp_path / "host.toml").write_text("peer_access = false\n", "utf-8")
    assert mist("list", "hosts", str(tmp_path / "host.toml"))[1] == "peer_access = false\n"


def test_models_hosts_and_presets(mist):
    assert json.loads(mist("list", "models", "meta-llama/Llama-3.1-8B")[1])["hidden_size"] == 4096
    assert tomllib.loads(mist("list", "hosts", "pcie-peer")[1])["peer_access"] is True
    text = mist("list", "presets", "demo")[1]
    assert Scenario.from_yaml(text).resolved() == Scenario.load("demo").resolved()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gpus", "h1000"], "no accelerator and no file is named 'h1000'; did you mean"),
        (["gpus", "bad.toml"], "bad.toml: unknown key 'memmory'; did you mean 'memory'"),
        (["models", "nobody"], "no model and no file is named 'nobody'"),
        (["presets", "dmeo"], "no preset is named 'dmeo'; did you mean 'demo'"),
        (["routers", "random"], "NAME must follow topologies, engines, models, gpus, hosts"),
    ],
)
def test_bad_names_are_one_message(mist, tmp_path, words, said):
    (tmp_path / "bad.toml").write_text('based_on = "h100"\nmemmory = "9 GB"\n', "utf-8")
    code, out, err = mist("list", *words)
    assert (code, out) == (2, "")
    assert said in err


def test_releases_of_the_engine_are_listed_with_what_they_do(mist):
    code, out, _ = mist("list", "engines")
    assert code == 0
    assert all(key in out for key in TABLE.defaults)
    assert "0.9; 0.20: 0.92" in out
    for name, memory in (("v0.19.1", "0.9"), ("vllm-0.20", "0.92")):
        out = mist("list", "engines", name)[1]
        assert f"gpu_memory_utilization = {memory}\n" in out
    assert "must be vllm-0.10 to" in mist("list", "engines", "v0.9")[2]
    assert all(name in "".join(mist("list")[1].split()) for name in VERSIONS)
