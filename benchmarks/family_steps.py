"""Whole steps of models by family: the roofline beside measured kernels, added up.

    python -m benchmarks.family_steps --write steps.parquet

Needs the wheel of aisimulate on the path (Apache-2.0; `pip install --pre --no-deps aisimulate`
into an environment of its own, whose `site-packages` then stand in PYTHONPATH); takes minutes.

A point is a step of one whole prompt, or of decodes, on one GPU of a tensor-parallel group.
Measured are kernels of vLLM 0.24 to 0.31 as aisimulate adds them up; its norms, activations and
embeddings are its own estimates. A point does not count in which it estimates another kernel:
states of Mamba-2, some FP8 products, prompts behind a context. Collectives are left out on both
sides.

For models with Gated DeltaNet the figures of states are fitted anew without the kernels of the
model that is scored. `is_own` marks other models whose own kernels figures were fitted to.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd

from mist_sim.core.batch import StepBatch
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster, GpuSpec, load_gpu
from mist_sim.hardware.devices import Kernel
from mist_sim.hardware.kernel_choice import KernelChoice, deployment_of
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.models import ModelSpec, load_model
from mist_sim.models.layers import mixers_of
from mist_sim.models.mixers import CompressedMixer
from mist_sim.models.model_loading import names_of
from mist_sim.models.moe_backends import OF_0_24, expert_format
from tools.mixers.mixer_fit import fit_mixer
from tools.mixers.mixer_sources import ARCHITECTURES, Tables

FAMILIES: Mapping[str, Sequence[str]] = {
    "Gated DeltaNet": (
        "qwen3.5-27b",
        "qwen3.5-35b-a3b",
        "qwen3.5-122b-a10b",
        "qwen3.5-397b-a17b",
        "qwen3.8-2.4t-a95b",
    ),
    "KDA": ("kimi-k3", "glm-5.3-flash"),
    "Mamba-2": (
        "nemotron-3-nano-30b-a3b-bf16",
        "nemotron-3-super-120b-a12b-fp8",
        "nemotron-3-ultra-550b-a55b-bf16",
        "nemotron-h-56b-base-8k",
    ),
    "DSA": ("deepseek-v3.2", "glm-5", "glm-5.2", "glm-5-fp8"),
    "CSA and HCA": (
        "deepseek-v4-flash",
        "deepseek-v4-pro",
        "deepseek-v4-flash-fp8",
        "deepseek-v4-pro-fp8",
    ),
    "blocks of keys": ("minimax-m3",),
    "windows": (
        "gemma-4-26b-a4b",
        "llama-4-scout-17b-16e-instruct",
        "llama-4-maverick-17b-128e-instruct",
        "mimo-v2-flash",
        "muse-glimmer-30b",
        "gpt-oss-120b",
    ),
    "blocks one by one": ("llama-3.3-nemotron-super-49b-v1",),
    "latent": ("deepseek-v3", "kimi-k2.5"),
    "experts": ("qwen3-235b-a22b", "qwen3-30b-a3b", "minimax-m2.7", "mixtral-8x7b"),
    "dense": ("llama-3.1-8b", "llama-3.1-70b", "qwen3-32b", "qwen3-8b"),
}
"""Models of the catalog by what is particular about their layers."""

_FITTED = {"kimi-k3", "glm-5.3-flash", "glm-5.2", "deepseek-v4-flash-fp8", "minimax-m3"}
DECODES, CONTEXTS = (1, 8, 32, 128), (1024, 8192, 32_768, 131_072)
PROMPTS = (128, 512, 2048, 8192)
_RANKS = (1, 2, 4, 8)
_LINKS = ("_ar", "dispatch", "_p2p")
_ESTIMATED = {"estimated", "sol"}
_EXPERTS = ("moe", "router", "shared", "latent")
_OURS = ("expert", "router", "combine", "shared")


def systems() -> Iterator[tuple[str, str, str]]:
    """Yield architecture, folder of the tables, and our GPU."""
    for architecture, folders in ARCHITECTURES.items():
        for folder, gpu in folders.items():
            yield architecture, folder, gpu


def points(data: Path) -> Iterator[dict[str, Any]]:
    """Yield all points. data: folder `aisimulate_core/systems/data`."""
    for architecture, folder, gpu_name in systems():
        for family, names in FAMILIES.items():
            for name in names:
                gpu = _without(data, architecture, load_gpu(gpu_name), family, name)
                for place in _of_model(gpu, folder, name):
                    yield {"family": family, "model": name, "gpu": gpu_name, **place}


def _of_model(gpu: GpuSpec, folder: str, name: str) -> Iterator[dict[str, Any]]:
    """Yield the points of a model on one GPU, for the fewest ranks that hold it, and for 8."""
    model = load_model(name)
    fits = [n for n in _RANKS if _fits(model, gpu, n)]
    for ranks in dict.fromkeys([*fits[:1], *fits[-1:]]):
        handle = _compiled(model, folder, ranks)
        if handle is None:
            continue
        ours = RooflinePredictor(model, _with_kernels(model, Cluster(gpu, ranks)))
        for batch in _batches(model):
            if (theirs := _measured(handle, batch)) is None:
                continue
            experts, rest = _computed(ours, batch)
            yield {
                "ranks": ranks,
                "step": "prompt" if batch.chunks else "decodes",
                "number": batch.num_prefill_tokens or batch.num_decodes,
                "context": _context(batch),
                "is_own": name in _FITTED,
                "measured": sum(theirs),
                "measured_experts": theirs[0],
                "computed": experts + rest,
                "computed_experts": experts,
            }


def _with_kernels(model: ModelSpec, cluster: Cluster) -> Cluster:
    """Return a cluster with the kernels of experts that vLLM 0.24 takes, as those measured are."""
    if not (stored := expert_format(model)):
        return cluster
    experts = OF_0_24[stored].of(deployment_of(model, cluster))
    return KernelChoice(experts).timed(model, cluster)


def _context(batch: StepBatch) -> int:
    return 0 if batch.chunks else batch.context_sum // batch.num_decodes


def _fits(model: ModelSpec, gpu: GpuSpec, ranks: int) -> bool:
    try:
        return model.weight_bytes_per_rank(ranks) < 0.85 * gpu.memory
    except ScenarioError:
        return False


def _batches(model: ModelSpec) -> Iterator[StepBatch]:
    longest = model.max_position_embeddings
    for number in DECODES:
        for context in CONTEXTS:
            if context < longest:
                yield StepBatch((), number, number * context)
    for new in PROMPTS:
        if new < longest:
            yield StepBatch(((new, 0),))


def _compiled(model: ModelSpec, folder: str, ranks: int) -> Any:
    """Return what adds the measured kernels of a model up; None where there are none.

    Its cache is of our type; entries of DeepSeek-V4 have one type alone.
    """
    from aisimulate_core.sdk import EngineHandle, engine

    sizes: dict[str, Any] = {"moe_tp_size": ranks, "moe_ep_size": 1} if model.moe else {}
    if not any(isinstance(mixer, CompressedMixer) for mixer in mixers_of(model.layers)):
        sizes["kvcache_quant_mode"] = "fp8" if model.kv_entry_bytes == 1 else "bfloat16"
    hub = _hub_names(model.name)[0]
    built = engine.build_engine_spec_json
    try:
        with patch.object(
            engine, "build_engine_spec_json", lambda *given, **said: _plain(built(*given, **said))
        ):
            return EngineHandle.compile(hub, system=folder, backend="vllm", tp_size=ranks, **sizes)
    except Exception as error:  # noqa: BLE001 - it has errors of its own for what it lacks
        logging.getLogger(__name__).warning("%s on %s: %s", hub, folder, str(error)[:160])
        return None


def _plain(spec: str) -> str:
    """Return a model of theirs without norms of queries and keys.

    They are no kernel that was timed: aisimulate adds an estimate of 26 us a layer to attention,
    the same for 1 sequence and for 128.
    """
    return spec.replace('"use_qk_norm": true', '"use_qk_norm": false')


def _hub_names(name: str) -> list[str]:
    """Return the names under which aisimulate knows a model, as it spells them."""
    import aisimulate_core

    folder = Path(aisimulate_core.__file__).parent / "model_configs"
    known = {
        path.name.removesuffix("_config.json").replace("--", "/"): path
        for path in folder.glob("*_config.json")
    }
    ours = set(names_of(name))
    return [each for each in known if each.lower() in ours] or [name]


def _measured(handle: Any, batch: StepBatch) -> tuple[float, float] | None:
    """Return the seconds of experts and of all other kernels; None: not measured."""
    try:
        if batch.chunks:
            ((new, _),) = batch.chunks
            found = handle.run_static_per_op(
                batch_size=1, osl=1, mode="static_ctx", isl=new, prefix=0
            )[0]
        else:
            found = handle.decode_step_per_op(batch.num_decodes, _context(batch), 2)
    except Exception:  # noqa: BLE001 - outside of what was measured
        return None
    kernels = [each for each in found if not any(end in each[0] for end in _LINKS)]
    if any(origin in _ESTIMATED for *_, origin in kernels):
        return None
    experts = sum(ms for name, ms, *_ in kernels if any(word in name for word in _EXPERTS))
    return experts / 1e3, sum(ms for _, ms, *_ in kernels) / 1e3 - experts / 1e3


def _computed(predictor: RooflinePredictor, batch: StepBatch) -> tuple[float, float]:
    """Return the same of the roofline, without launches."""
    found = [each for each in predictor.explain(batch) if each.bound not in ("links", "host")]
    experts = [each.seconds for each in found if each.name.startswith(_OURS)]
    return sum(experts), sum(each.seconds for each in found) - sum(experts)


# --- the scored model left out ----------------------------------------------------------------


def _without(data: Path, architecture: str, gpu: GpuSpec, family: str, name: str) -> GpuSpec:
    """Return a GPU whose figures of states were fitted without one model's kernels."""
    if family != "Gated DeltaNet":
        return gpu
    entries = _refitted(data, architecture, tuple(_hub_names(name)))
    kernels = {kind: replace(gpu.kernels[kind], **figures) for kind, figures in entries.items()}
    return replace(gpu, kernels={**gpu.kernels, **kernels})


@cache
def _refitted(
    data: Path, architecture: str, names: tuple[str, ...]
) -> Mapping[str, Mapping[str, float]]:
    found = {}
    for prefill, free in ((True, ("floor", "serial", "mfu", "mbu")), (False, ("floor", "mbu"))):
        rows = Tables(data, architecture).gdn(prefill)
        others = rows.only(~np.isin(rows.model, names))
        figures = fit_mixer(others, {"gdn": free}).figures["gdn"]
        known = Kernel.__dataclass_fields__
        kind = "gdn_prefill" if prefill else "gdn_decode"
        found[kind] = {key: value for key, value in figures.items() if key in known}
    return found


def main() -> None:
    """Compute all points, write them, and print the score of each family."""
    import aisimulate_core

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", type=Path, help="a file for the points (Parquet)")
    options = parser.parse_args()
    logging.disable(logging.INFO)
    found = pd.DataFrame(points(Path(aisimulate_core.__file__).parent / "systems" / "data"))
    if options.write:
        found.to_parquet(options.write)
    error = (found["computed"] / found["measured"] - 1).abs()
    for keys, part in found.groupby(["family", "step"], sort=False):
        of = error[part.index]
        print(*keys, len(of), f"{of.median():.1%} {of.quantile(0.9):.1%}")
    print("all", len(error), f"{error.median():.1%} {error.quantile(0.9):.1%}")


if __name__ == "__main__":
    main()
