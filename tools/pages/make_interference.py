"""Prints tables of interference, and draws interference_planes.png.

Runs the presets taichi-aggregation and taichi-disaggregation with other chunks, ratios and rates;
two minutes on two cores. Needs matplotlib, which the project itself does not use.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import Any, NamedTuple

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mist_sim import (
    Cluster,
    EngineOverhead,
    InterferenceLaw,
    RooflinePredictor,
    Scenario,
    StepBatch,
    load_gpu,
    load_model,
    simulate,
)
from tools.pages.pictures import PICTURES, picture_folder

IMAGES = PICTURES

RATE, RATES = 14, (8, 10, 12, 14)  # requests a second
LINE_RATE = 11.75  # with the paper's line, whose prompts take longer
LINE = {"type": "linear", "step": "44 ms", "prefill_token": "0.2045 ms"}
LIMITS = ((16.0, 0.060), (5.0, 0.250), (6.0, 0.100))  # TTFT, TPOT of the paper's table 2, seconds
HYBRID = (3072, 192)  # tokens a step of P-heavy and D-heavy clients
PAPER = {"together": (7, 97, 16), "apart": (98, 42, 50)}
CHUNKS = (128, 256, 512, 1024, 2048)
RATIOS = ((4, 4), (5, 3), (6, 2), (7, 1))
BATCH, PROMPT = 16, 3000  # decodes beside the prompts, and their length, in figures 3 and 8
TOGETHER, APART, MIXED = "#2a6f97", "#e07b39", "#5a8f4e"
SHADES = ("#cfe3ef", "#8fbcd4", "#4f8fb5", "#1b4f72", "#0b2536")
WARM = ("#f6d5b8", "#eaa671", "#d9752e", "#8c3f0c")


class Case(NamedTuple):
    """One run: together, or apart with so many clients for prompts.

    chunk: tokens a step of clients that do both. prefill: clients for prompts of the eight; 0:
    together. line: with the paper's line in place of the roofline. hybrid: with TaiChi's policies,
    for the last of the limits.
    """

    rate: float = RATE
    chunk: int = 1024
    prefill: int = 0
    line: bool = False
    hybrid: bool = False


def simulated(case: Case) -> pd.DataFrame:
    """Return the requests of a run, with where their TTFT went, in seconds."""
    changes: dict[str, Any] = {"workload.arrivals.rate": f"{case.rate} /s"}
    if case.line:
        changes["clients.0.predictor"] = LINE
    if not case.prefill:
        changes["clients.0.scheduler.max_num_batched_tokens"] = case.chunk
        result = simulate(Scenario.load("taichi-aggregation", overrides=changes))
        return result.requests.assign(
            prefill_queue=result.requests["queued"],
            prefill=result.requests["ttft"] - result.requests["queued"],
            transfer=0.0,
            decode_queue=0.0,
        )
    changes |= {"clients.0.count": case.prefill, "clients.1.count": 8 - case.prefill}
    if case.line:
        changes["clients.1.predictor"] = LINE
    changes["hand_over"] = {"first_token": "decode"}  # as the paper counts TTFT
    if case.hybrid:
        changes |= hybrid()
    result = simulate(Scenario.load("taichi-disaggregation", overrides=changes))
    if case.hybrid:
        return result.requests
    requests = result.requests.set_index("request_id")
    prompts = result.stages.query("stage == 'prefill'").set_index("request_id")
    moves = result.transfers.set_index("request_id")
    requests["prefill_queue"] = prompts["started_at"] - prompts["queued_at"]
    requests["transfer"] = moves["end"] - moves["start"]
    requests["decode_queue"] = moves["start"] - prompts["finished_at"]
    rest = requests[["prefill_queue", "transfer", "decode_queue"]].sum(axis=1)
    requests["prefill"] = requests["ttft"] - rest
    return requests.reset_index()


def hybrid() -> dict[str, Any]:
    """Return what TaiChi's clients have in place of those that stand apart."""
    ttft, tpot = LIMITS[2]
    policy = {"type": "flowing", "tpot": f"{tpot} s"}
    changes: dict[str, Any] = {
        "hand_over": {"first_token": "decode", "policy": policy},
        "router": {"type": "length_aware", "ttft": f"{ttft} s"},
    }
    for client, (role, chunk) in enumerate(zip(("p_heavy", "d_heavy"), HYBRID, strict=True)):
        changes[f"clients.{client}.role"] = role
        scheduler = {"type": "chunked", "max_num_batched_tokens": chunk}
        changes[f"clients.{client}.scheduler"] = scheduler
    return changes


def every_case() -> list[Case]:
    """Return all runs that the page needs."""
    cases = [Case(rate=rate, prefill=prefill) for rate in RATES for prefill in (0, 6)]
    cases += [Case(chunk=chunk) for chunk in CHUNKS]
    cases += [Case(prefill=prefill) for prefill, _ in RATIOS]
    cases += [Case(rate=LINE_RATE, line=True), Case(rate=LINE_RATE, line=True, prefill=6)]
    cases.append(Case(prefill=6, hybrid=True))
    return list(dict.fromkeys(cases))


# --- single steps -------------------------------------------------------------------------------


@cache
def roofline() -> RooflinePredictor:
    """Return what times the kernels of one client: Llama-2-70B on four A100s."""
    cluster = Cluster(load_gpu("a100-80gb-sxm"), tensor_parallel_size=4)
    return RooflinePredictor(load_model("llama-2-70b"), cluster)


def batch(num_prefill: int, context: int) -> StepBatch:
    """Return a step with so many tokens of a prompt beside the decodes of figures 3 and 8."""
    chunks = ((num_prefill, context),) if num_prefill else ()
    return StepBatch(chunks=chunks, num_decodes=BATCH, context_sum=BATCH * PROMPT)


def capacity(chunk: int) -> float:
    """Return the prompt tokens a second of a client that fills up its steps with prompts.

    chunk: tokens a step; 0: a client for prompts, which computes one whole at a time.
    """
    timed = EngineOverhead().around(roofline())
    if not chunk:
        return PROMPT / timed.step_time(StepBatch(chunks=((PROMPT, 0),)))
    each = chunk - BATCH
    starts = range(0, PROMPT, each)
    seconds = sum(timed.step_time(batch(min(each, PROMPT - start), start)) for start in starts)
    return PROMPT / seconds


def capacities() -> dict[str, float]:
    """Return the prompt tokens a second of eight clients, by configuration (figure 8)."""
    apart = {f"P{p}D{d}": p * capacity(0) for p, d in RATIOS}
    return apart | {f"CP{chunk}": 8 * capacity(chunk) for chunk in (512, 1024, 2048)}


# --- pictures -----------------------------------------------------------------------------------

Runs = dict[Case, pd.DataFrame]


def save(figure: Figure, name: str) -> None:
    """Write a picture of the documentation."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.title.set_fontsize(10)
    figure.savefig(IMAGES / name, dpi=110, metadata={"Software": None})


def scatter(axes: Axes, runs: dict[str, pd.DataFrame], colors: tuple[str, ...]) -> None:
    """Draw every third request over TTFT and TPOT, and the three pairs of limits."""
    for (label, requests), color in zip(runs.items(), colors, strict=True):
        dots = {"s": 4, "lw": 0, "color": color, "label": label, "rasterized": True}
        shown = requests.iloc[::3]  # more make the file large, and no difference
        axes.scatter(shown["ttft"], 1e3 * shown["tpot"], **dots)
    for (ttft, tpot), style in zip(LIMITS, ("-.", "--", "-"), strict=True):
        axes.plot([0.05, ttft, ttft], [1e3 * tpot, 1e3 * tpot, 20], style, color="#444444", lw=0.8)
    axes.set(xscale="log", yscale="log", xlim=(0.05, 200), ylim=(20, 1000))
    axes.set(xlabel="TTFT, s", ylabel="TPOT, ms")
    axes.set_yticks([20, 50, 100, 200, 500], labels=["20", "50", "100", "200", "500"])
    axes.set_xticks([0.1, 1, 10, 100], labels=["0.1", "1", "10", "100"])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8, markerscale=4, loc="upper left", ncols=2)


def attainment(axes: Axes, runs: dict[str, pd.DataFrame]) -> None:
    """Draw the share of the requests that keep each pair of limits."""
    for place, (requests, color) in enumerate(
        zip(runs.values(), (TOGETHER, APART, MIXED), strict=True)
    ):
        shares = [float(text.removesuffix(" %")) for text in attained(requests)]
        bars = axes.bar(np.arange(3) + 0.27 * (place - 1), shares, 0.25, color=color)
        axes.bar_label(bars, fmt="%.0f", fontsize=8)
    labels = [f"{ttft:g} s, {1e3 * tpot:g} ms" for ttft, tpot in LIMITS]
    axes.set(xticks=range(3), xticklabels=labels, ylabel="requests, %", ylim=(0, 108))


def draw_planes(runs: Runs) -> None:
    """Draw figures 1, 2, 5 and 6: who is where on the plane of TTFT and TPOT."""
    figure, rows = plt.subplots(3, 2, figsize=(8.4, 10), layout="constrained")
    by_rate = {f"{rate} /s": Case(rate=rate) for rate in RATES}
    scatter(rows[0, 0], {k: runs[case] for k, case in by_rate.items()}, SHADES[:4])
    by_rate = {k: case._replace(prefill=6) for k, case in by_rate.items()}
    scatter(rows[0, 1], {k: runs[case] for k, case in by_rate.items()}, WARM)
    scatter(rows[1, 0], {f"CP{chunk}": runs[Case(chunk=chunk)] for chunk in CHUNKS}, SHADES)
    scatter(rows[1, 1], {f"P{p}D{d}": runs[Case(prefill=p)] for p, d in RATIOS}, WARM)
    every = {"together": Case(), "apart": Case(prefill=6), "hybrid": Case(prefill=6, hybrid=True)}
    scatter(rows[2, 0], {k: runs[case] for k, case in every.items()}, (TOGETHER, APART, MIXED))
    attainment(rows[2, 1], {k: runs[case] for k, case in every.items()})
    above = ("Together, 1,024 tokens a step", "Apart, P6D2")
    middle = (f"Together, {RATE} /s", f"Apart, {RATE} /s")
    titles = (*above, *middle, f"All three, {RATE} /s", "Who keeps which limits")
    for axes, title in zip(rows.flat, titles, strict=True):
        axes.set_title(title, loc="left")
    save(figure, "interference_planes.png")


# --- tables -------------------------------------------------------------------------------------


def attained(requests: pd.DataFrame) -> Iterator[str]:
    """Yield how many requests keep each pair of limits, in percent."""
    for ttft, tpot in LIMITS:
        kept = (requests["ttft"] <= ttft) & ~(requests["tpot"] > tpot)
        yield f"{100 * kept.mean():.0f} %"


def table_2(runs: Runs) -> Iterator[str]:
    """Yield who attains what."""
    yield "| | rate | 16 s, 60 ms | 5 s, 250 ms | 6 s, 100 ms |"
    yield "|---|---|---|---|---|"
    for way, prefill in (("together", 0), ("apart", 6)):
        yield f"| the paper, {way} | 12 /s | " + " | ".join(f"{x} %" for x in PAPER[way]) + " |"
        for name, line, rate in (("its line", True, LINE_RATE), ("roofline", False, RATE)):
            requests = runs[Case(rate=rate, line=line, prefill=prefill)]
            yield f"| {name}, {way} | {rate:g} /s | " + " | ".join(attained(requests)) + " |"


def laws(runs: Runs) -> Iterator[str]:
    """Yield the line of TPOT in interference intensity, by rate."""
    yield "| | R² | ms a prompt token | ms without prompts | intensity at 100 ms |"
    yield "|---|---|---|---|---|"
    yield "| the paper, 12 /s | 0.99 | 0.2 | 44 | 273.77 |"
    cases = {f"roofline, {rate} /s": Case(rate=rate) for rate in RATES}
    cases |= {f"roofline, {RATE} /s, CP{chunk}": Case(chunk=chunk) for chunk in (512, 2048)}
    for name, case in cases.items():
        found = InterferenceLaw.fit(runs[case]["interference"], runs[case]["tpot"])
        figures = f"{1e3 * found.slope:.3f} | {1e3 * found.intercept:.1f} | {found.most(0.1):.0f}"
        yield f"| {name} | {found.r_squared:.3f} | {figures} |"


def capacity_table() -> Iterator[str]:
    """Yield the prompt tokens a second of eight clients."""
    found = capacities()
    yield "| " + " | ".join(found) + " |"
    yield "|" + "---|" * len(found)
    yield "| " + " | ".join(f"{value:,.0f}" for value in found.values()) + " |"


def main() -> None:
    """Simulate every case, print the tables and draw the picture."""
    cases = every_case()
    with ProcessPoolExecutor(2) as pool:
        runs = dict(zip(cases, pool.map(simulated, cases), strict=True))
    tables = {"table 2": table_2(runs), "law": laws(runs), "capacity": capacity_table()}
    for name, lines in tables.items():
        print(name, "", *lines, "", sep="\n")
    draw_planes(runs)


if __name__ == "__main__":
    IMAGES = picture_folder(__doc__)
    main()
