"""Prints the tables of MIST's boxed insights and Fig. 8, and draws mist_gaps.png.

    python tools/pages/make_mist_insights.py [retrieval] [gaps] [copies] [operators] [reads]
    [placement]
        [escalation]

Each name is one experiment; without any it makes all, in some minutes on one core. `operators`
reads ../shared/measurements. Needs matplotlib: `pip install matplotlib`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).resolve().parents[2] / "docs"
sys.path.insert(0, str(DOCS.parent))

import pandas as pd  # noqa: E402

from benchmarks.mist_insights.copies import BANDWIDTHS, CONTEXT, TOKEN, copies  # noqa: E402
from benchmarks.mist_insights.gaps import DEPLOYMENTS, LONG, SHARES, gaps  # noqa: E402
from benchmarks.mist_insights.operators import against_runs, against_steps  # noqa: E402
from benchmarks.mist_insights.placement import OVERSUBSCRIPTIONS, PLACES, placement  # noqa: E402
from benchmarks.mist_insights.retrieval import PROBES, PROMPTS, SEARCHERS, retrieval  # noqa: E402
from mist_sim import StorageLevel  # noqa: E402
from mist_sim.clients.retrieval.levels import expected_time  # noqa: E402
from tools.pages.pictures import PICTURES, picture_folder  # noqa: E402

IMAGES = PICTURES
MEASUREMENTS = DOCS.parents[1] / "shared" / "measurements"
COLORS = ("#2a6f97", "#e07b39", "#5a8f3c", "#8a5a9e")


def make_retrieval() -> Iterator[str]:
    """Yield the table of P99s over probes."""
    yield "| prompts | probes | TTFT P50, P99 with 64 cores | with an H100 | P99, cores over H100 |"
    yield "|---|--:|--:|--:|--:|"
    for prompt in PROMPTS:
        for probes in PROBES:
            cores, gpu = (retrieval(w, probes, prompt, 8.0, 3000) for w in SEARCHERS)
            yield (
                f"| {prompt} | {probes:,} | {_ms(cores['p50'])}, {_ms(cores['p99'])} "
                f"| {_ms(gpu['p50'])}, {_ms(gpu['p99'])} | {cores['p99'] / gpu['p99']:.2f} |"
            )


def make_gaps() -> Iterator[str]:
    """Yield the table of P99s by long prompts and how many they are, and draw it."""
    yield f"| of the questions | have so many tokens | {' | '.join(DEPLOYMENTS)} |"
    yield "|--:|--:|" + "--:|" * len(DEPLOYMENTS)
    lines: dict[tuple[str, float], list[dict[str, float]]] = {}
    for share in SHARES:
        for tokens in LONG:
            row = {name: gaps(name, tokens, share, 3000) for name in DEPLOYMENTS}
            cells = [
                f"{_ms(found['beside'])}, {_ms(found['all'])}"
                + " (overloaded)" * (not found["stable"])
                for found in row.values()
            ]
            for name, found in row.items():
                lines.setdefault((name, share), []).append(found)
            yield f"| {100 * share:g} % | {tokens:,} | " + " | ".join(cells) + " |"
    figure, panels = _pyplot().subplots(1, 2, figsize=(8, 3.4), sharey=True, layout="constrained")
    for axes, share in zip(panels, SHARES, strict=True):
        for name, color in zip(DEPLOYMENTS, COLORS, strict=True):
            for key, style in (("beside", "-"), ("all", ":")):
                values = [1e3 * found[key] for found in lines[name, share]]
                label = name if style == "-" else None
                axes.plot(LONG, values, style, marker="o", ms=4, color=color, label=label)
        axes.set(xscale="log", yscale="log", title=f"{100 * share:g} % of the questions are long")
        axes.set(xlabel="their tokens", yticks=(10, 30, 100, 300), yticklabels=(10, 30, 100, 300))
        axes.set_xticks(LONG, [f"{n:,}" for n in LONG])
    panels[0].set_ylabel("P99 of gaps beside them, ms (dotted: of all)")
    _save(figure, panels, "mist_gaps")


def make_copies() -> Iterator[str]:
    """Yield the table of times until decode can begin, by the store's bandwidth."""
    yield (
        "| store, GB/s to a client | one after the other | at once | at once, one outlet "
        "| gain | gain, one outlet |"
    )
    yield "|--:|--:|--:|--:|--:|--:|"
    for bandwidth in BANDWIDTHS:
        rate = 0.25 * min(bandwidth / (CONTEXT * TOKEN), 2.0)
        found = [
            copies(bandwidth, at_once=at_once, shares_outlet=one, rate=rate, requests=400)["mean"]
            for at_once, one in ((False, False), (True, False), (True, True))
        ]
        gains = [f"{found[0] / value:.2f}" for value in found[1:]]
        cells = [*(_ms(value) for value in found), *gains]
        yield f"| {bandwidth / 1e9:g} | " + " | ".join(cells) + " |"


def make_operators() -> Iterator[str]:
    """Yield the errors of sums of operators and of whole steps (Fig. 8a)."""
    steps, runs = against_steps(MEASUREMENTS), against_runs(MEASUREMENTS)
    yield "| Llama-2-70B, four H100s | points | sum of operators | regression on whole steps |"
    yield "|---|--:|--:|--:|"
    for stage, name in (("prefill", "prompts"), ("decode", "decodes")):
        mine = steps[steps["stage"] == stage]
        yield (
            f"| {name}, vLLM of 2023, mean error (mean of absolute ones) | {len(mine)} "
            f"| {_error(mine['operators'])} | {_error(mine['whole'])}, held out |"
        )
    yield f"| TPOT of runs, vLLM 0.15.1 | {len(runs)} | {_error(runs['operators'])} | |"


def _error(errors: pd.Series) -> str:
    return f"{100 * errors.mean():+.1f} % ({100 * errors.abs().mean():.1f} %)".replace("-", "−")


# --- reads of a device (Fig. 8b) ----------------------------------------------------------------

DEVICES = {"DDR4": (150e9, 80e-9), "NVMe": (7e9, 50e-6)}  # section IV-B5
SIZES = [256 * 2**10 * 4**n for n in range(7)]  # 256 KiB to 1 GiB


def make_reads() -> Iterator[str]:
    """Yield the model's line of Fig. 8b."""
    yield "| read | " + " | ".join(DEVICES) + " |"
    yield "|--:|" + "--:|" * len(DEVICES)
    levels = {
        name: StorageLevel(name=name, read_bandwidth=bandwidth, latency=latency, hit_rate=1.0)
        for name, (bandwidth, latency) in DEVICES.items()
    }
    times = {name: [expected_time(size, [each]) for size in SIZES] for name, each in levels.items()}
    for number, size in enumerate(SIZES):
        cells = " | ".join(f"{1e6 * row[number]:,.1f} us" for row in times.values())
        yield f"| {size // 2**10:,} KiB | {cells} |"


# --- unlike kinds in one topology, models of two sizes -------------------------------------------


def make_placement() -> Iterator[str]:
    """Yield the table of hand-overs by the spine and the answers' place."""
    yield "| racks over the spine | " + " | ".join(f"answers {where}" for where in PLACES) + " |"
    yield "|--:|" + "--:|" * len(PLACES)
    found = {where: [placement(where, over) for over in OVERSUBSCRIPTIONS] for where in PLACES}
    for number, over in enumerate(OVERSUBSCRIPTIONS):
        row = [each[number] for each in found.values()]
        cells = [f"{1e3 * e['hand_over']:,.1f} ms, {e['p90_e2el']:.2f} s" for e in row]
        yield f"| {over} | " + " | ".join(cells) + " |"


def make_escalation() -> Iterator[str]:
    """Yield what the large model does by the share of answers that go on to it."""
    yield "| | E2E mean | P99 | visits of the large model | its GPU seconds a request |"
    yield "|---|--:|--:|--:|--:|"
    shares = (0.0, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 1.0)
    (first, alone), *others = _escalate().compared(shares)
    for name, found in [(first, alone), *others]:
        title = " ".join(name.replace("%", " %").split())
        yield (
            f"| {title} | {found['mean']:.1f} s | {found['p99']:.1f} s | {found['visits']:,} "
            f"| {found['gpu_seconds']:.2f} |"
        )


def _escalate() -> ModuleType:
    spec = spec_from_file_location("escalate", DOCS.parent / "examples" / "escalate.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- the page ---------------------------------------------------------------------------------


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f} ms" if seconds < 10 else f"{seconds:,.1f} s"


def _pyplot():
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def _save(figure, panels, name: str) -> None:
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.minorticks_off()
    panels[0].legend(frameon=False, fontsize=8)
    figure.savefig(IMAGES / f"{name}.png", dpi=110, metadata={"Software": None})


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "retrieval": make_retrieval,
    "gaps": make_gaps,
    "copies": make_copies,
    "operators": make_operators,
    "reads": make_reads,
    "placement": make_placement,
    "escalation": make_escalation,
}


def main() -> None:
    """Make the tables named on the command line, or all; print them."""
    for name in sys.argv[1:] or PARTS:
        lines = "\n".join(PARTS[name]())
        print(lines, flush=True)


if __name__ == "__main__":
    IMAGES = picture_folder(__doc__)
    main()
