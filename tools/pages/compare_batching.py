"""Serves the Azure code trace with each batching strategy; prints a table and draws the gaps.

    python tools/pages/compare_batching.py AzureLLMInferenceTrace_code.csv [ENGINE]

docs/background/batching.md shows both, and what `prefill_schedule_interval` does; with a version of
vLLM there is the first table alone. The picture needs matplotlib: `pip install matplotlib`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

import mist_sim as mist
from mist_sim.clients.scheduling import (
    ChunkedScheduler,
    ContinuousScheduler,
    MixedScheduler,
    StaticScheduler,
)
from tools.pages.pictures import PICTURES, picture_folder

STRATEGIES = {
    "static": StaticScheduler,
    "continuous": ContinuousScheduler,
    "mixed": MixedScheduler,
    "chunked, 2,048 tokens": lambda: ChunkedScheduler(max_num_batched_tokens=2048),
    "chunked, 512 tokens": lambda: ChunkedScheduler(max_num_batched_tokens=512),
}
CADENCES = {
    "every step": lambda: ChunkedScheduler(max_num_batched_tokens=2048),
    "one of 2": lambda: ChunkedScheduler(max_num_batched_tokens=2048, prefill_schedule_interval=2),
    "one of 4": lambda: ChunkedScheduler(max_num_batched_tokens=2048, prefill_schedule_interval=4),
    "one of 8": lambda: ChunkedScheduler(max_num_batched_tokens=2048, prefill_schedule_interval=8),
}
COLUMNS = {
    "TTFT, p50": "p50_ttft_ms",
    "TTFT, p99": "p99_ttft_ms",
    "ITL, p50": "p50_itl_ms",
    "ITL, p99": "p99_itl_ms",
    "TPOT, mean": "mean_tpot_ms",
    "TPOT, p99": "p99_tpot_ms",
    "E2E, mean": "mean_e2el_ms",
    "tokens/s": "output_throughput",
}
COLORS = ("#888888", "#e07b39", "#b5a642", "#2a6f97", "#7fb3d5")
IMAGES = PICTURES


def runs(
    trace: str | Path,
    engine: str | None = None,
    strategies: Mapping[str, Callable[[], mist.Scheduler]] = STRATEGIES,
) -> Iterator[tuple[str, mist.Result]]:
    """Yield the result of each strategy on two groups of four H100s, Llama-3.1-70B."""
    for name, scheduler in strategies.items():
        clients = [
            mist.llm_client(
                f"llm-{i}",
                model="llama-3.1-70b",
                engine=engine,
                tensor_parallel_size=4,
                scheduler=scheduler(),
            )
            for i in range(2)
        ]
        workload = mist.Workload(mist.AzureReader(path=str(trace)), mist.TraceArrivals())
        router = mist.LeastOutstandingRouter()
        yield name, mist.Simulation(clients=clients, workload=workload, router=router).run()


def cells(result: mist.Result) -> list[str]:
    """Return the figures of one row of the table."""
    values = [result.summary[key] for key in COLUMNS.values()]
    return [f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" for value in values]


def gaps(result: mist.Result) -> np.ndarray:
    """Return all times between two tokens of a request in milliseconds, sorted."""
    times = (result.token_times(int(request)) for request in result.requests["request_id"])
    return np.sort(np.concatenate([1e3 * np.diff(tokens) for tokens in times]))


def draw(results: dict[str, mist.Result]) -> None:
    """Draw which share of the gaps is longer than a time, a line for each strategy."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8.4, 3.6), layout="constrained")
    axes.axhline(1, color="#cccccc", lw=0.8, zorder=0)
    for (name, result), color in zip(results.items(), COLORS, strict=True):
        found = gaps(result)
        longer = 100 - 100 * np.arange(len(found)) / len(found)
        axes.plot(found, longer, color=color, label=name, lw=1.8, rasterized=True)
        at_p99 = float(np.percentile(found, 99))
        axes.plot([at_p99], [1], "o", color=color, ms=5)
    axes.text(10.3, 1.1, "p99", color="#888888", fontsize=9)
    axes.set(xscale="log", yscale="log", xlim=(10, 3e4), ylim=(1e-2, 110))
    axes.set_xticks([10, 100, 1_000, 10_000], ["10 ms", "100 ms", "1 s", "10 s"])
    axes.set_yticks([0.01, 0.1, 1, 10, 100], ["0.01 %", "0.1 %", "1 %", "10 %", "100 %"])
    axes.set(xlabel="time between two tokens of a request", ylabel="gaps that are longer")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(IMAGES / "batching.png", dpi=110, metadata={"Software": None})


def main() -> None:
    """Print and draw a trace under each strategy, or under one that is named."""
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    results = dict(runs(*sys.argv[1:]))
    print_table(results)
    if len(sys.argv) == 2:
        draw(results)
        print_table(dict(runs(sys.argv[1], strategies=CADENCES)))


def print_table(results: dict[str, mist.Result]) -> None:
    """Print a row for each result."""
    print("| | " + " | ".join(COLUMNS) + " |")
    print("|" + "---|" * (len(COLUMNS) + 1))
    for name, result in results.items():
        print(f"| {name} | " + " | ".join(cells(result)) + " |")


if __name__ == "__main__":
    IMAGES = picture_folder(__doc__)
    main()
