"""Prints the roofline beside measured kernels, and draws docs/images/kernels_models.png.

    python tools/pages/make_kernels.py --grid grid.parquet

Takes minutes. Needs matplotlib and `plugins/silicon`, and the public measurements beside the
repository. `kernels_before.json` holds the score of the roofline as it was before kernels had
figures of their own (version 26541b5), on the same grid.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from benchmarks import kernel_grid, measured_itl
from benchmarks.kernel_grid import TERMS, score
from mist_sim.hardware import GpuSpec, load_gpu
from mist_sim.hardware.devices import kernel_of
from mist_sim.models import load_model
from tools.kernels.kernel_rows import KernelRows, joined
from tools.kernels.layer_tables import read_layers

HERE = Path(__file__).parent
IMAGES = HERE.parents[1] / "docs" / "images"
BEFORE = json.loads((HERE / "kernels_before.json").read_text("utf-8"))
MEASUREMENTS = Path("../shared/measurements")
_LAYERS = "layer-profiles/v0/{}/meta-llama/{}/tp{}/layers.csv.gz"
_LLAMA = "llama-3.1-8b"
# what each table of layers was measured on: card, and model where the table does not say it
TABLES: dict[str, tuple[str, str | None]] = {
    _LAYERS.format("A6000", "Llama-3.1-8B", 1): ("rtx-a6000", _LLAMA),
    _LAYERS.format("A6000", "Llama-3.1-8B", 2): ("rtx-a6000", _LLAMA),
    _LAYERS.format("RTX3090", "Llama-3.1-8B", 1): ("rtx-3090", _LLAMA),
    _LAYERS.format("H100", "Llama-3.1-8B", 1): ("h100-sxm", _LLAMA),
    _LAYERS.format("H100", "Llama-3.1-70B", 2): ("h100-sxm", "llama-3.1-70b"),
    "vllm-h100-llama3.1-70b-tp4-layers/layers.csv": ("h100-sxm", "llama-3.1-70b"),
    "vidur-operators/mlp_h100_Llama-2-70b-hf.csv.gz": ("h100-sxm", None),
    "vidur-operators/mlp_h100_Qwen-72B.csv.gz": ("h100-sxm", None),
    "vidur-operators/mlp_a100_Llama-2-70b-hf.csv.gz": ("a100-80gb-sxm", None),
    "vidur-operators/mlp_a100_Meta-Llama-3-8B.csv.gz": ("a100-80gb-sxm", None),
    "vidur-operators/mlp_a100_Qwen-72B.csv.gz": ("a100-80gb-sxm", None),
    "vllm-0.19-rtxpro6000-llama3.1-8b/profile/dense.csv": ("rtx-pro-6000", _LLAMA),
    "vllm-0.19-rtxpro6000-llama3.1-8b/profile/attention.csv": ("rtx-pro-6000", _LLAMA),
}


def percent(share: float) -> str:
    """Return a share in percent."""
    return f"{100 * share:.1f} %"


def table(titles: list[str], rows: list[list[str]]) -> list[str]:
    """Return a table in Markdown."""
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def score_rows(groups: Iterator[tuple[str, pd.Series]]) -> list[list[str]]:
    """Return rows with the errors of groups, before and now."""
    rows = []
    for name, ratio in groups:
        found = score(ratio)
        before = BEFORE["scores"].get(name)
        rows.append(
            [
                name,
                f"{found['points']:,.0f}",
                *(f"{value} %" for value in (before[1:] if before else ["", ""])),
                percent(found["median"]),
                percent(found["ninth"]),
                f"{found['ratio']:.2f}",
                percent(found["beyond"]),
            ]
        )
    return rows


_ERRORS = ["before: median", "nine in ten", "now: median", "nine in ten", "ratio", "beyond 1.5"]


def whole_steps(grid: pd.DataFrame, ratio: pd.Series) -> list[str]:
    """Return the errors of whole steps."""

    def groups() -> Iterator[tuple[str, pd.Series]]:
        yield "all", ratio
        for keys in (["step"], ["gpu"], ["model", "dtype"]):
            for name, part in grid.groupby(keys):
                yield " ".join(map(str, name)), ratio[part.index]

    return table(["", "points", *_ERRORS], score_rows(groups()))


def by_term(grid: pd.DataFrame, ours: pd.DataFrame) -> list[str]:
    """Return the errors of products, attention and experts, without DeepSeek-V3's fused ones."""
    plain = grid[grid["model"] != "deepseek-v3"]

    def groups() -> Iterator[tuple[str, pd.Series]]:
        for term in TERMS[:3]:
            for step, part in plain[plain[term] > 0].groupby("step"):
                yield f"{term} {step}", ours[term][part.index] / part[term]

    return table(["", "points", *_ERRORS], score_rows(groups()))


def beyond(grid: pd.DataFrame, ratio: pd.Series) -> list[str]:
    """Return the points that are off by more than a factor of 1.5, by cause and kind of step."""
    off = grid.assign(ratio=ratio)[(ratio > 1.5) | (ratio < 1 / 1.5)]
    parts = []
    for key, part in off.groupby(KEYS):
        gpu, model, dtype, step = map(str, key)
        of = int(grid[KEYS].eq(list(key)).all(axis=1).sum())
        parts.append(part.assign(of=of, cause=cause(gpu, model, dtype, step, part)))
    rows = []
    for (why, step), part in pd.concat(parts).groupby(["cause", "step"], sort=False):
        of = int(part.groupby(KEYS)["of"].first().sum())
        models = part["model"] + " " + part["dtype"]
        rows.append(
            [
                str(why),
                {"decode": "decodes", "prompt": "prompts"}[str(step)],
                listed(part["gpu"]),
                listed(models),
                f"{len(part)} of {of}",
                f"{part['ratio'].median():.2f}",
            ]
        )
    return table(["cause", "steps", "GPUs", "models", "points", "ratio"], rows)


def listed(words: pd.Series) -> str:
    """Return the different words of a column."""
    return ", ".join(sorted(map(str, words.unique())))


KEYS = ["gpu", "model", "dtype", "step"]
_CAUSES = {
    "host": "FP8 products of blocks were timed with the host: 60 to 300 us whatever their size",
    "row": "FP8 products of a single row take 24 us on Blackwell, of two rows 9",
    "cache": "measured with keys or experts in the chip's cache of 96 or 128 MB",
    "slice": "slices of experts that the usual kernel does not take",
    "wide": "the kernel is slower for experts as wide as Mixtral's",
    "float": "the attention of the benchmark has a rotary embedding and norms in it",
    "form": "the kernel of A100 reaches half as much again with large experts",
    "tile": "not known",
    "skew": "the benchmark's uneven routing reaches fewer experts than chance would",
}


def cause(gpu: str, model: str, dtype: str, step: str, part: pd.DataFrame) -> str:
    """Return why points of a group are off, as the terms that are off show it."""
    if model == "deepseek-v3":
        return _CAUSES["host"]
    if gpu in ("l40s", "rtx-pro-6000"):
        return _CAUSES["cache"]
    if model == "gpt-oss-120b" and step == "decode":
        return _CAUSES["skew"]
    if gpu == "a100-80gb-sxm":
        return _CAUSES["form"]
    if dtype == "fp8" and step == "decode" and part["number"].max() == 1:
        return _CAUSES["row"]
    if model == "mixtral-8x7b":
        return _CAUSES["wide"]
    if model.startswith("qwen3-") and "b-a" in model and part["ranks"].min() >= 4:
        return _CAUSES["slice"]
    return _CAUSES["float" if step == "prompt" and part["length"].max() <= 512 else "tile"]


# --- operators of layer profiles ------------------------------------------------------------------


def by_operator() -> list[str]:
    """Return the catalog's figures beside operators of other profiles."""
    rows = []
    for path, (card, name) in TABLES.items():
        gpu = load_gpu(card)
        read = read_layers(MEASUREMENTS / path, gpu, load_model(name) if name else None)
        for kind in dict.fromkeys(part.kind for part in read):
            found = score(errors(gpu, joined([part for part in read if part.kind == kind])))
            rows.append(
                [
                    path.replace("/meta-llama", "").removesuffix(".gz"),
                    card,
                    kind,
                    f"{found['points']:,.0f}",
                    percent(found["median"]),
                    percent(found["ninth"]),
                    f"{found['ratio']:.2f}",
                ]
            )
    titles = ["table", "GPU", "kernels", "rows", "median error", "nine in ten", "ratio"]
    return table(titles, rows)


def errors(gpu: GpuSpec, rows: KernelRows) -> pd.Series:
    """Return computed over measured seconds of each row."""
    kernel = kernel_of(gpu.kernels, rows.kind)
    figures = {
        "mfu": kernel.mfu or gpu.prefill.mfu,
        "mbu": kernel.mbu or gpu.prefill.mbu,
        "floor": kernel.floor,
        "serial": kernel.serial,
        "per_input": kernel.per_input,
        "padding": kernel.padding,
        "per_pair": kernel.per_pair,
    }
    return pd.Series(rows.times(figures) / rows.seconds)


def inter_token() -> list[str]:
    """Return the errors of ML.ENERGY's runs, those that the host bounds apart."""
    runs = measured_itl.compared(MEASUREMENTS / "ml-energy-vllm-0.11/mlenergy_calibration.csv")
    ratio = runs["computed"] / runs["measured"]
    kind = runs["experts"].map({True: "experts", False: "dense"})
    name = runs["gpu"] + ", " + kind + ", " + runs["format"]
    rows = []
    for bound in (False, True):
        part = runs[runs["host_bound"] == bound]
        label = "bound by the host: all" if bound else "all others"
        groups = [(label, ratio[part.index])]
        groups += [] if bound else [(key, ratio[rows.index]) for key, rows in part.groupby(name)]
        for key, each in groups:
            found = score(each)
            rows.append(
                [
                    str(key),
                    f"{found['points']:.0f}",
                    percent(found["median"]),
                    percent(found["ninth"]),
                    f"{found['ratio']:.2f}",
                ]
            )
    return table(["runs", "number", "median error", "nine in ten", "ratio"], rows)


# --- pictures -------------------------------------------------------------------------------------


def draw(grid: pd.DataFrame, ratio: pd.Series) -> None:
    """Draw the median errors by GPU and model, before and now."""
    points = grid.assign(error=(ratio - 1).abs() * 100, ratio=ratio)
    points["name"] = points["model"] + " " + points["dtype"]
    now = points.pivot_table(index="name", columns="gpu", values="error", aggfunc="median")
    cells = {tuple(key.split("|")): value for key, value in BEFORE["cells"].items()}
    before = now.copy()
    for name in now.index:
        model, dtype = name.rsplit(" ", 1)
        before.loc[name] = [cells.get((gpu, model, dtype), float("nan")) for gpu in now.columns]
    figure, axes = plt.subplots(1, 2, figsize=(11, 5), sharey=True, layout="constrained")
    for axis, values, title in zip(axes, (before, now), ("before", "now"), strict=True):
        heat(axis, values, title, "RdYlGn_r", 0, 60, "{:.0f}")
    figure.suptitle("median |error| of whole steps without collectives, %")
    save(figure, "kernels_models.png")


def heat(
    axis: Any, values: pd.DataFrame, title: str, colours: str, low: float, high: float, form: str
) -> None:
    """Draw a table of numbers with colours."""
    axis.imshow(values.to_numpy(), cmap=colours, vmin=low, vmax=high, aspect="auto")
    axis.set_title(title)
    axis.set_xticks(range(values.shape[1]), list(map(str, values.columns)), rotation=45, ha="right")
    axis.set_yticks(range(values.shape[0]), list(map(str, values.index)))
    for (y, x), value in pd.DataFrame(values.to_numpy()).stack().items():
        axis.text(x, y, form.format(value), ha="center", va="center", fontsize=7)


def save(figure: Figure, name: str) -> None:
    """Write a picture."""
    figure.savefig(IMAGES / name, dpi=80)
    plt.close(figure)


def main() -> None:
    """Write everything between the marks of the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grid", type=Path, help="where the measured grid is kept (.parquet)")
    grid = kernel_grid.grid_of(parser.parse_args().grid)
    ours = kernel_grid.simulated(grid, kernel_grid.left_out)
    ratio = kernel_grid.ratios(grid, ours)
    draw(grid, ratio)
    parts = [
        "## Whole steps",
        "",
        *whole_steps(grid, ratio),
        "## By term",
        "",
        *by_term(grid, ours),
        "## Points off by more than a factor of 1.5",
        "",
        *beyond(grid, ratio),
        "## Operators of other profiles",
        "",
        *by_operator(),
        "## Inter-token latencies of whole runs",
        "",
        *inter_token(),
    ]
    print("\n".join(parts))


if __name__ == "__main__":
    main()
