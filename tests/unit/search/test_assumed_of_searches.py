"""Sweeps, searches and races name the assumed host of PCIe GPUs, and ranks beyond one node."""

import json
from pathlib import Path

import pytest
import yaml

ENGINE = {"gpu": "l40s", "tensor_parallel_size": 8, "pipeline_parallel_size": 2}
LENGTHS = {"prompt": {"type": "fixed", "tokens": 200}, "output": {"type": "fixed", "tokens": 8}}
SCENARIO = {
    "model": "llama-3.1-8b",
    "workload": {
        "lengths": {"type": "synthetic", "num_requests": 30, **LENGTHS},
        "arrivals": {"type": "poisson", "rate": "1 /s"},
    },
    "clients": [{"name": "llm", **ENGINE}],
    "slo": {"ttft": "500 ms"},
}
WIDE = {"gpu": "l40s", "tensor_parallel_size": 16}
HYBRID = {
    "clients": [{"name": "p", "role": "p_heavy", **WIDE}, {"name": "d", "role": "d_heavy", **WIDE}],
    "network": {"bandwidth": "400 Gb/s", "latency": "1 ms"},
    "hand_over": {"policy": {"type": "flowing", "tpot": "100 ms"}},
}
SEQS = "clients.0.scheduler.max_num_seqs"
SEARCHED = ("--as-is", "--tolerance", "0.5")
SPACE = {"scenario": "s.yaml", "vary": {SEQS: [8, 16]}, "objectives": ["num_gpus"]}
SLIDERS = ("sliders", "s.yaml", *SEARCHED, "--chunks", "512")


@pytest.mark.parametrize(
    "command",
    [
        ("sweep", "s.yaml", f"{SEQS}=8,16"),
        ("sweep", "s.yaml", f"{SEQS}=8,16", "--goodput", *SEARCHED),
        ("search", "space.yaml"),
        SLIDERS,
        ("goodput", "s.yaml", *SEARCHED),
        ("run", "s.yaml", "--vary", f"{SEQS}=8,16"),
    ],
    ids=lambda command: " ".join(command[:1] + command[3:4]),
)
def test_host_and_ranks_that_are_assumed_are_named(command, mist, tmp_path):
    extra = HYBRID if command is SLIDERS else {}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(SCENARIO | extra))
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(SPACE))
    code, out, err = mist(*command, "-q")
    assert code == 0, err
    told = " ".join(out.split())
    assert told.count("Host of the GPUs assumed: host-bridge.") == 1
    assert told.count("Host of the GPUs assumed: host-bridge, slow") == 1
    assert told.count("Ranks are timed as if the links of one node joined them all: 16 x l40s") == 1


def test_a_named_host_is_not_named_as_assumed(mist, tmp_path):
    named = [{"name": "llm", "host": "pcie-peer", **ENGINE}]
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(SCENARIO | {"clients": named}))
    code, out, err = mist("sweep", "s.yaml", f"{SEQS}=8,16", "-q", "--out", "found")
    assert code == 0, err
    assert "Host of the GPUs assumed" not in out
    assert "assumed_host" not in json.loads(Path("found/sweep.json").read_text())
