"""Prints tables of which docs/background/bestserve.md has some rows.

Figures 6 to 11 and Tables 4 and 5 of the paper from the preset bestserve, and its four operating
scenarios in the full simulation; 20 minutes on two cores, most of them in the full simulation.
Needs matplotlib, which the project itself does not use.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from mist_sim import Scenario, simulate
from mist_sim.bestserve import Method, Ranking, Requests, Served, Space, Strategy, rank_strategies
from mist_sim.bestserve import simulate_strategy as serve
from mist_sim.bestserve.drawn_requests import requests_of
from mist_sim.bestserve.engines import Engines, Template
from mist_sim.rng import Streams
from tools.pages.pictures import PICTURES, picture_folder

IMAGES = PICTURES

JOBS = 2
SEEDS, LONG, SHORT = 20, 10_000, 2_000  # runs of a mean; requests of the paper, and beside the full
RATE, TTFT, TPOT = 3.5, 1.5, 0.07  # a second, and seconds: Tables 4 and 5
SCENARIOS = {"OP1": (8192, 512), "OP2": (2048, 64), "OP3": (1024, 64), "OP4": (256, 2048)}
PAPER_ERRORS = {"OP1": 11.2, "OP2": 12.1, "OP3": 8.6, "OP4": 30.1}  # percent, against vLLM-Ascend
TABLES = {  # the paper's P90 and P99 of TTFT and TPOT, ms
    "1p1d": (3650.319, 6004.805, 44.849, 44.849),
    "2m": (556.309, 1091.503, 4360.659, 4656.043),
}
BLUE, ORANGE, RED = "#2a6f97", "#e07b39", "#b3302f"
COUNTS = (500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000)  # requests, in figure 10
LOADS = (0.5, 0.7, 0.9)  # of the goodput in the full simulation, where latencies are compared


@dataclass(frozen=True)
class Setting:
    """One of the paper's tables: the strategy, and a served run of it."""

    name: str
    strategy: Strategy

    def run(self, seed: int, rate: float = RATE, num: int = LONG) -> Served:
        """Serve requests of 2,048 and 64 tokens."""
        gaps = Streams(seed).generator("arrivals").exponential(1 / rate, num)
        requests = Requests.of(np.cumsum(gaps).tolist(), 2048, 64)
        return serve(self.strategy, requests, engines(self.strategy).times, seed=seed)

    def percentiles(self, seed: int, rate: float = RATE, num: int = LONG) -> list[float]:
        """Return P90 and P99 of TTFT, and of TPOT, in ms."""
        run = self.run(seed, rate, num)
        return [1e3 * x for t in (run.ttft, run.tpot) for x in np.percentile(t, (90, 99))]


APART = Setting("1p1d", Strategy.parse("1p1d", tensor_parallel_size=4))
TOGETHER = Setting("2m", Strategy.parse("2m", tensor_parallel_size=4, decode_batch=4))
KNOWN: dict[Strategy, Engines] = {}


def engines(strategy: Strategy, prompt: int = 2048) -> Engines:
    """Return the engines of the preset in a layout."""
    key = strategy.one_of_each
    if key not in KNOWN:
        KNOWN[key] = Engines.of(Template(Scenario.load("bestserve")), key, prompt)
    return KNOWN[key]


# --- Tables 4 and 5, figures 6 to 10 ------------------------------------------------------------


def table(setting: Setting) -> Iterator[str]:
    """Yield the paper's percentiles beside ours: mean, deviation and range of 20 runs."""
    rows = np.array([setting.percentiles(seed) for seed in range(SEEDS)])
    yield "| ms | paper | ours, mean of 20 seeds | one run: from, to | difference |"
    yield "|---|---|---|---|---|"
    names = ("P90 TTFT", "P99 TTFT", "P90 TPOT", "P99 TPOT")
    for name, paper, found in zip(names, TABLES[setting.name], rows.T, strict=True):
        mean, sd = found.mean(), found.std(ddof=1)
        ends = f"{found.min():,.1f}, {found.max():,.1f}"
        percent = f"{100 * (mean / paper - 1):+.1f} %".replace("-", "−")
        yield f"| {name} | {paper:,.1f} | {mean:,.1f} ± {sd:,.1f} | {ends} | {percent} |"


def oscillations() -> dict[int, tuple[Any, Any]]:
    """Return P90 of TTFT in ms over the requests of a run: of one run each, and means of three."""
    found = {}
    for num in COUNTS:
        one = np.array([APART.percentiles(seed, num=num)[0] for seed in range(12)])
        found[num] = one, one.reshape(4, 3).mean(axis=1)
    return found


def oscillation_table(found: dict[int, tuple[Any, Any]]) -> Iterator[str]:
    """Yield the deviations of single runs and of means of three, as a share of the mean."""
    yield "| requests of a run | " + " | ".join(f"{num:,}" for num in found) + " |"
    yield "|---" * (len(found) + 1) + "|"
    one = [f"{100 * runs[0].std(ddof=1) / runs[0].mean():.0f} %" for runs in found.values()]
    yield "| standard deviation of one run | " + " | ".join(one) + " |"
    of_three = [
        f"{100 * r[0].std(ddof=1) / r[0].mean() / np.sqrt(3):.0f} %" for r in found.values()
    ]
    yield "| that of means of three (over √3) | " + " | ".join(of_three) + " |"


# --- the operating scenarios, figure 11 ---------------------------------------------------------


class Compared(NamedTuple):
    """A strategy at a load: P90 of TTFT and TPOT, and processor time, of both; all in seconds."""

    op: str
    name: str
    load: float
    ttft: tuple[float, float]
    tpot: tuple[float, float]
    seconds: tuple[float, float]


def scenario(op: str, num: int) -> Scenario:
    """Return the preset with the lengths of an operating scenario.

    Clients of the full simulation have queues of their own, and BestServe's instances one in
    common; the router that comes nearest sends a request where fewest are.
    """
    prompt, output = SCENARIOS[op]
    changes = {
        "workload.lengths.prompt.tokens": prompt,
        "workload.lengths.output.tokens": output,
        "workload.lengths.num_requests": num,
        "router": "least_outstanding",
    }
    return Scenario.load("bestserve", overrides=changes)


def layout(op: str) -> int:
    """Return the tensor parallel size: of four, a prompt of OP1 takes longer than TTFT may."""
    return 8 if op == "OP1" else 4


def ranked(op: str, num: int, check: int) -> Ranking:
    """Return the strategies of at most five instances."""
    space = Space(instances=5, tensor_parallel_sizes=(layout(op),))
    return rank_strategies(scenario(op, num), space, check=check, jobs=JOBS)


def figure_11(found: dict[str, Ranking], seconds: float) -> Iterator[str]:
    """Yield the strategies by goodput per GPU, as the paper's histograms have them."""
    yield f"All four in {seconds:.0f} s on two cores, {LONG:,} requests a run."
    yield ""
    yield "| place | " + " | ".join(f"{op}, TP{layout(op)}" for op in found) + " |"
    yield "|---" * (len(found) + 1) + "|"
    most = max(len(ranking.entries) for ranking in found.values())
    for place in range(most):
        cells = [r.entries[place] for r in found.values()]
        texts = [f"{e.strategy.name} {e.per_gpu:.3g}" for e in cells]
        yield f"| {place + 1} | " + " | ".join(texts) + " |"


def errors(ranking: Ranking) -> dict[str, float]:
    """Return by how much BestServe's goodput is above that of the full simulation, by name."""
    rows = ranking.table
    rows = rows[(rows["full_goodput"] > 0) & (rows["goodput"] > 0)]
    return dict(zip(rows["strategy"], rows["full_error"], strict=True))


def error_table(found: dict[str, Ranking]) -> Iterator[str]:
    """Yield the mean absolute errors of the goodput against the full simulation."""
    titles = "strategies", "mean absolute error", "together", "apart", "the paper's, on hardware"
    yield "| | " + " | ".join(titles) + " |"
    yield "|---|---|---|---|---|---|"
    for op, ranking in found.items():
        every = errors(ranking)
        groups = ["m", "d"]
        means = [
            np.mean([error for name, error in every.items() if name.endswith(end)])
            for end in groups
        ]
        signed = " | ".join(f"{100 * mean:+.0f} %".replace("-", "−") for mean in means)
        whole = 100 * np.mean(np.abs(list(every.values())))
        yield f"| {op} | {len(every)} | {whole:.0f} % | {signed} | {PAPER_ERRORS[op]} % |"


def draw_ranking(found: dict[str, Ranking]) -> None:
    """Draw figure 11: goodput per GPU in either simulation, and the error, by strategy."""
    figure, rows = plt.subplots(2, 2, figsize=(12, 6.4), layout="constrained")
    for axes, (op, ranking) in zip(rows.flat, found.items(), strict=True):
        data = ranking.table
        places = np.arange(len(data))
        full = data["full_goodput"] / data["num_gpus"]
        axes.bar(places - 0.2, data["goodput_per_gpu"], 0.4, color=BLUE, label="BestServe")
        axes.bar(places + 0.2, full, 0.4, color=ORANGE, label="full simulation")
        axes.set_xticks(places, data["strategy"], fontsize=8, rotation=45)
        axes.set_ylabel("goodput per GPU, /s")
        prompt, output = SCENARIOS[op]
        axes.set_title(f"Figure 11, {op}: {prompt} + {output} tokens, TP{layout(op)}", loc="left")
        twin = axes.twinx()
        twin.plot(places, 100 * data["full_error"], "o-", ms=3, lw=1, color=RED)
        twin.axhline(0, color=RED, lw=0.5, ls=":")
        twin.set(ylabel="error, %", ylim=(-100, 200))
    rows[0, 0].legend(frameon=False, fontsize=8)
    finish(figure, "bestserve_ranking")


# --- latencies on the same step times -----------------------------------------------------------


def compared(op: str, name: str, goodput: float) -> Iterator[Compared]:
    """Yield both simulations of a strategy at parts of its goodput in the full one.

    Each has run before, so that neither is charged for what is imported on first use.
    """
    base, prompt = scenario(op, SHORT), SCENARIOS[op][0]
    strategy = Strategy.parse(name, tensor_parallel_size=layout(op))
    template, requests = Template(base), requests_of(base, 0)
    times = engines_of(template, strategy, prompt)
    simulate(template.full(strategy, prompt).changed({"workload.lengths.num_requests": 10}))
    for load in LOADS:
        rate = load * goodput
        full = template.full(strategy, prompt).changed({"workload.arrivals.rate": f"{rate} /s"})
        begin = time.process_time()
        fast = serve(strategy, requests.scaled(rate), times, seed=0, method=Method())
        middle = time.process_time()
        rows = simulate(full).requests
        end = time.process_time()
        p90 = [float(np.percentile(x, 90)) for x in (fast.ttft, rows.ttft, fast.tpot, rows.tpot)]
        seconds = middle - begin, end - middle
        yield Compared(op, name, load, (p90[0], p90[1]), (p90[2], p90[3]), seconds)


def engines_of(template: Template, strategy: Strategy, prompt: int) -> Any:
    """Return step times that know a few answers, as in a search."""
    found = Engines.of(template, strategy, prompt).times
    serve(strategy, Requests.of([0.0] * 64, prompt, 2), found)
    return found


def compared_table(found: list[Compared]) -> Iterator[str]:
    """Yield P90s of both at each load, and by how many times BestServe's is faster."""
    yield "| | | load | P90 TTFT, s | full | P90 TPOT, ms | full | TPOT differs | times as fast |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for each in found:
        differs = f"{100 * (each.tpot[0] / each.tpot[1] - 1):+.0f} %".replace("-", "−")
        ratio = each.seconds[1] / max(each.seconds[0], 1e-9)
        yield (
            f"| {each.op} | {each.name} | {each.load:g} | "
            f"{each.ttft[0]:.2f} | {each.ttft[1]:.2f} | "
            f"{1e3 * each.tpot[0]:.1f} | {1e3 * each.tpot[1]:.1f} | {differs} | "
            f"{float(f'{ratio:.2g}'):.0f} |"
        )


def pseudo_table() -> Iterator[str]:
    """Yield the seconds of a step as BestServe counts, and with the answers that are there."""
    yield "| | answers in the boxes | pseudo batch | its step, ms | a step of all, ms |"
    yield "|---|---|---|---|---|"
    for op, (prompt, output) in SCENARIOS.items():
        strategy = Strategy.parse("1p1d", tensor_parallel_size=layout(op))
        times = Engines.of(Template(scenario(op, SHORT)), strategy, prompt).times[1]
        for answers in (4, 16):
            pseudo = max(int(answers / Method().tau), 1)
            last, middle = prompt + output - 2, prompt + output // 2
            steps = 1e3 * times.decode(pseudo, last), 1e3 * times.decode(answers, middle)
            yield f"| {op} | {answers} | {pseudo} | {steps[0]:.1f} | {steps[1]:.1f} |"


# --- page ---------------------------------------------------------------------------------------


def finish(figure: Any, name: str) -> None:
    """Save a picture."""
    for axes in figure.axes:
        axes.spines[["top"]].set_visible(False)
        axes.title.set_fontsize(10)
    figure.savefig(IMAGES / f"{name}.png", dpi=110, metadata={"Software": None})
    plt.close(figure)


def write(tables: dict[str, Iterator[str]]) -> None:
    """Print tables."""
    for name, lines in tables.items():
        print(name, "", *lines, "", sep="\n")


def main() -> None:
    """Run all studies; print the tables and draw the picture."""
    runs = oscillations()
    write({"table 4": table(APART), "table 5": table(TOGETHER)})
    write({"figure 10": oscillation_table(runs), "pseudo": pseudo_table()})
    begin = time.perf_counter()
    fast = {op: ranked(op, LONG, check=0) for op in SCENARIOS}
    write({"figure 11": figure_11(fast, time.perf_counter() - begin)})
    full = {op: ranked(op, SHORT, check=15) for op in SCENARIOS}
    draw_ranking(full)
    pairs = [
        each
        for op, ranking in full.items()
        for entry in ranking.entries
        if entry.strategy.name in ("2m", "1p1d") and entry.full and entry.full.rate > 0
        for each in compared(op, entry.strategy.name, entry.full.rate)
    ]
    write({"errors": error_table(full), "compared": compared_table(pairs)})


if __name__ == "__main__":
    IMAGES = picture_folder(__doc__)
    main()
