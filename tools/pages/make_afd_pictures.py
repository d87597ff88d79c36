"""Draws the pictures of docs/background/afd.md from simulated bundles.

    python tools/pages/make_afd_pictures.py

Needs matplotlib, which the project itself does not use: `pip install matplotlib`. Takes a minute
or two on one core.
"""

from __future__ import annotations

import time

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from mist_sim.clients.afd import BundleConfig
from mist_sim.hardware.afd import PRESETS
from mist_sim.rng import Streams
from mist_sim.search import (
    BundleRun,
    BundleSpec,
    geometric_slot_load,
    predict,
    provision,
    simulate_bundle,
)
from tools.pages.pictures import PICTURES, picture_folder

IMAGES = PICTURES
C = PRESETS["deepseek-v3-ascend-910c"]
GRID = (1, 2, 4, 8, 16, 24, 32)
FINE = range(1, 33)
COLOURS = ("#2a6f97", "#e07b39", "#5a8f3c")
NUM_REQUESTS = 10_000  # a worker, as in the paper
SHORT = "10,000 requests in all, fresh"


def spec(slots: int = 256, prefill: float = 100, decode: float = 500, batches: int = 2):
    """Return the bundle of the pictures, with these slots, mean lengths and batches."""
    load = geometric_slot_load(prefill, prefill * (prefill - 1), decode)
    return BundleSpec(C, load, slots, batches)


def simulated(
    ratio: int,
    num_requests: int,
    *,
    slots: int = 256,
    prefill: float = 100,
    decode: float = 500,
    batches: int = 2,
    start: str = "stationary",
) -> BundleRun:
    """Return a simulated run of a bundle, with so many requests per attention worker."""
    rng = Streams(1).generator(f"{ratio} {slots} {prefill} {decode} {batches} {start}")
    config = BundleConfig(coefficients=C, attention_workers=ratio, slots=slots, batches=batches)
    n = max(num_requests * ratio, 2 * config.num_slots)
    lengths = rng.geometric(1 / prefill, n), rng.geometric(1 / decode, n)
    return simulate_bundle(config, *lengths, rng, start=start)


def ratios(runs: dict[str, dict[int, BundleRun]]) -> None:
    """Figure 3: throughput, TPOT and idle shares by ratio."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10.5, 3.1))
    theory = [predict(spec(), ratio) for ratio in FINE]
    mean_field = [p.slots * p.ratio / (p.ratio + 1) / p.cycle_mean_field for p in theory]
    left.plot(FINE, mean_field, ":", color="grey", label="mean field")
    left.plot(FINE, [p.throughput_gaussian for p in theory], "--", color="grey", label="Gaussian")
    left.plot(FINE, [p.throughput for p in theory], "-", color="grey", lw=1, label="2 in flight")
    for (name, found), colour in zip(runs.items(), COLOURS, strict=True):
        key = "throughput_80" if "fresh" in name else "throughput"
        values = [getattr(run, key) for run in found.values()]
        left.plot(list(found), values, "o", ms=4, color=colour, label=name)
    left.axvline(provision(spec()).mean_field.ratio, color="grey", lw=0.5)
    printed(left, 9.3, "black", "printed: best ratio")
    left.set(title="tokens a cycle and worker", ylim=(0, 0.8))
    two = runs["2 batches"]
    middle.plot(FINE, [p.tpot for p in theory], color="grey", lw=1)
    middle.plot(list(two), [run.tpot for run in two.values()], "o", ms=4, color=COLOURS[0])
    short = {ratio: too_short(ratio).tpot for ratio in (1, 2, 3, 4, 6, 8)}
    middle.plot(list(short), list(short.values()), "s", ms=3, color=COLOURS[1], label=SHORT)
    middle.set(title="TPOT, cycles", ylim=(0, 1700))
    for key, colour, name in (
        ("attention_idle", COLOURS[0], "attention"),
        ("ffn_idle", COLOURS[1], "FFN"),
    ):
        right.plot(FINE, [getattr(p, key) for p in theory], color=colour, lw=1)
        values = [getattr(run, key) for run in two.values()]
        right.plot(list(two), values, "o", ms=4, color=colour, label=name)
    right.plot([1], [0.6], "^", ms=5, color="black", mfc="none", label="printed: FFN at 1")
    right.set(title="idle share", ylim=(-0.02, 0.7))
    save(figure, (left, middle, right), "afd_ratios")


def printed(axes: Axes, ratio: float, colour: str, name: str | None) -> None:
    """Mark a ratio that the paper prints on the axis."""
    axes.plot([ratio], [0.02], "^", ms=6, color=colour, mfc="none", label=name)


def too_short(ratio: int) -> BundleRun:
    """Serve as many requests in all at every ratio, from a fresh start: figure 3's dip of TPOT."""
    rng = Streams(1).generator(f"short {ratio}")
    lengths = rng.geometric(1 / 100, NUM_REQUESTS), rng.geometric(1 / 500, NUM_REQUESTS)
    config = BundleConfig(coefficients=C, attention_workers=ratio, slots=256)
    return simulate_bundle(config, *lengths, rng, start="fresh")


def save(figure: plt.Figure, panels: tuple[Axes, ...], name: str) -> None:
    """Tidy the panels and write the figure as a PNG."""
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.title.set_fontsize(9)
        axes.tick_params(labelsize=8)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=7, frameon=False)
    figure.tight_layout()
    figure.savefig(IMAGES / f"{name}.png", dpi=90)
    plt.close(figure)


def main() -> None:
    """Simulate the sweep, print its rows and draw the picture."""
    begun = time.process_time()
    two = {ratio: simulated(ratio, NUM_REQUESTS) for ratio in GRID}
    print(f"the paper's sweep: {time.process_time() - begun:.0f} s of CPU time")
    more = {10: simulated(10, NUM_REQUESTS), 12: simulated(12, NUM_REQUESTS)}
    ratios(
        {
            "2 batches": dict(sorted((two | more).items())),
            "3 batches": {r: simulated(r, 3000, batches=3) for r in (4, 8, 10, 12, 16)},
            "fresh start, 80 %": {
                r: simulated(r, NUM_REQUESTS, start="fresh") for r in (1, 4, 8, 16)
            },
        }
    )
    for ratio, run in two.items():
        print(
            f"| {ratio} | {run.throughput:.4f} | {run.throughput_80:.4f} | {run.tpot:.0f} "
            f"| {run.attention_idle:.3f} | {run.ffn_idle:.3f} | {run.halves[0]:.4f} "
            f"| {run.halves[1]:.4f} |"
        )


if __name__ == "__main__":
    IMAGES = picture_folder(__doc__)
    main()
