"""Simulates Seesaw's end-to-end cases (figures 10, 11), policies (2) and breakdown (12).

    python tools/pages/make_seesaw.py FOLDER [--cases A10,L4] [--piggyback 0] [--only breakdown]
        [--v1] [--host-ms 10]

FOLDER has lengths of ShareGPT (sharegpt-lengths/*.csv) and of arXiv's summaries (Vidur's
arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv), both with columns num_prefill_tokens
and num_decode_tokens; `--only policies` reads none. Prints a row a case: the best layout that
stays, over all that fit and three sizes of chunks; the best pair of layouts, of the two that
appendix A ranks first; the gain beside the paper's. Layouts that stay have the pipelines of the
paper's vLLM 0.5.4, or with --v1 those of the newest version that is known. --host-ms gives their
steps time of the host: 5 to 13 ms in 0.5.4 (vllm-project/vllm#6854).
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mist_sim import (
    ChunkedScheduler,
    ContinuousScheduler,
    EngineOverhead,
    Result,
    Simulation,
    Workload,
    llm_client,
    load_gpu,
)
from mist_sim.clients.kv_cache import KvCacheConfig
from mist_sim.clients.options.resharding_options import Resharding
from mist_sim.errors import ScenarioError
from mist_sim.hardware import GpuSpec
from mist_sim.hardware.devices import Efficiency
from mist_sim.hardware.resharding import Layout, SeesawPredictor, device_of, layouts_of
from mist_sim.models import load_model
from mist_sim.rng import Streams
from mist_sim.search.resharding import Lengths, PairOptions, rank_pairs

GIB = 2**30
OLDEST = "vllm-0.12"  # the oldest version that is simulated; its memory stands for 0.5.4's
MODELS = {"15B": ("llama-3-15b", 4), "34B": ("codellama-34b", 8), "70B": ("llama-2-70b", 8)}
MODELS |= {"LLaMA3-70B": ("llama-3-70b", 8)}  # section 6.4 names it for the A100s, 6.1 the other
MEANS = {"sharegpt": (300, 300), "arxiv": (6000, 200)}
CHUNKS = (256, 512, 2048)
PAPER = {"A10": 1.45, "L4": 1.29}  # geometric means of figure 10


def table_1(name: str) -> GpuSpec:
    """Return a GPU of the paper's table 1.

    A100-PCIe-x16 is the card of the data sheet, whose link has twice the lanes and reaches others
    without the host.
    """
    entry, memory, bandwidth, tera_flops, link_rate, sums = {
        "A10": ("a10", 24, 600, 125, 16, "host_shared"),
        "L4": ("l4", 24, 300, 121, 16, "host_shared"),
        "A100-PCIe": ("a100-40gb-pcie", 40, 1555, 312, 16, "host_shared"),
        "A100-PCIe-x16": ("a100-40gb-pcie", 40, 1555, 312, 32, "ring"),
        "A100-NVLink": ("a100-40gb", 40, 1555, 312, 300, "ring"),
    }[name]
    gpu = load_gpu(entry)
    share = Efficiency(mfu=0.6, mbu=0.8)
    link = replace(
        gpu.interconnect,
        bandwidth=link_rate * GIB,
        efficiency=0.8,
        all_reduce=sums,
    )
    return replace(
        gpu,
        memory=memory * GIB,
        memory_bandwidth=bandwidth * GIB,
        flops={"bf16": tera_flops * 1e12},
        prefill=share,
        decode=share,
        host_bandwidth=(32 if name == "A100-PCIe-x16" else 16) * GIB,
        interconnect=link,
    )


def lengths(folder: Path, kind: str, model: str) -> tuple[list[int], list[int]]:
    """Return prompts and outputs, scaled to the means, of 2,000 or 500 requests."""
    means = (3500, 200) if (kind, model) == ("arxiv", "70B") else MEANS[kind]
    rows = list(_rows(folder, kind))
    if not rows:
        raise ScenarioError(f"{folder} must have sharegpt-lengths/*.csv, and has none; see --help")
    num = 2000 if kind == "sharegpt" else 500
    picked = Streams(1).generator(kind).choice(len(rows), num, replace=False)
    found = np.array([rows[n] for n in picked], dtype=float)
    scaled = np.maximum(1, np.rint(found * np.array(means) / found.mean(axis=0))).astype(int)
    limit = load_model(MODELS[model][0]).max_position_embeddings
    scaled[:, 0] = np.minimum(scaled[:, 0], limit - 1)
    return scaled[:, 0].tolist(), scaled[:, 1].tolist()


def _rows(folder: Path, kind: str) -> Iterator[tuple[int, int]]:
    name = "arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv"
    files = sorted(folder.glob("sharegpt-lengths/*.csv")) if kind == "sharegpt" else [folder / name]
    for file in files:
        with file.open(encoding="utf-8", newline="") as text:
            for row in csv.DictReader(text):
                yield int(row["num_prefill_tokens"]), int(row["num_decode_tokens"])


def simulated(gpu: GpuSpec, model: str, layout: Layout, work: Any, **options: Any) -> Result:
    """Simulate one client; work: prompts, answers, and when they come (seconds; 0 without it)."""
    client = llm_client(
        "llm",
        model=model,
        gpu=gpu,
        tensor_parallel_size=layout.tensor,
        pipeline_parallel_size=layout.pipeline,
        data_parallel_size=layout.data,
        kv_cache=KvCacheConfig(enable_prefix_caching=False, gpu_memory_utilization=0.9),
        **{"engine": OLDEST, "async_scheduling": False, "overhead": _overhead(0.0)} | options,
    )
    prompts, outputs, *times = work
    workload = Workload.from_lists(prompts, outputs, times[0] if times else [0.0] * len(prompts))
    return Simulation(clients=[client], workload=workload).run()


def _overhead(host: float) -> EngineOverhead:
    return EngineOverhead(step=host, sequence=0.0)


def throughput(result: Result) -> float:
    """Return requests per second, 0 where some were refused."""
    done = (result.requests["status"] == "finished").all()
    return float(result.summary["request_throughput"]) if done else 0.0


def chunked(
    gpu: GpuSpec,
    name: str,
    layout: Layout,
    work: Any,
    chunk: int,
    *,
    piggyback: float = 0.0,
    host: float = 0.0,
    v1: bool = False,
) -> Result:
    """Simulate a layout that stays, with chunks of prompts.

    host: seconds of the host before each step. v1: pipelines have one scheduler for all batches,
    and plan ahead, as in the newest version of vLLM here; else one for each batch, as in the 0.5.4
    that the paper compares with.
    """
    today = {"engine": "vllm-0.33", "async_scheduling": True}
    form = today if v1 else {"virtual_engines": layout.pipeline > 1}
    return simulated(
        gpu,
        name,
        layout,
        work,
        scheduler=ChunkedScheduler(max_num_seqs=256, max_num_batched_tokens=chunk),
        predictor=partial(SeesawPredictor, piggyback=piggyback),
        overhead=_overhead(host),
        **form,
    )


def best_static(gpu: GpuSpec, name: str, num_gpus: int, work: Any, **options: Any) -> Any:
    """Return (requests/s, layout, chunk) of the best layout that stays; options of `chunked`."""
    found = []
    for layout in layouts_of(load_model(name), num_gpus):
        for chunk in CHUNKS:
            try:
                rate = throughput(chunked(gpu, name, layout, work, chunk, **options))
            except ScenarioError:  # does not fit
                break
            found.append((rate, layout.label, chunk))
    return max(found)


def best_pair(gpu: GpuSpec, name: str, num_gpus: int, work: Any, num_pairs: int = 2) -> Any:
    """Return (requests/s, pair, transitions) of the best of the pairs that appendix A likes."""
    prompts, outputs = work[:2]
    mean = Lengths(float(np.mean(prompts)), float(np.mean(outputs)))
    ranked = rank_pairs(
        load_model(name), device_of(gpu, gpu_memory_utilization=0.9), num_gpus, mean, PairOptions()
    )
    found = []
    for pair in [each for each in ranked.pairs if not each.is_static][:num_pairs]:
        result = resharded(gpu, name, pair.prefill_layout, pair.decode_layout, work)
        found.append((throughput(result), pair.label, len(result.summary["layouts"]) - 1))
    return max(found)


def resharded(gpu: GpuSpec, name: str, before: Layout, after: Layout, work: Any, **options: Any):
    """Simulate a client that re-shards. options: of `Resharding`."""
    longest = max(4096, *work[0])
    return simulated(
        gpu,
        name,
        after,
        work,
        scheduler=ContinuousScheduler(max_num_seqs=256, max_num_batched_tokens=longest),
        predictor=SeesawPredictor,
        resharding=Resharding(
            tensor_parallel_size=before.tensor, pipeline_parallel_size=before.pipeline, **options
        ),
    )


def end_to_end(folder: Path, gpus: list[str], **options: Any) -> None:
    """Print the cases of figures 10 and 11, a JSON row each, and means; options of `chunked`."""
    for gpu_name in gpus:
        gpu, gains = table_1(gpu_name), []
        is_a100 = gpu_name.startswith("A100")
        models = ["70B", "LLaMA3-70B"] if is_a100 else ["15B", "34B", "70B"]
        for model in models:
            name, num_gpus = MODELS[model]
            for kind in MEANS:
                work = lengths(folder, kind, model)
                static = best_static(gpu, name, num_gpus, work, **options)
                pair = best_pair(gpu, name, num_gpus, work)
                gains.append(pair[0] / static[0])
                row = [gpu_name, model, kind, *static, *pair, round(gains[-1], 3)]
                print(json.dumps(row), flush=True)
        mean = float(np.exp(np.mean(np.log(gains))))
        print(gpu_name, "geometric mean", round(mean, 3), "paper", PAPER.get(gpu_name), flush=True)


def policies() -> Iterator[tuple[dict[str, Any], int, float, float]]:
    """Yield (options, transitions, answers a step, requests/s): figure 2, with smaller buffers too.

    34B on 8 A10, 500 requests of 3,000 and about 200 tokens.
    """
    gpu, before, after = table_1("A10"), Layout(1, 8), Layout(4, 2)
    outputs = Streams(2).generator("outputs").integers(50, 350, 500).tolist()
    work = [3000] * 500, outputs
    cases = [{"policy": "prefill_prioritised"}, {"policy": "threshold"}]
    cases += [{"policy": "decode_prioritised"}]
    cases += [{"running": each} for each in ("out", "drain", "pause")]
    cases += [{"running": each, "host_memory": 4.0 * GIB} for each in ("out", "drain", "pause")]
    for options in cases:
        result = resharded(gpu, "codellama-34b", before, after, work, **options)
        steps = result.steps[result.steps["num_decodes"] > 0]
        weights = steps["num_steps"]
        batch = float((steps["num_decodes"] * weights).sum() / weights.sum())
        changes = len(result.summary["layouts"]) - 1
        rate = throughput(result)
        yield options, changes, round(batch, 1), round(rate, 3)


def breakdown(folder: Path) -> dict[str, dict[str, float]]:
    """Return figure 12: seconds of a run by kind of step, 34B on 4 A10 and arXiv's 500 requests.

    Seconds of work on all ranks over their number; "idle" is what is left, bubbles of pipelines.
    TP4 and PP4 compute prompts and answers in steps of their own, TP2PP2 mixes them in the chunks
    that serve most.
    """
    gpu, name, work = table_1("A10"), MODELS["34B"][0], lengths(folder, "arxiv", "34B")
    whole = ContinuousScheduler(max_num_seqs=256, max_num_batched_tokens=16384)
    apart = {"scheduler": whole, "predictor": SeesawPredictor}
    mixed = [chunked(gpu, name, Layout(2, 2), work, size) for size in CHUNKS]
    runs = {
        "TP4": (simulated(gpu, name, Layout(4), work, **apart), (1,)),
        "PP4": (simulated(gpu, name, Layout(1, 4), work, **apart), (4,)),
        "TP2PP2, chunked": (max(mixed, key=throughput), (2,)),
        "PP4 -> TP4": (resharded(gpu, name, Layout(1, 4), Layout(4), work), (1, 4)),
    }
    return {label: _by_kind(result, ranks) for label, (result, ranks) in runs.items()}


def _by_kind(result: Result, ranks: tuple[int, ...]) -> dict[str, float]:
    """Return seconds by kind. ranks: of the layouts that a client has in turn."""
    steps = result.steps
    prompts, answers = steps["num_chunks"] > 0, steps["num_decodes"] > 0
    layout = steps["layout"] if "layout" in steps else 0 * steps["num_steps"]
    seconds = steps["busy"] / np.array(ranks)[layout.to_numpy() % len(ranks)]
    changes = result.summary.get("layouts", ())
    found = {
        "prefill": seconds[prompts & ~answers].sum(),
        "mixed": seconds[prompts & answers].sum(),
        "decode": seconds[~prompts & answers].sum(),
        "re-shard": sum(each["ready"] - each["start"] for each in changes),
    }
    found["idle"] = result.summary["duration"] - sum(found.values())
    return {kind: float(value) for kind, value in found.items()}


def links(folder: Path) -> None:
    """Print requests/s of a pair by links to the host: 34B on 8 A10, arXiv."""
    gpu, work = table_1("A10"), lengths(folder, "arxiv", "34B")
    pair = Layout(1, 8), Layout(4, 2)
    cases = [{"host_bandwidth": share * 16.0 * GIB} for share in (0.1, 0.2, 0.5, 1, 4, 50)]
    for options in cases:
        result = resharded(gpu, MODELS["34B"][0], *pair, work, **options)
        changes = len(result.summary["layouts"]) - 1
        print(json.dumps([options, changes, round(throughput(result), 3)]), flush=True)


def main() -> None:
    """Run the parts that the command line asks for, and print their rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", default="A10,L4,A100-PCIe,A100-PCIe-x16,A100-NVLink")
    parser.add_argument("--piggyback", type=float, default=0.0)
    parser.add_argument("--host-ms", type=float, default=0.0)
    parser.add_argument("--v1", action="store_true")
    parser.add_argument("--only", choices=["policies", "breakdown", "links", "cases"])
    given = parser.parse_args()
    if given.only in (None, "policies"):
        for row in policies():
            print(json.dumps(row), flush=True)
    if given.only in (None, "breakdown"):
        for label, seconds in breakdown(given.folder).items():
            print(label, {kind: round(value) for kind, value in seconds.items()}, flush=True)
    if given.only in (None, "links"):
        links(given.folder)
    if given.only in (None, "cases"):
        options = {"piggyback": given.piggyback, "host": given.host_ms / 1e3, "v1": given.v1}
        end_to_end(given.folder, given.cases.split(","), **options)


if __name__ == "__main__":
    main()
