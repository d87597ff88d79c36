"""Measured power of real engines, with the demand of their steps on the GPUs.

Readers of ML.ENERGY's runs (H100, B200), Argonne's and Splitwise's (A100, H100). Where a source
leaves out the prompt lengths, they are assumed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.kernel_choice import KernelChoice, deployment_of, has_tuned_tiles
from mist_sim.hardware.machine import load_of
from mist_sim.hardware.power import Array, Demand, Load
from mist_sim.hardware.work import StepCounts, step_demand
from mist_sim.inputs import read_csv, read_parquet
from mist_sim.models import attention_backends, load_model, moe_backends
from mist_sim.models.moe_backends import MoeBackend, expert_format, rows_computed
from mist_sim.models.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerRun:
    """One measured run: the durations of its phases, their demand on a GPU, and the mean watts.

    model, setting: groups that a fit may leave out: the model's family, and an architecture with
        its weight format, parallelism and engine.
    spec, cluster, load: the model, GPUs and workload.
    batch: sequences decoded together. context: mean cached tokens of each.
    prompt, joining: tokens of a prompt, and prompts that join a step.
    seconds: of each phase, such as the prompt and its tokens. demand: on a GPU, by phase.
    waits: seconds without work that the mean holds as well.
    watts: of one GPU, mean over the phases and that time.
    kernels: the back ends that the engine took.
    """

    source: str
    model: str
    setting: str
    spec: ModelSpec
    cluster: Cluster
    load: Load
    batch: float
    context: float
    prompt: float
    joining: float
    seconds: Array
    demand: Demand
    waits: float = 0.0
    watts: float
    kernels: KernelChoice = field(default_factory=KernelChoice)


_BLOCKS = "fp8, scales of blocks"  # as Qwen's checkpoints of 2025 store it
# Where a model of ML.ENERGY is in the catalog, and how its weights are stored instead.
MLENERGY_MODELS: Mapping[str, tuple[str, str | None]] = {
    "Qwen/Qwen3-8B": ("qwen3-8b", None),
    "Qwen/Qwen3-14B": ("qwen3-14b", None),
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": ("qwen3-30b-a3b", None),
    "Qwen/Qwen3-235B-A22B-Instruct-2507": ("qwen3-235b-a22b", None),
    "Qwen/Qwen3-235B-A22B-Thinking-2507": ("qwen3-235b-a22b", None),
    "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8": ("qwen3-235b-a22b-fp8", None),
    "Qwen/Qwen3-235B-A22B-Thinking-2507-FP8": ("qwen3-235b-a22b-fp8", None),
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": ("qwen3-coder-480b-a35b", None),
    "Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8": ("qwen3-coder-480b-a35b", _BLOCKS),
    "deepseek-ai/DeepSeek-R1-0528": ("deepseek-v3", None),
    "deepseek-ai/DeepSeek-V3.1": ("deepseek-v3", None),
    "google/gemma-3-12b-it": ("gemma-3-12b", None),
    "google/gemma-3-27b-it": ("gemma-3-27b", None),
    "meta-llama/Llama-3.1-8B-Instruct": ("llama-3.1-8b", None),
    "meta-llama/Llama-3.1-405B-Instruct": ("llama-3.1-405b", None),
    "meta-llama/Llama-3.1-405B-Instruct-FP8": ("llama-3.1-405b", "fp8"),
    "openai/gpt-oss-20b": ("gpt-oss-20b", None),
}
# Tokens of a prompt by task. The data leave them out: short chats, GPQA's 200 to 300, and for code
# to fill in what the time of prompts beside the median ITL says (20 to 35 ms each for 3.3 billion
# active parameters on one H100).
MLENERGY_PROMPTS = {"lm-arena-chat": 150.0, "gpqa": 250.0, "sourcegraph-fim": 1500.0}
# Back ends that the benchmark asked for; else vLLM's choice. Source: ml-energy/benchmark,
# configs/vllm/gpqa/*/B200/monolithic.env.yaml (VLLM_USE_FLASHINFER_MOE_FP8, ..._MXFP4_MXFP8).
_MLENERGY_ASKED: Mapping[tuple[str, str], MoeBackend] = {
    ("deepseek-v3", "b200"): "flashinfer_trtllm",
    ("gpt-oss-20b", "b200"): "flashinfer_trtllm_afp8",
}
_MLENERGY_GPUS = {"H100": "h100-sxm", "B200": "b200"}

_SPLITWISE_MODELS = {"llama2-70b": "llama-2-70b", "bloom-176b": "bloom-176b"}
_SPLITWISE_WATTS = 400.0  # the thermal design power of which the file holds shares
# Means of three settings with prompts of 8,192 tokens, 0.17 to 0.18, do not reflect their work.
_SPLITWISE_IDLE = 0.25

_ARGONNE_MODELS = {
    "meta-llama/Llama-2-7b-hf": "llama-2-7b",
    "meta-llama/Meta-Llama-3-8B": "llama-3-8b",
}
_ARGONNE_GPUS = {"Nvidia A100 GPU": "a100-40gb-sxm", "Nvidia H100 GPU": "h100-sxm"}
_MILLIWATTS = 1e-3
_ARGONNE_WAIT = 1.0  # s: `time.sleep(1)` before the probe stops (vLLM/A100/.../benchmark_power.py)
_SHARE_OF_MEMORY = 0.9  # vLLM's and TensorRT-LLM's default: weights and KV cache
_SHORTEST_KERNEL = 0.02  # ms


def mlenergy_runs(path: Path) -> list[PowerRun]:
    """Return ML.ENERGY's runs of models whose architecture is simulated; one phase each.

    A step is batch / throughput seconds, which counts the prompts that join; its work is that of
    the decodes at their mean context, and of the prompts that end answers make room for.
    """
    rows = read_csv(path).itertuples()
    return [_mlenergy_run(row) for row in rows if row.model_id in MLENERGY_MODELS]


def _mlenergy_run(row: Any) -> PowerRun:
    name, stored_as = MLENERGY_MODELS[row.model_id]
    model = mlenergy_model(row.model_id)
    replicas, num_gpus = int(row.dp), int(row.num_gpus)
    experts_apart = int(row.ep) > 1 and model.moe is not None
    cluster = Cluster(
        load_gpu(_MLENERGY_GPUS[row.gpu_model]),
        tensor_parallel_size=num_gpus // replicas,
        data_parallel_size=replicas,
        enable_expert_parallel=experts_apart,
    )
    kernels = mlenergy_kernels(model, cluster)
    prompt, batch = MLENERGY_PROMPTS[row.task], row.avg_batch_size / replicas
    joining = batch / row.avg_output_len  # prompts a step
    context = prompt + row.avg_output_len / 2
    counts = _counts(
        prefill=(prompt * joining, prompt * joining, prompt * joining * prompt / 2),
        samples=batch + joining,
        decodes=batch,
        context=context,
    )
    return PowerRun(
        source="ML.ENERGY",
        model=name.removesuffix("-fp8"),
        setting=f"{name} {'fp8' if stored_as else ''} tp{row.tp} ep{row.ep} dp{row.dp}",
        spec=model,
        cluster=cluster,
        load=load_of(model, cluster),
        batch=row.avg_batch_size,
        context=context,
        prompt=prompt,
        joining=joining,
        seconds=np.array([row.avg_batch_size / row.output_throughput_tok_s]),
        demand=step_demand(model, cluster, counts, rows_computed(kernels.experts)),
        watts=row.avg_power_w / num_gpus,
        kernels=kernels,
    )


def mlenergy_model(model_id: str) -> ModelSpec:
    """Return a model of ML.ENERGY as its checkpoint stores it."""
    name, stored_as = MLENERGY_MODELS[model_id]
    model = load_model(name)
    if stored_as == _BLOCKS:
        return replace(model, quantization=load_model("qwen3-235b-a22b-fp8").quantization)
    return model.with_dtypes(weights=stored_as, kv_cache=None)


def mlenergy_kernels(model: ModelSpec, cluster: Cluster) -> KernelChoice:
    """Return the kernels of ML.ENERGY's runs: vLLM 0.11 chooses as 0.12."""
    choices = moe_backends.OF_0_12.get(expert_format(model))
    asked = _MLENERGY_ASKED.get((model.name, cluster.gpu.name))
    experts = asked or (choices.of(deployment_of(model, cluster)) if choices else None)
    return KernelChoice(
        experts=experts,
        attention=attention_backends.OF_0_12.of(model, cluster.gpu.architecture),
        has_tuned_tiles=has_tuned_tiles(experts, model, cluster, 11.1),
    )


def splitwise_runs(path: Path) -> list[PowerRun]:
    """Return the settings with measured power, all on A100: prompts, then tokens; mean rows."""
    rows = read_csv(path)
    rows = rows[rows["average_power"] > _SPLITWISE_IDLE]
    keys = ["model", "tensor_parallel", "prompt_size", "batch_size", "token_size"]
    means = rows.groupby(keys)[["prompt_time", "e2e_time", "average_power"]].mean().reset_index()
    found = []
    for row in means.to_dict("records"):
        model = load_model(_SPLITWISE_MODELS[row["model"]])
        size = int(row["tensor_parallel"])
        cluster = Cluster(load_gpu("a100-80gb-sxm"), tensor_parallel_size=size)
        work = (row["prompt_size"], row["batch_size"], row["token_size"])
        seconds = np.array([row["prompt_time"], row["e2e_time"] - row["prompt_time"]]) * 1e-3
        watts = row["average_power"] * _SPLITWISE_WATTS
        found.append(_batch_run("Splitwise", model, cluster, work, seconds, watts))
    return found


def argonne_runs(path: Path) -> list[PowerRun]:
    """Return static batches on one A100 or H100 with vLLM or TensorRT-LLM, whole runs."""
    found = []
    for row in read_csv(path).to_dict("records"):
        framework = row["Framework"]
        if row["Hardware"] not in _ARGONNE_GPUS or framework not in ("vLLM", "TensorRT-LLM"):
            continue
        model = load_model(_ARGONNE_MODELS[row["Model"]])
        cluster = Cluster(load_gpu(_ARGONNE_GPUS[row["Hardware"]]))
        length = row["Input Output Length"]
        work = (length, row["Batch Size"], length)
        seconds = np.array([0.0, row["Latency"]])
        watts = row["avg_power"] * _MILLIWATTS
        run = _batch_run(f"Argonne, {framework}", model, cluster, work, seconds, watts)
        found.append(replace(run, waits=_ARGONNE_WAIT))
    return found


def _batch_run(
    source: str,
    model: ModelSpec,
    cluster: Cluster,
    work: tuple[float, float, float],
    seconds: Array,
    watts: float,
) -> PowerRun:
    """Return a run of one batch: prompts at once, then their tokens. work: prompt, batch, tokens.

    Sequences beyond those that the KV cache holds decode later: more steps read the weights. Where
    the prompt's seconds are 0, they were not measured apart: both are one phase.
    """
    prompt, batch, tokens = work
    context = prompt + tokens / 2
    together = min(batch, _sequences(model, cluster, context))
    steps = (tokens - 1) * batch / together
    new = prompt * batch
    prompts = step_demand(
        model, cluster, _counts((new, new, new * (prompt + 1) / 2), samples=batch)
    )
    decodes = step_demand(
        model,
        cluster,
        _counts((0, 0, 0), samples=together, decodes=together, context=context, steps=steps),
    )
    demand = Demand(
        np.concatenate([prompts.compute, decodes.compute]),
        np.concatenate([prompts.memory, decodes.memory]),
    )
    if not seconds[0]:
        seconds = seconds[1:]
        demand = Demand(demand.compute.sum(keepdims=True), demand.memory.sum(keepdims=True))
    return PowerRun(
        source=source,
        model=model.name,
        setting=f"{model.name} tp{cluster.tensor_parallel_size} {source}",
        spec=model,
        cluster=cluster,
        load=load_of(model, cluster),
        batch=batch,
        context=context,
        prompt=prompt,
        joining=0.0,
        seconds=seconds,
        demand=demand,
        watts=watts,
    )


def _sequences(model: ModelSpec, cluster: Cluster, context: float) -> float:
    """Return how many sequences of a mean context the KV cache holds."""
    ranks = cluster.tensor_parallel_size
    weights = model.weight_bytes_per_rank(ranks, cluster.expert_parallel_size)
    free = cluster.gpu.memory * _SHARE_OF_MEMORY - weights
    return free / (context * model.kv_bytes_per_token_per_rank(ranks))


@dataclass(frozen=True, slots=True)
class Kernels:
    """Matrix products that repeat alone on one GPU; arrays of one item a shape.

    weights: inputs times outputs, by which shapes are split.
    """

    gpu: str
    weights: Array
    seconds: Array
    demand: Demand
    watts: Array


def kernel_power(folder: Path, gpu: str) -> Kernels:
    """Return aiconfigurator's 16-bit matrix products of a GPU ("h200", "b200") with their watts.

    Products below 20 us are left out: the gaps between them are longer.
    """
    rows, _ = read_parquet(folder / f"{gpu}_sxm__vllm0.22__gemm_perf.parquet")
    rows = rows[(rows["gemm_dtype"] == "bfloat16") & (rows["latency"] >= _SHORTEST_KERNEL)]
    m, n, k = (rows[name].to_numpy(float) for name in "mnk")
    spec = load_gpu(gpu)
    moved = 2 * (m * k + n * k + m * n)
    return Kernels(
        gpu,
        n * k,
        rows["latency"].to_numpy(float) * 1e-3,
        Demand(2 * m * n * k / spec.flops["bf16"], moved / spec.memory_bandwidth),
        rows["power"].to_numpy(float),
    )


def _counts(
    prefill: tuple[float, float, float],
    samples: float,
    decodes: float = 0.0,
    context: float = 0.0,
    steps: float = 1.0,
) -> StepCounts:
    """Return the counts of one run. prefill: new tokens a step, keys and pairs of the run."""
    new, keys, pairs = (np.array([float(value)]) for value in prefill)
    return StepCounts(
        num_steps=np.array([float(steps)]),
        num_prefill_tokens=new,
        num_samples=np.array([float(samples)]),
        num_queries=np.array([float(decodes)]),
        prefill_keys=keys,
        prefill_pairs=pairs,
        num_decodes=np.array([float(decodes)]),
        decode_keys=np.array([float(steps * decodes * context)]),
    )
