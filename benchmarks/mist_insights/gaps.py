"""Gaps between tokens while long prompts come: MIST's box "Reasoning" (section V-A2)."""

from __future__ import annotations

import numpy as np
import pandas as pd

import mist_sim as mist
from benchmarks.mist_insights import SAMPLING
from mist_sim.rng import Streams

LONG = (512, 2_048, 8_192, 32_768)
SHARES = (0.01, 0.16)  # of the questions that have a long prefix
DEPLOYMENTS = {  # tokens of a chunk
    "chunked, 8,192 tokens": 8192,
    "chunked, 2,048 tokens": 2048,
    "chunked, 256 tokens": 256,
    "1 prefill, 7 decode": None,
}


def gaps(deployment: str, tokens: int, share: float, requests: int) -> dict[str, float]:
    """Return the P99 of all gaps, and of those beside a long prompt that is computed, in s.

    Qwen3-14B on eight H100s with questions of 158 tokens (Table III) and answers of 1,000, eight a
    second; a share of the questions have `tokens`.
    """
    rng = Streams(1).generator("questions")
    prompts = np.where(rng.random(requests) < share, tokens, 158)
    answers = rng.geometric(1 / 1000, requests) + 1
    work = mist.Workload.from_lists(
        prompts.tolist(), answers.tolist(), arrivals=mist.PoissonArrivals(rate=8.0)
    )
    chunk = DEPLOYMENTS[deployment]
    result = mist.Simulation(
        clients=_clients(chunk),
        workload=work,
        router=mist.LeastOutstandingRouter(),
        network=None if chunk else mist.Link(bandwidth=50e9, latency=1e-3),
        seed=1,
    ).run()
    steps = result.steps[result.steps["num_decodes"] > 0]
    is_long = result.requests["num_prompt_tokens"] == tokens
    stages = result.stages[result.stages["stage"] == "prefill"]
    long = stages[stages["request_id"].isin(result.requests["request_id"][is_long])]
    if not chunk:  # no answer is on the client that computes it: look at all the others
        long = pd.concat([long.assign(client=name) for name in steps["client"].unique()])
    return {
        "all": _p99(steps),
        "beside": _p99(steps[_beside(steps, long)]),
        "stable": result.summary["stability"] != "unstable",
    }


def _clients(chunk: int | None) -> list[mist.LlmClient]:
    scheduler = mist.ChunkedScheduler(max_num_seqs=256, max_num_batched_tokens=chunk or 2048)
    roles = [None] * 8 if chunk else ["prefill"] + ["decode"] * 7
    options = {"model": "qwen3-14b", "gpu": "h100-sxm", "scheduler": scheduler}
    options |= {"sampling": SAMPLING}
    return [mist.llm_client(f"llm-{n}", role=role, **options) for n, role in enumerate(roles)]


def _beside(steps: pd.DataFrame, long: pd.DataFrame) -> np.ndarray:
    """Tell which steps overlap the computation of a long prompt on their client."""
    found = np.zeros(len(steps), dtype=bool)
    for client, mine in long.groupby("client"):
        here = (steps["client"] == client).to_numpy()
        begins, ends = np.sort(mine["started_at"]), np.sort(mine["finished_at"])
        begun = np.searchsorted(begins, steps["end"][here], side="left")
        found[here] = begun > np.searchsorted(ends, steps["start"][here], side="right")
    return found


def _p99(steps: pd.DataFrame) -> float:
    """Return the P99 of the gaps of decodes; rows may be of several equal steps."""
    gap = ((steps["end"] - steps["start"]) / steps["num_steps"]).to_numpy()
    weight = (steps["num_steps"] * steps["num_decodes"]).to_numpy()
    order = np.argsort(gap)
    counts = np.cumsum(weight[order])
    return float(gap[order][np.searchsorted(counts, 0.99 * counts[-1])])
