"""Draws the pictures of docs/background/seesaw.md.

    python docs/make_seesaw_pictures.py [FOLDER]

FOLDER has the lengths of two data sets, as for `make_seesaw.py`; without it, the picture that
needs them stays as it is. Needs matplotlib, which the project itself does not use:
`pip install matplotlib`.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from make_seesaw import breakdown, lengths, policies, resharded, table_1

from mist_sim.hardware.resharding import Layout, decode_layer, prefill_layer
from mist_sim.models import load_model
from mist_sim.rng import Streams
from mist_sim.search.resharding import Lengths, PairOptions, rank_pairs
from tools.seesaw_gpus import A10

IMAGES = Path(__file__).parent / "images"
GIB = 2**30
LAYOUTS = [Layout(8), Layout(4, 2), Layout(2, 4), Layout(1, 8)]
COLORS = ["#2a6f97", "#e9c46a", "#89a8b2", "#c1121f"]
BREAKDOWN = ["#c1121f", "#e9c46a", "#2a6f97", "black", "#d9d9d9"]  # by kind of step
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


def run_picture() -> None:
    """Draw figures 6 and 8 from a simulated run: 34B on 8 A10, a small buffer."""
    outputs = Streams(3).generator("outputs").integers(100, 300, 300).tolist()
    work = [3000] * 300, outputs
    result = resharded(
        table_1("A10"), "codellama-34b", Layout(1, 8), Layout(4, 2), work, host_memory=4.0 * GIB
    )
    figure, (above, below) = plt.subplots(
        2, figsize=(9.2, 4.4), sharex=True, layout="constrained", height_ratios=[3, 2]
    )
    steps, moves = result.steps, result.transfers
    changes = result.summary["layouts"]
    lanes = {
        "prefill": steps[steps["num_chunks"] > 0][["start", "end"]].to_numpy(),
        "re-shard": [(each["start"], each["ready"]) for each in changes],
        "decode": steps[steps["num_decodes"] > 0][["start", "end"]].to_numpy(),
        "swap out": moves[moves["kind"] == "swap_out"][["start", "end"]].to_numpy(),
        "swap in": moves[moves["kind"] == "swap_in"][["start", "end"]].to_numpy(),
    }
    colors = ["#c1121f", "black", "#2a6f97", "#e9c46a", "#89a8b2"]
    for row, spans in enumerate(lanes.values()):
        bars = [(start, max(end - start, 0.15)) for start, end in spans]
        above.broken_barh(bars, (len(lanes) - row - 0.8, 0.6), color=colors[row], lw=0)
    above.set(yticks=[len(lanes) - n - 0.5 for n in range(len(lanes))], yticklabels=list(lanes))
    events = [
        (row["start"], row["num_bytes"])
        for row in moves.to_dict("records")
        if row["kind"] == "swap_out"
    ]
    events += [
        (row["end"], -row["num_bytes"])
        for row in moves.to_dict("records")
        if row["kind"] == "swap_in"
    ]
    times, level, levels = [], 0.0, []
    for time, change in sorted(events):
        level += change / GIB
        times.append(time)
        levels.append(level)
    below.fill_between(times, levels, step="post", color="#89a8b2", lw=0)
    below.axhline(32, color="black", lw=0.8, ls=":")
    below.set(ylabel="buffer, GiB", xlabel="simulated time, s")
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(IMAGES / "seesaw_run.png", dpi=110, metadata={"Software": None})


def policies_picture() -> None:
    """Draw figure 2: what four policies cost and reach."""
    rows = list(islice(policies(), 4))
    names = [row[0].get("policy", "transition_minimising").replace("_", "\n") for row in rows]
    figure, axes = plt.subplots(1, 3, figsize=(9.2, 2.6), layout="constrained")
    titles = ("transitions", "answers a decode step", "requests/s")
    for number, (each, title) in enumerate(zip(axes, titles, strict=True), start=1):
        bars = each.bar(names, [row[number] for row in rows], color="#2a6f97")
        each.bar_label(bars, fontsize=8)
        each.set(ylabel=title)
        each.tick_params(axis="x", labelsize=7)
        each.spines[["top", "right"]].set_visible(False)
    axes[0].set_yscale("log")
    figure.savefig(IMAGES / "seesaw_policies.png", dpi=110, metadata={"Software": None})


def workload_picture(folder: Path) -> None:
    """Draw figures 9 and 12: lengths of the two data sets, and a run's seconds by kind of step."""
    figure, axes = plt.subplots(1, 3, figsize=(9.2, 3.0), layout="constrained")
    for each, kind, most in zip(axes, ("sharegpt", "arxiv"), (1200, 10000), strict=False):
        prompts, outputs = lengths(folder, kind, "34B")
        bins = [most * n / 50 for n in range(51)]
        for values, name, color in ((prompts, "prompts", COLORS[3]), (outputs, "answers", "black")):
            shares = [1 / len(values)] * len(values)
            each.hist(values, bins, weights=shares, color=color, histtype="step", label=name)
        each.set(xlabel=f"tokens, {kind}", ylabel="share of the requests", yscale="log")
    axes[0].legend(frameon=False, fontsize=8)
    found = breakdown(folder)
    low = [0.0] * len(found)
    names = [label.replace(" ->", "\n->").replace(", ", "\n") for label in found]
    for kind, color in zip(next(iter(found.values())), BREAKDOWN, strict=True):
        values = [seconds[kind] for seconds in found.values()]
        axes[2].bar(names, values, bottom=low, color=color, label=kind)
        low = [below + value for below, value in zip(low, values, strict=True)]
    axes[2].set(ylabel="simulated time, s")
    axes[2].tick_params(axis="x", labelsize=7)
    axes[2].legend(frameon=False, fontsize=8)
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
    figure.savefig(IMAGES / "seesaw_workload.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    model_picture()
    run_picture()
    policies_picture()
    if len(sys.argv) > 1:
        workload_picture(Path(sys.argv[1]))
