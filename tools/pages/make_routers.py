"""Prints tables of which docs/background/routers.md has some rows.

`python tools/pages/make_routers.py` makes them.

Sends the requests of the Azure traces in ../shared/traces, or in the folder that is given as an
argument, to every router; a few minutes on two cores. With matplotlib installed it draws
routers.png as well.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mist_sim import AzureReader, Scenario, simulate
from tools.pages.pictures import PICTURES, picture_folder

IMAGES = PICTURES
FILES = {
    "conversation": "AzureLLMInferenceTrace_conv.csv",
    "code": "AzureLLMInferenceTrace_code.csv",
}
NUM_REQUESTS = 5_000  # the first ones of each trace
NUM_CLIENTS = 4
LOAD = 0.8
FIGURES = ("p50_ttft_ms", "p99_ttft_ms", "p50_e2el_ms", "p99_e2el_ms")
WORKS = ("input_length", "kv_cache", "tokens_remaining")
QUANTILES = (0.25, 0.5, 0.75, 0.9, 0.95)
SHARES = (0.25, 0.5, 0.75)

Figures = tuple[float, ...]
Settings = dict[str, Any]

ROUTERS: dict[str, Settings] = {
    name: {"router": name}
    for name in ("random", "round_robin", "least_outstanding", "power_of_two")
} | {
    f"{name} by {work}": {"router": {"type": name, "by": work}}
    for name in ("load", "heavy_light")
    for work in WORKS
}
POLLED: dict[str, Settings] = {
    "as they are": {"router": "least_outstanding"},
    **{
        f"{interval}, {'with' if counted else 'without'} what was sent since": {
            "router": "least_outstanding",
            "view_interval": interval,
            "counts_sent": counted,
        }
        for counted in (True, False)
        for interval in ("100 ms", "1 s", "10 s")
    },
}


BURSTS = {name: ROUTERS[name] for name in ("random", "round_robin", "least_outstanding")} | {
    name: ROUTERS[name] for name in ("power_of_two", "load by input_length")
}


class Replay:
    """The requests of a trace, on `NUM_CLIENTS` GPUs and at `LOAD` of what these can do.

    prompts: tokens of each. capacity: requests a second.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        rows = list(AzureReader(path=str(path), num_requests=NUM_REQUESTS).rows())
        self.prompts = np.array([row.num_prompt_tokens for row in rows])
        span = rows[-1].arrival_time or 0.0
        flood = self._run({"type": "all_at_once"}, {"router": "round_robin"})
        ended = np.sort(flood.requests["finished_at"])
        quarter = len(ended) // 4
        self.capacity = float(2 * quarter / (ended[3 * quarter] - ended[quarter]))
        rate = LOAD * self.capacity
        self._poisson: Settings = {"type": "poisson", "rate": f"{rate!r} /s"}
        self._own_times: Settings = {"type": "trace", "speedup": rate / (len(rows) / span)}

    def figures(self, settings: Settings, *, own_times: bool = False) -> Figures:
        """Return the latencies of a run with some keys of the scenario, in the order of FIGURES.

        own_times: whether requests come at the times of the trace, sped up, and not by a Poisson
        process of the same rate.
        """
        arrivals = self._own_times if own_times else self._poisson
        summary = self._run(arrivals, settings).summary
        print(self._path.name, settings, *(f"{summary[name]:.0f}" for name in FIGURES), flush=True)
        return tuple(summary[name] for name in FIGURES)

    def _run(self, arrivals: Settings, settings: Settings) -> Any:
        trace = {"type": "azure", "path": str(self._path), "num_requests": NUM_REQUESTS}
        workload = {"trace": trace, "arrivals": arrivals}
        clients = [{"name": "llm", "count": NUM_CLIENTS, "gpu": "h100-sxm"}]
        scenario = {"model": "llama-3.1-8b", "workload": workload, "clients": clients}
        return simulate(Scenario.from_dict(scenario | settings))

    def splits(self) -> Iterator[tuple[float, float, Figures]]:
        """Yield (quantile, heavy_share, figures) of heavy_light by input length."""
        for quantile in QUANTILES:
            threshold = float(np.quantile(self.prompts, quantile))
            for share in SHARES:
                router = {"type": "heavy_light", "threshold": threshold, "heavy_share": share}
                yield quantile, share, self.figures({"router": router})


Splits = list[tuple[float, float, Figures]]


class Found(NamedTuple):
    """What was found for one trace."""

    replay: Replay
    routers: dict[str, Figures]
    splits: Splits
    polled: dict[str, Figures]
    bursts: dict[str, Figures]


def measured(path: Path) -> Found:
    """Run everything for one trace."""
    replay = Replay(path)
    routers, splits = _of_all(replay, ROUTERS), list(replay.splits())
    bursts = _of_all(replay, BURSTS, own_times=True)
    return Found(replay, routers, splits, _of_all(replay, POLLED), bursts)


def main(folder: Path) -> None:
    """Replay the traces in `folder` under every router, and print the tables."""
    with ProcessPoolExecutor(len(FILES)) as pool:
        each = list(pool.map(measured, [folder / file for file in FILES.values()]))
    found = dict(zip(FILES, each, strict=True))
    replays = {name: one.replay for name, one in found.items()}
    routers = {name: one.routers for name, one in found.items()}
    splits = {name: one.splits for name, one in found.items()}
    tables = {
        "setting": setting(replays),
        "routers": side_by_side("router", routers),
        "thresholds": thresholds(replays, splits),
        "polls": side_by_side("views", {name: one.polled for name, one in found.items()}),
        "bursts": side_by_side("router", {name: one.bursts for name, one in found.items()}),
    }
    for name, lines in tables.items():
        print(name, "", *lines, "", sep="\n")
    draw_picture(routers, splits)


def _of_all(
    replay: Replay, settings: dict[str, Settings], *, own_times: bool = False
) -> dict[str, Figures]:
    return {name: replay.figures(keys, own_times=own_times) for name, keys in settings.items()}


def setting(replays: dict[str, Replay]) -> Iterator[str]:
    """Yield what the traces are, and how fast their requests come."""
    yield "| trace | requests | prompt tokens, mean / p50 / p99 | capacity | sent |"
    yield "|---|---|---|---|---|"
    for name, replay in replays.items():
        prompts = replay.prompts
        median, high = np.quantile(prompts, [0.5, 0.99])
        lengths = f"{prompts.mean():,.0f} / {median:,.0f} / {high:,.0f}"
        rate = f"{LOAD * replay.capacity:.1f} /s"
        yield f"| {name} | {len(prompts):,} | {lengths} | {replay.capacity:.1f} /s | {rate} |"


def side_by_side(what: str, found: dict[str, dict[str, Figures]]) -> Iterator[str]:
    """Yield a row for each router or kind of view, with the figures of all traces."""
    words = ("TTFT p50", "p99", "E2E p50", "p99")
    heads = [f"{name}: {words[0]}" for name in found]
    columns = " | ".join(" | ".join((head, *words[1:])) for head in heads)
    yield f"| {what} | {columns} |"
    yield f"|---|{'---:|' * (len(words) * len(found))}"
    for row in next(iter(found.values())):
        cells = " | ".join(_ms(value) for traces in found.values() for value in traces[row])
        yield f"| {row} | {cells} |"


def thresholds(replays: dict[str, Replay], splits: dict[str, Splits]) -> Iterator[str]:
    """Yield p50 and p99 of TTFT for each threshold and share of the clients."""
    shares = " | ".join(f"{round(share * NUM_CLIENTS)} of {NUM_CLIENTS} heavy" for share in SHARES)
    yield f"| trace | threshold, tokens | share of tokens in heavy prompts | {shares} |"
    yield f"|---|---:|---:|{'---:|' * len(SHARES)}"
    for name, rows in splits.items():
        prompts = replays[name].prompts
        for quantile in QUANTILES:
            threshold = np.quantile(prompts, quantile)
            heavy = prompts[prompts > threshold].sum() / prompts.sum()
            found = [values for each, _, values in rows if each == quantile]
            cells = " | ".join(f"{_ms(values[0])} / {_ms(values[1])}" for values in found)
            where = f"{threshold:,.0f} (p{100 * quantile:.0f})"
            yield f"| {name} | {where} | {heavy:.0%} | {cells} |".replace("%", " %")


def _ms(value: float) -> str:
    return f"{value:,.0f}"


def draw_picture(routers: dict[str, dict[str, Figures]], splits: dict[str, Splits]) -> None:
    """Draw p99 over p50 of TTFT, a mark for each router and a line for each split of clients."""
    try:
        import matplotlib as mpl
    except ImportError:
        print("without matplotlib there is no picture", file=sys.stderr)
        return
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(routers), figsize=(10, 4.4), layout="constrained")
    marks = ["o", "s", "D", "^", "v", "<", ">", "P", "X", "*"]
    for axes, (name, rows) in zip(panels, routers.items(), strict=True):
        for share, color in zip(SHARES, ("#9ecae1", "#4292c6", "#084594"), strict=True):
            line = np.array([values for _, each, values in splits[name] if each == share])
            axes.plot(line[:, 0], line[:, 1], color=color, lw=1, marker=".", zorder=1)
        for mark, (router, values) in zip(marks, rows.items(), strict=True):
            heavy = router.startswith("heavy")
            color = "#2a6f97" if heavy else "#e07b39"
            axes.scatter(values[0], values[1], marker=mark, color=color, s=45, label=router)
        axes.set(title=name, xlabel="p50 of TTFT, ms", xscale="log", yscale="log")
    panels[0].set_ylabel("p99 of TTFT, ms")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=4, frameon=False, fontsize=8, loc="outside lower center")
    figure.savefig(IMAGES / "routers.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    IMAGES = picture_folder(__doc__)
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "../shared/traces"))
