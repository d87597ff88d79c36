"""`mist list FAMILY NAME`: an entry as its file has it."""

import json
import re
import tomllib
from dataclasses import replace

import pytest

from mist_sim import Scenario, load_gpu, load_model
from mist_sim.hardware.devices import gpu_from_table


@pytest.mark.parametrize(("name", "slug"), [("mi300x", "mi300x"), ("H100", "h100-sxm")])
def test_a_gpu_read_back_is_the_gpu(mist, name, slug):
    code, out, _ = mist("list", "gpus", name)
    assert code == 0
    text, *kernels = out.partition("# Kernels of architecture")
    assert bool(kernels[0]) == bool(load_gpu(slug).architecture)
    table = {key: value for key, value in tomllib.loads(text).items() if key != "aliases"}
    read = gpu_from_table(table, name=slug, source="printed")
    assert replace(read, based_on=slug) == load_gpu(slug)
    if kernels[0]:
        figures = tomllib.loads("".join(kernels))
        assert figures["bf16"]["floor"].endswith(" us")
        assert figures["sources"]


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
        (["routers", "random"], "NAME must follow topologies, models, gpus, hosts, presets"),
    ],
)
def test_bad_names_are_one_message(mist, tmp_path, words, said):
    (tmp_path / "bad.toml").write_text('based_on = "h100"\nmemmory = "9 GB"\n', "utf-8")
    code, out, err = mist("list", *words)
    assert (code, out) == (2, "")
    assert said in err
