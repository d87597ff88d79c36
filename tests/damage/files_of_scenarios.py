"""Files that a scenario names, by kind, as they should be; and what reads them."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from mist_sim import Scenario
from mist_sim.scenario import build
from mist_sim.spec_files import texts_in
from tests.damage.draws import Draw
from tests.reference import measured
from tests.reference.regression_files import regression_content

Files = dict[str, bytes]
"""Content by name, relative to the working directory."""

Makes = Callable[[Draw], Files]
Kinds = dict[str, tuple[Makes, Callable[[], object]]]
"""What makes the files of a kind, and what reads them there."""

_LENGTHS = {
    "type": "synthetic",
    "num_requests": 3,
    "prompt": {"type": "fixed", "tokens": 40},
    "output": {"type": "fixed", "tokens": 4},
}
WORKLOAD = {"lengths": _LENGTHS, "arrivals": {"type": "all_at_once"}}
PLAIN = {"model": "qwen3-0.6b", "workload": WORKLOAD, "clients": [{"name": "a", "gpu": "l4"}]}
"""A scenario of three requests."""


def _runs(**client: Any) -> Callable[[], object]:
    """Return what loads a scenario file with such a client, and runs it."""

    def read() -> object:
        model = client.get("model", "llama-3.1-8b")
        data = {
            "model": model,
            "workload": WORKLOAD,
            "clients": [{"name": "a", "gpu": "h100-sxm", **client}],
        }
        return build(_loaded(data)).run()

    return read


def _loaded(data: Any) -> Scenario:
    Path("s.yaml").write_text(json.dumps(data), "utf-8")
    return Scenario.load("s.yaml", allow_programs=False)


def _spec(package: str, folder: str, ending: str, name: str) -> Makes:
    @cache
    def texts() -> list[str]:
        return [*texts_in(package, folder, ending).values()]

    return lambda draw: {name: draw.choice(texts()).encode()}


def _model(draw: Draw) -> Files:
    texts = texts_in("mist_sim.models", "catalog", ".json")
    whole = [text for text in texts.values() if "based_on" not in text]
    quantized = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None}}
    found = {"m/config.json": draw.choice(whole).encode()}
    if draw.share() < 0.2:
        found["m/hf_quant_config.json"] = json.dumps(quantized).encode()
    return found


def _topology() -> object:
    data = {
        "model": "qwen3-0.6b",
        "workload": WORKLOAD,
        "network": {"topology": "./t.toml"},
        "clients": [
            {"name": "p", "gpu": "h100-sxm", "role": "prefill"},
            {"name": "d", "gpu": "h100-sxm", "role": "decode"},
        ],
    }
    return build(_loaded(data)).run()


def written(write: Callable[[Path], object], *names: str) -> Makes:
    @cache
    def files() -> Files:
        with TemporaryDirectory() as folder:
            write(Path(folder))
            return {name: (Path(folder) / Path(name).name).read_bytes() for name in names}

    return lambda draw: files()


def _steps_parquet(folder: Path) -> None:
    frame = pd.read_csv(measured.write_steps(folder), comment="#")
    frame.to_parquet(folder / "steps.parquet")


def _profile(folder: Path) -> None:
    measured.write_experts(measured.write_layer_profile(folder, 32), 32)
    (folder / "meta.yaml").write_text(
        "model: mixtral-8x7b\ngpu: h100-sxm  # the card\ntp_degrees: [1]\nskew_fit:\n"
        "  enabled: true\n"
    )


def csv(text: str, name: str = "t.csv") -> Makes:
    """Return what makes one file of a text."""
    return lambda draw: {name: text.encode()}


def _table(form: str, path: str, **client: Any) -> Callable[[], object]:
    return _runs(**client, predictor={"type": "table", "format": form, "path": path})


_KINDS_OF_LAYERS = (
    "dense.csv",
    "per_sequence.csv",
    "attention.csv",
    "skew.csv",
    "moe.csv",
    "meta.yaml",
)
_HOSTS = "catalog/hosts"
NAMED: Kinds = {
    "gpu": (_spec("mist_sim.hardware", "catalog", ".toml", "g.toml"), _runs(gpu="./g.toml")),
    "gpu of a base": (
        csv(
            'based_on = "h100-sxm"\nmemory = "120 GB"\nflops.fp8 = "3 PFLOP/s"\n'
            'interconnect = {kind = "nvlink", bandwidth = "900 GB/s"}\n'
            "prefill = {mfu = 0.7, mbu = 0.85}\n[sources]\nmemory = 'x'\n",
            "g.toml",
        ),
        _runs(gpu="./g.toml"),
    ),
    "model": (_model, _runs(model="./m", gpu="b200", tensor_parallel_size=8)),
    "host": (
        _spec("mist_sim.hardware", _HOSTS, ".toml", "h.toml"),
        _runs(gpu="l4", tensor_parallel_size=2, host="./h.toml"),
    ),
    "topology": (_spec("mist_sim.network.topology", "presets", ".toml", "t.toml"), _topology),
    "steps": (written(measured.write_steps, "steps.csv"), _table("steps", "steps.csv")),
    "steps in parquet": (
        written(_steps_parquet, "steps.parquet"),
        _table("steps", "steps.parquet"),
    ),
    "layer profile": (
        written(_profile, *(f"p/{name}" for name in [*_KINDS_OF_LAYERS, "meta.yaml"])),
        _table("layer_profile", "p", model="mixtral-8x7b"),
    ),
    "vidur": (
        written(lambda folder: measured.write_vidur(folder, 32), "v/layers.csv", "v/attention.csv"),
        _table("vidur", "v"),
    ),
    "splitwise": (
        written(measured.write_splitwise, "splitwise.csv"),
        _runs(
            predictor={
                "type": "table",
                "format": "splitwise",
                "path": "splitwise.csv",
                "subset": "m/a",
            }
        ),
    ),
    "regression": (
        lambda draw: {"r.json": json.dumps(regression_content()).encode()},
        _runs(predictor={"type": "regression", "path": "r.json"}),
    ),
    "durations": (
        csv("# seconds\n0.1\n0.25\n\n1e-3\n", "d.txt"),
        lambda: build(
            _loaded(
                {
                    **PLAIN,
                    "workload": {**WORKLOAD, "patience": {"type": "empirical", "path": "d.txt"}},
                }
            )
        ).run(),
    ),
}
