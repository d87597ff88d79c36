"""Fit an architecture's figures for AMD's CDNA 3 to whole runs on MI300X: `python -m tools.cdna`.

No table of kernels has this card. The kernels are those of Hopper, with floors so many times as
long, and such a share of the bandwidth's and the peaks' shares. Two sources: static batches of 1
and 16 in vLLM of 2024 (Argonne; larger ones ran in waves), whose host time is fitted on its H100
rows; median gaps of SGLang 0.5 with DeepSeek-V3.1 on eight cards. Both weigh the same. Prompts
count in Argonne's rows alone: SGLang's TTFT has some 0.1 s of its own. --write makes
`architectures/cdna.toml`.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import least_squares

from mist_sim.core.batch import StepBatch
from mist_sim.hardware import Cluster, GpuSpec, load_gpu
from mist_sim.hardware.devices import Kernel
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.hardware.predictors.overhead import EngineOverhead
from mist_sim.models import load_model

Array = NDArray[np.float64]

SHARED = Path("../shared/measurements")
FILE = Path("mist_sim/hardware/architectures/cdna.toml")
MODELS = {
    "meta-llama/Llama-2-7b-hf": "llama-2-7b",
    "meta-llama/Meta-Llama-3-8B": "llama-3-8b",
    "mistralai/Mistral-7B-v0.1": "mistral-7b-v0.3",  # a larger vocabulary apart, alike
    "Qwen/Qwen2-7B": "qwen2.5-7b",
    "mistralai/Mixtral-8x7B-v0.1": "mixtral-8x7b",
    "meta-llama/Meta-Llama-3-70B": "llama-3-70b",
    "meta-llama/Llama-2-70b-hf": "llama-2-70b",
}
KINDS = (
    *("bf16", "fp8", "fp8_block", "int4"),
    *("experts_bf16", "experts_fp8", "experts_fp8_block", "experts_int4", "experts_mxfp4"),
    *("prefill_attention", "decode_attention", "prefill_attention_fp8", "decode_attention_fp8"),
    *("latent_prefill_attention", "latent_decode_attention", "vector"),
)
_CHUNK = 2048  # tokens of prompts together
_UNIFORM = 0.5  # of the printed length, in the mean, of SGLang's random lengths
_SIZES = ("floor", "mbu", "mfu")
_SOURCE = "rule: hopper's, fitted as a whole to runs on MI300X (Argonne's of vLLM, SGLang's)"


class Fit(NamedTuple):
    """Multiples of Hopper's figures: of floors, and of shares of bandwidth and peaks."""

    floor: float
    mbu: float
    mfu: float


def cdna(fit: Fit) -> GpuSpec:
    """Return the MI300X with such figures."""
    card, hopper = load_gpu("mi300x"), load_gpu("h100-sxm")
    kernels = {kind: replace(hopper.kernels[kind], **_changed(kind, fit)) for kind in KINDS}
    prefill, decode = (
        replace(phase, mfu=hopper.prefill.mfu * fit.mfu, mbu=hopper.prefill.mbu * fit.mbu)
        for phase in (card.prefill, card.decode)
    )
    return replace(card, kernels=kernels, prefill=prefill, decode=decode)


def _changed(kind: str, fit: Fit) -> dict[str, float]:
    figures = load_gpu("h100-sxm").kernels[kind]
    return {
        name: getattr(figures, name) * getattr(fit, name)
        for name in _SIZES
        if getattr(figures, name)
    }


@cache
def argonne(hardware: str) -> pd.DataFrame:
    """Return batches of 1 and 16 in vLLM: cards, model, tokens in and out, batch, seconds."""
    rows = pd.read_csv(SHARED / "argonne-inference-bench/All_results.csv")
    rows.columns = pd.Index(
        ["hardware", "ranks", "engine", "model", "tokens", "batch", "s", "rate"]
    )
    mine = rows["hardware"].eq(hardware) & rows["engine"].eq("vLLM") & rows["model"].isin(MODELS)
    rows = rows[mine].drop(columns=["hardware", "engine", "rate"])
    rows["s"] = pd.to_numeric(rows["s"], errors="coerce")
    rows = rows[rows["batch"].isin([1, 16]) & rows["s"].notna()]
    keys = ["ranks", "model", "tokens", "batch"]
    return pd.DataFrame(rows.groupby(keys)["s"].median().reset_index())


def batches(rows: pd.DataFrame, card: GpuSpec) -> Array:
    """Return for each row the seconds of kernels, the steps, and the tokens of all sequences."""
    found = []
    for row in rows.to_dict("records"):
        number, tokens = int(row["batch"]), int(row["tokens"])
        timed = _roofline(MODELS[str(row["model"])], card, int(row["ranks"]))
        together = min(number, max(1, _CHUNK // tokens))
        prompts = timed.step_time(StepBatch(((tokens, 0),) * together)) * number / together
        step = timed.step_time(StepBatch((), number, round(1.5 * number * tokens)))
        found.append((prompts + tokens * step, tokens, tokens * number))
    return np.array(found)


def host() -> Array:
    """Return seconds of the engine of 2024 a step, and a sequence, fitted on H100."""
    rows = argonne("Nvidia H100 GPU")
    kernels, *counts = batches(rows, load_gpu("h100-sxm")).T
    known = np.array(counts)

    def errors(times: Array) -> Array:
        return np.asarray(np.log((kernels + times @ known) / rows["s"].to_numpy()))

    start, scale = (2e-3, 5e-5), (1e-3, 1e-5)
    found = least_squares(errors, start, x_scale=scale, loss="soft_l1", f_scale=0.1)
    print(f"host on H100: {found.x[0]:.2e} s a step, {found.x[1]:.2e} s a sequence")
    _print("H100", errors(found.x))
    return np.asarray(found.x)


def argonne_errors(card: GpuSpec, times: Array) -> Array:
    """Return ln(computed / measured) of static batches."""
    rows = argonne("AMD MI300X GPU")
    kernels, *counts = batches(rows, card).T
    return np.asarray(np.log((kernels + times @ np.array(counts)) / rows["s"].to_numpy()))


def sglang_errors(card: GpuSpec) -> Array:
    """Return the same of median gaps: decodes alone, half way through a mean answer."""
    rows = pd.read_csv(SHARED / "mi300x-sglang/runs.csv")
    found = []
    own = EngineOverhead().around(_roofline("deepseek-v3", card, 8))
    for row in rows[rows["model"] == "DeepSeek-V3.1-Terminus"].to_dict("records"):
        words = str(row["bench"]).split()
        lengths = [
            int(words[words.index(f"--random-{end}-len") + 1]) for end in ("input", "output")
        ]
        context = _UNIFORM * (lengths[0] + lengths[1] / 2)
        number = round(float(str(row["Concurrency"])))
        step = own.step_time(StepBatch((), number, round(number * context)))
        found.append(step * 1e3 / float(str(row["Median ITL (ms)"])))
    return np.log(found)


def _roofline(model: str, card: GpuSpec, ranks: int) -> RooflinePredictor:
    return RooflinePredictor(load_model(model), Cluster(card, ranks))


def _print(name: str, errors: Array) -> None:
    off = np.expm1(errors)
    figures = np.median(np.abs(off)), np.quantile(np.abs(off), 0.9), np.median(off)
    print(
        f"{name}: {len(off)} rows, median {figures[0]:.1%}, nine in ten {figures[1]:.1%}, ", end=""
    )
    print(f"signed {figures[2]:+.1%}")


def fitted(times: Array, *, with_argonne: bool = True, with_sglang: bool = True) -> Fit:
    """Return the fit to both sources, or to one."""

    def errors(sizes: Array) -> Array:
        card = cdna(Fit(*sizes))
        found = []
        if with_argonne:
            found.append(argonne_errors(card, times))
        if with_sglang:
            found.append(sglang_errors(card))
        return np.concatenate([each / np.sqrt(len(each)) for each in found])

    bounds = (0.5, 0.1, 0.05), (6, 1.04, 1.0)
    found = least_squares(
        errors, (2.5, 0.7, 0.4), bounds=bounds, loss="soft_l1", f_scale=0.02, diff_step=[0.03] * 3
    )
    return Fit(*map(float, found.x))


def toml(fit: Fit) -> str:
    """Return the file of the architecture."""
    lines = [
        "# AMD CDNA 3, and CDNA 4 as far as nothing is known of it: made by python -m tools.cdna.",
        f"# Hopper's kernels with {fit.floor:.2f} times the floors, {fit.mbu:.2f} of the shares of",
        f"# bandwidth and {fit.mfu:.2f} of those of the peaks, fitted to whole runs on MI300X.",
    ]
    kernels = cdna(fit).kernels
    for kind in KINDS:
        lines += ["", f"[{kind}]"]
        figures = kernels[kind]
        for name in figures.__dataclass_fields__:
            value = getattr(figures, name)
            if value and value != getattr(Kernel(), name):
                seconds = name in ("floor", "serial", "per_input")
                lines.append(
                    f'{name} = "{value * 1e6:.3g} us"' if seconds else f"{name} = {value:.3g}"
                )
    lines += ["", "[sources]", *(f'{kind} = "{_SOURCE}"' for kind in KINDS)]
    return "\n".join([*lines, ""])


def main() -> None:
    """Print the fits, and each source by the fit to the other."""
    parser = argparse.ArgumentParser(description="Figures of CDNA 3, from whole runs on MI300X.")
    parser.add_argument("--write", action="store_true", help=f"write {FILE}")
    asked = parser.parse_args()
    times = host()
    both = fitted(times)
    by_source = {
        "the catalog's": load_gpu("mi300x"),
        "Hopper's": cdna(Fit(1, 1, 1)),
        "fit to Argonne": cdna(fitted(times, with_sglang=False)),
        "fit to SGLang": cdna(fitted(times, with_argonne=False)),
        f"fit to both, {both}": cdna(both),
    }
    for name, card in by_source.items():
        _print(f"{name}; Argonne", argonne_errors(card, times))
        _print(f"{name}; SGLang", sglang_errors(card))
    hopper = load_gpu("h100-sxm").prefill
    print(f"plain shares: mfu {hopper.mfu * both.mfu:.2f}, mbu {hopper.mbu * both.mbu:.2f}")
    if asked.write:
        FILE.write_text(toml(both), encoding="utf-8")


if __name__ == "__main__":
    main()
