"""Simulates what the Seesaw paper leaves open: links, buffers, mixtures, limits on TTFT.

    python tools/pages/make_seesaw_studies.py FOLDER [--only links]

FOLDER: as for `make_seesaw.py`. Prints a row a run, figure 4 of the paper among them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from make_seesaw import (
    GIB,
    MODELS,
    OLDEST,
    best_pair,
    best_static,
    chunked,
    lengths,
    resharded,
    simulated,
    table_1,
    throughput,
)

from mist_sim import (
    ContinuousScheduler,
    EngineOverhead,
    Simulation,
    Workload,
    llm_client,
)
from mist_sim.clients.kv_cache import KvCacheConfig
from mist_sim.hardware import GpuSpec
from mist_sim.hardware.resharding import Layout, SeesawPredictor
from mist_sim.network import Link
from mist_sim.rng import Streams

MIDDLE = MODELS["34B"][0]
PAIR = Layout(1, 8), Layout(4, 2)
TTFT = 60.0  # seconds, of the study on-line: six times what a prompt takes alone
Rows = list[dict[str, Any]]


def show(**row: Any) -> dict[str, Any]:
    """Print a row as JSON, and return it."""
    print(json.dumps(row), flush=True)
    return row


# --- figure 4 -----------------------------------------------------------------------------------


def figure_4() -> Rows:
    """Return what four and eight GPUs do of 70B, and what becomes of a system in two halves."""
    gpu, name = table_1("A100-NVLink"), MODELS["70B"][0]
    work = [2048] * 400, [200] * 400
    whole = {
        "scheduler": ContinuousScheduler(max_num_seqs=256, max_num_batched_tokens=4096),
        "predictor": SeesawPredictor,
    }
    rows = []
    for layout in (Layout(4), Layout(2, 2), Layout(1, 4), Layout(8), Layout(4, 2)):
        result = simulated(gpu, name, layout, work, **whole)
        steps, ranks = result.steps, layout.pipeline
        prompts = steps[steps["num_chunks"] > 0]["busy"].sum() / ranks
        decodes = steps[steps["num_decodes"] > 0]
        tokens = (decodes["num_decodes"] * decodes["num_steps"]).sum()
        rate = tokens / (decodes["busy"].sum() / ranks)
        rows.append(
            show(
                layout=layout.label,
                prompt_tokens_per_s=round(sum(work[0]) / prompts),
                answer_tokens_per_s=round(rate),
                requests_per_s=round(throughput(result), 3),
            )
        )
    halves = [
        llm_client(
            role,
            model=name,
            gpu=gpu,
            engine=OLDEST,
            role=role,
            tensor_parallel_size=4,
            kv_cache=KvCacheConfig(enable_prefix_caching=False, gpu_memory_utilization=0.9),
            overhead=EngineOverhead(step=0.0, sequence=0.0),
            async_scheduling=False,
            **whole,
        )
        for role in ("prefill", "decode")
    ]
    workload = Workload.from_lists(*work, [0.0] * 400)
    network = Link(bandwidth=300.0 * GIB, latency=0.0)
    result = Simulation(clients=halves, workload=workload, network=network).run()
    rows.append(show(layout="TP4 + TP4 apart", requests_per_s=round(throughput(result), 3)))
    best = best_pair(gpu, name, 8, work)
    rows.append(show(layout=best[1], requests_per_s=round(best[0], 3)))
    return rows


# --- sweeps -------------------------------------------------------------------------------------


def links(folder: Path) -> Rows:
    """Return requests/s by bandwidth of the links: between GPUs alone, and to the host as well."""
    work, rows = lengths(folder, "arxiv", "34B"), []
    for factor in (0.1, 0.3, 1.0, 3.0, 10.0, 50.0):
        gpu = _faster(table_1("A10"), factor)
        with_host = replace(gpu, host_bandwidth=factor * gpu.host_bandwidth)
        rows.append(
            show(
                factor=factor,
                stays=best_static(gpu, MIDDLE, 8, work),
                re_shards=best_pair(gpu, MIDDLE, 8, work),
                host_too=best_pair(with_host, MIDDLE, 8, work),
            )
        )
    return rows


def _faster(gpu: GpuSpec, factor: float) -> GpuSpec:
    link = gpu.interconnect
    return replace(gpu, interconnect=replace(link, bandwidth=factor * link.bandwidth))


def buffers(folder: Path) -> Rows:
    """Return requests/s by GiB of the buffer for each GPU, with and without prefetching."""
    gpu, work, rows = table_1("A10"), lengths(folder, "arxiv", "34B"), []
    for size in (3.0, 5.0, 10.0, 20.0, 40.0, 80.0):
        found = []
        for prefetch in (True, False):
            options = {"host_memory": size * GIB, "prefetch": prefetch}
            result = resharded(gpu, MIDDLE, *PAIR, work, **options)
            found.append((round(throughput(result), 3), len(result.summary["layouts"]) - 1))
        rows.append(show(size=size, prefetching=found[0], not_prefetching=found[1]))
    return rows


def mixtures(folder: Path) -> Rows:
    """Return the gain by the share of long prompts (arXiv's) among those of ShareGPT."""
    gpu, rows = table_1("A10"), []
    short, long = ([*zip(*lengths(folder, k, "34B"), strict=True)] for k in ("sharegpt", "arxiv"))
    order = Streams(4).generator("order").permutation(2000)
    for share in (0.0, 0.1, 0.25, 0.5, 0.75, 1.0):
        num_long = round(2000 * share)
        pairs = [*short[: 2000 - num_long], *(4 * long)[:num_long]]
        work = tuple(map(list, zip(*(pairs[n] for n in order), strict=True)))
        static, pair = best_static(gpu, MIDDLE, 8, work), best_pair(gpu, MIDDLE, 8, work)
        rows.append(
            show(share=share, stays=static, re_shards=pair, gain=round(pair[0] / static[0], 3))
        )
    return rows


# --- on-line, under a limit ---------------------------------------------------------------------

POLICIES: dict[str, dict[str, Any]] = {
    "transition_minimising": {},
    "ttft_bound, 0.1 and 0.5": {"policy": "ttft_bound", "ttft_limit": TTFT},
    "ttft_bound, 0.4 and 0.5": {"policy": "ttft_bound", "ttft_limit": TTFT, "to_decode": 0.4},
    "ttft_bound, 0.49 and 0.5": {"policy": "ttft_bound", "ttft_limit": TTFT, "to_decode": 0.49},
}


def on_line(folder: Path) -> Rows:
    """Return latencies by rate (Poisson): chunks in one layout, and re-sharding by policies."""
    gpu, rows = table_1("A10"), []
    prompts, outputs = (each[:400] for each in lengths(folder, "arxiv", "34B"))
    gaps = Streams(5).generator("arrivals").exponential(1.0, 400)
    for rate in (0.3, 0.5, 0.7, 0.75, 0.8, 0.85):
        work = prompts, outputs, np.cumsum(gaps / rate).tolist()
        for policy in ("TP2PP4, chunked", *POLICIES):
            if policy in POLICIES:
                result = resharded(gpu, MIDDLE, *PAIR, work, **POLICIES[policy])
            else:
                result = chunked(gpu, MIDDLE, Layout(2, 4), work, 512)
            summary = result.summary
            ttft = result.requests["ttft"]
            rows.append(
                show(
                    rate=rate,
                    policy=policy,
                    within_limit=round(float((ttft <= TTFT).mean()), 3),
                    p90_ttft=round(summary["p90_ttft_ms"] / 1e3, 1),
                    p90_tpot=round(summary["p90_tpot_ms"] / 1e3, 3),
                    transitions=max(len(summary.get("layouts", ())) - 1, 0),
                )
            )
    return rows


def main() -> None:
    """Run the studies that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parts: dict[str, Callable[[Path], Rows]] = {
        "figure_4": lambda _: figure_4(),
        "links": links,
        "buffers": buffers,
        "mixtures": mixtures,
        "on_line": on_line,
    }
    parser.add_argument("--only", choices=list(parts))
    given = parser.parse_args()
    for part in [given.only] if given.only else parts:
        parts[part](given.folder)


if __name__ == "__main__":
    main()
