"""Bytes of KV entries and states of models whose layers differ, here and in an installed vLLM.

python -m conformance.pages --python VENV/bin/python
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from mist_sim.models import load_model
from mist_sim.models.layers import mixers_of
from mist_sim.models.mixers import HeadsMixer, LatentMixer, LinearMixer, Mixer

MODELS = (
    "qwen3.5-27b",
    "qwen3.5-397b-a17b",
    "qwen3.8-2.4t-a95b",
    "nemotron-3-nano-30b-a3b-bf16",
    "nemotron-3-super-120b-a12b-fp8",
    "nemotron-h-56b-base-8k",
    "kimi-k3",
    "deepseek-v3.2",
    "glm-5.2",
    "mimo-v2-flash",
    "gemma-4-26b-a4b",
    "llama-4-scout-17b-16e-instruct",
    "step-3.7-flash",
)
RANKS = (1, 2, 8)


class Asked(NamedTuple):
    """A mixer of a model on so many ranks, what it is in vLLM's terms, and its bytes here."""

    model: str
    ranks: int
    mixer: dict[str, Any]
    bytes_here: float


def asked() -> Iterator[Asked]:
    """Yield the different mixers of the models."""
    for name in MODELS:
        model = load_model(name).with_dtypes(kv_cache="bfloat16")
        for ranks in RANKS:
            if model._mixer_problem(ranks):  # noqa: SLF001 - the split that its heads allow
                continue
            for mixer in mixers_of(model.layers):
                is_state = isinstance(mixer, LinearMixer)
                here = mixer.state_bytes(ranks, 2) if is_state else mixer.token_bytes(ranks, 2)
                yield Asked(name, ranks, _described(mixer, ranks), here)


def _described(mixer: Mixer, ranks: int) -> dict[str, Any]:
    if isinstance(mixer, LinearMixer):
        names = ("key_heads", "value_heads", "key_dim", "value_dim", "conv_kernel")
        sizes = {name: getattr(mixer, name) for name in (*names, "state_value_bytes")}
        return {"kind": "state", "state": mixer.kind, "ranks": ranks, **sizes}
    if isinstance(mixer, LatentMixer):
        keys = mixer.indexer.key_bytes if mixer.indexer else 0
        return {"kind": "latent", "size": mixer.mla.latent_size, "index_bytes": keys}
    if isinstance(mixer, HeadsMixer):
        sizes = {"kv_heads": mixer.kv_heads(ranks), "head_dim": mixer.head_dim}
        return {"kind": "heads", **sizes, "v_head_dim": mixer.v_head_dim, "window": mixer.reach}
    raise TypeError(f"no pages of {type(mixer).__name__}")


def main(
    python: Annotated[str, typer.Option(help="A Python that has vLLM.")] = sys.executable,
) -> None:
    """Print each mixer whose bytes differ, and how many there are."""
    known = list(asked())
    done = subprocess.run(
        [python, "-m", "conformance.vllm_side.page_bytes"],
        input=json.dumps([each.mixer for each in known]),
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).resolve().parents[1],
    )
    if done.returncode:
        print(done.stderr[-2_000:], file=sys.stderr)
        raise typer.Exit(2)
    found = json.loads(done.stdout)
    num_equal = 0
    for each, there in zip(known, found["bytes"], strict=True):
        num_equal += each.bytes_here == there
        if each.bytes_here != there:
            print(f"{each.model}, TP {each.ranks}: {each.bytes_here}, there {there}: {each.mixer}")
    models = len({each.model for each in known})
    print(f"{num_equal} of {len(known)} of {models} models equal to vLLM {found['version']}")


if __name__ == "__main__":
    typer.run(main)
