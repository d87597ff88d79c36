"""Draws seesaw_model.png. Needs matplotlib: `pip install matplotlib`."""

from __future__ import annotations

from dataclasses import replace

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from mist_sim.hardware.resharding import Layout, decode_layer, prefill_layer
from mist_sim.models import load_model
from mist_sim.search.resharding import Lengths, PairOptions, rank_pairs
from tools.pages.pictures import PICTURES, picture_folder
from tools.seesaw_gpus import A10

IMAGES = PICTURES
LAYOUTS = [Layout(8), Layout(4, 2), Layout(2, 4), Layout(1, 8)]
COLORS = ["#2a6f97", "#e9c46a", "#89a8b2", "#c1121f"]
LARGE, MIDDLE = load_model("llama-2-70b"), load_model("codellama-34b")
ONE_COPY = PairOptions(data_parallel_sizes=(1,))


def parts(axes, title, timed) -> None:
    """Draw figure 3: what a pass of all micro-batches takes, by its parts."""
    bottoms = [0.0] * 4
    rows = []
    for each in LAYOUTS:
        t, n = timed(each.tensor), LARGE.num_layers
        micro = each.num_devices
        compute = (t.linear + t.attention) / micro
        rows.append(
            [t.weights / each.tensor, t.entries / micro, compute, t.network / each.pipeline]
        )
        rows[-1] = [1e3 * n * value for value in rows[-1]]
    names = ["weights", "KV entries", "compute", "all-reduce"]
    for name, color, values in zip(names, COLORS, zip(*rows, strict=True), strict=True):
        axes.bar([e.label for e in LAYOUTS], values, bottom=bottoms, color=color, label=name)
        bottoms = [low + value for low, value in zip(bottoms, values, strict=True)]
    axes.set(title=title, ylabel="ms, summed (eq. 2)")


def model_picture() -> None:
    """Draw figures 3, 13 and 14 by appendix A."""
    figure, axes = plt.subplots(2, 2, figsize=(9.2, 6.4), layout="constrained")
    parts(
        axes[0][0], "16 prompts of 2,000 tokens", lambda t: prefill_layer(LARGE, A10, 16, 2000, t)
    )
    parts(
        axes[0][1],
        "32 answers, 2,000 tokens of context",
        lambda t: decode_layer(LARGE, A10, 32, 2000, t),
    )
    axes[0][0].legend(frameon=False, fontsize=8)
    outputs = [1, 10, 50, 100, 200, 400, 600, 800, 1000, 2000]
    found = [rank_pairs(LARGE, A10, 8, Lengths(3000, n), ONE_COPY) for n in outputs]
    curves(axes[1][0], outputs, found, "tokens of an answer, after 3,000 of a prompt (70B)")
    shares = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50]
    devices = [replace(A10, link_bandwidth=share * A10.link_bandwidth) for share in shares]
    found = [rank_pairs(MIDDLE, each, 8, Lengths(6000, 200), ONE_COPY) for each in devices]
    curves(axes[1][1], shares, found, "bandwidth of all-reduces over that of PCIe (34B, arXiv)")
    axes[1][1].legend(frameon=False, fontsize=8)
    for each in axes.flat:
        each.spines[["top", "right"]].set_visible(False)
    figure.savefig(IMAGES / "seesaw_model.png", dpi=110, metadata={"Software": None})


def curves(axes, places, found, label) -> None:
    """Draw throughput over that of the best layout that stays."""
    for layout, color in zip(LAYOUTS, COLORS, strict=True):
        shares = []
        for each in found:
            mine = [p for p in each.pairs if p.is_static and p.decode_layout == layout]
            shares.append(each.best_static.total / mine[0].total)
        axes.plot(places, shares, color=color, marker=".", label=layout.label)
    axes.plot(places, [e.speedup for e in found], color="black", marker="o", label="re-sharding")
    axes.set(xscale="log", xlabel=label, ylabel="over the best that stays")


if __name__ == "__main__":
    IMAGES = picture_folder(__doc__)
    model_picture()
