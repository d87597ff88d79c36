"""Prints what a session's KV entries cost while a tool runs, and draws it.

    python tools/pages/make_tool_gaps.py

Replays sessions of coding agents from ../shared/traces, or from the folder that is given as an
argument; about ten minutes on one core. With matplotlib installed it draws
tool_gaps.png as well.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

import mist_sim as mist
from mist_sim.hardware import load_gpu
from mist_sim.models import load_model
from tools.pages.pictures import PICTURES, picture_folder

IMAGES = PICTURES
SESSIONS = Path("agentic-claude-code") / "traces_rle.jsonl.gz"
EVERY = 4  # of which sessions are replayed, if no prompt of theirs is too long
LONGEST = 262_144  # tokens of a prompt and its answer
AGENTS = (2, 4, 8, 16, 32, 64)
MODEL, GPU, RANKS = "qwen3-30b-a3b-instruct-2507", "h100-sxm", 2
HOST = {"name": "host", "capacity": "1 TiB"}
DISK = {"name": "disk", "capacity": "8 TiB", "read_bandwidth": "7 GB/s", "latency": "50 us"}
POLICIES: dict[str, dict[str, Any]] = {
    "dropped": {"enable_prefix_caching": False},
    "kept on the GPUs": {},
    "in a tier: host memory": {"tiers": [HOST]},
    "in a tier: a disk": {"tiers": [DISK]},
}


class Row(NamedTuple):
    """What one policy gives with a number of agents. TTFT in seconds; computed: a share."""

    policy: str
    agents: int
    median: float
    p90: float
    computed: float
    gpu_seconds: float


def main() -> None:
    """Print both tables, and draw."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[3] / "shared/traces"
    with TemporaryDirectory() as scratch:
        path = _some_sessions(folder / SESSIONS, Path(scratch) / "sessions.jsonl.gz")
        rows = [_run(path, policy, agents) for policy in POLICIES for agents in AGENTS]
        gaps = np.array([row.think_time for row in mist.AgenticReader(path=str(path)).rows()])
    print(*_costs(gaps[gaps > 0]), "", *_table(rows), sep="\n")
    _draw(rows)


def _some_sessions(path: Path, few: Path) -> Path:
    with gzip.open(path, "rt") as file, gzip.open(few, "wt") as out:
        chosen = [line for number, line in enumerate(file) if number % EVERY == 0]
        fits = [line for line in chosen if _longest(json.loads(line)["requests"]) <= LONGEST]
        out.writelines(fits)
    print(f"{len(fits)} of {len(chosen)} sessions", flush=True)
    return few


def _longest(requests: list[dict[str, Any]]) -> int:
    own = [request["in"] + request["out"] for request in requests if "in" in request]
    below = [_longest(request["requests"]) for request in requests if "requests" in request]
    return max(own + below, default=0)


def _run(path: Path, policy: str, agents: int) -> Row:
    """Let so many agents go through the sessions."""
    scenario = mist.Scenario.from_dict(
        {
            "model": MODEL,
            "workload": {
                "trace": {"type": "agentic", "path": str(path)},
                "arrivals": {"type": "closed_loop", "concurrency": agents, "sessions": True},
            },
            "clients": [
                {
                    "name": "llm",
                    "gpu": GPU,
                    "tensor_parallel_size": RANKS,
                    "kv_cache": POLICIES[policy],
                }
            ],
        }
    )
    result = mist.simulate(scenario)
    requests, client = result.requests, result.clients.iloc[0]
    ttft = requests["ttft"].dropna()
    print(policy, agents, result.summary["completed"], flush=True)
    return Row(
        policy,
        agents,
        float(ttft.median()),
        float(ttft.quantile(0.9)),
        float(client["num_prefill_tokens"] / requests["num_prompt_tokens"].sum()),
        float(client["busy"] * RANKS / len(requests)),
    )


def _table(rows: list[Row]) -> Iterator[str]:
    yield (
        "| entries while a tool runs | agents | TTFT, median | TTFT, P90 | prompt tokens computed "
        "| busy GPU time a turn |"
    )
    yield "|---|--:|--:|--:|--:|--:|"
    for row in rows:
        yield (
            f"| {row.policy} | {row.agents} | {row.median:.2f} s | {row.p90:.2f} s "
            f"| {100 * row.computed:.1f} % | {row.gpu_seconds:.2f} s |"
        )


def _costs(gaps: np.ndarray[Any, np.dtype[np.float64]]) -> Iterator[str]:
    """Yield what a context costs: kept for a second, loaded, computed again; and until when."""
    model, gpu = load_model(MODEL), load_gpu(GPU)
    client = mist.llm_client("llm", model=MODEL, gpu=GPU, tensor_parallel_size=RANKS)
    room = client.num_gpu_blocks * 16
    yield (
        "| context | entries | part of the GPUs' room | loaded from the host in "
        "| computed again in | keeping costs more from | of the gaps longer |"
    )
    yield "|--:|--:|--:|--:|--:|--:|--:|"
    for num_tokens in (10_000, 50_000, 100_000, 200_000):
        num_bytes = num_tokens * model.kv_bytes_per_token
        load = num_bytes / (RANKS * (gpu.host_bandwidth or 1.0))
        again = _prefill_time(num_tokens)
        until = again / (num_tokens / room)
        longer = float((gaps > until).mean())
        yield (
            f"| {num_tokens:,} | {num_bytes / 1e9:.1f} GB | {100 * num_tokens / room:.1f} % "
            f"| {load:.2f} s | {again:.2f} s | {until:.0f} s | {100 * longer:.0f} % |"
        )


def _prefill_time(num_tokens: int) -> float:
    """Return how long a prompt takes on idle GPUs, seconds."""
    client = mist.llm_client("llm", model=MODEL, gpu=GPU, tensor_parallel_size=RANKS)
    workload = mist.Workload(mist.Rows([mist.TraceRow(num_tokens, 1)]), mist.AllAtOnce())
    requests = mist.Simulation(clients=[client], workload=workload).run().requests
    return float(requests["ttft"].iloc[0])


def _draw(rows: list[Row]) -> None:
    try:
        import matplotlib as mpl
    except ImportError:
        print("matplotlib is not installed; the picture stays as it is")
        return
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(8.8, 3.4), layout="constrained")
    colors = ("#c1121f", "#2a6f97", "#2a9d8f", "#e9c46a")
    for policy, color in zip(POLICIES, colors, strict=True):
        mine = [row for row in rows if row.policy == policy]
        agents = [row.agents for row in mine]
        left.plot(agents, [row.p90 for row in mine], marker="o", color=color, label=policy)
        right.plot(agents, [100 * row.computed for row in mine], marker="o", color=color)
    left.set(xscale="log", yscale="log", xlabel="agents at a time", ylabel="TTFT of a turn, P90, s")
    right.set(
        xscale="log", xlabel="agents at a time", ylabel="prompt tokens computed, %", ylim=(0, 104)
    )
    for axes in (left, right):
        axes.set_xticks(AGENTS, [str(number) for number in AGENTS])
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False, fontsize=8)
    figure.savefig(IMAGES / "tool_gaps.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    IMAGES = picture_folder(__doc__)
    main()
