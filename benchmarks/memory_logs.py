"""The KV cache of public vLLM logs beside ours: `python -m benchmarks.memory_logs`.

Each entry is a start of a real engine with vLLM's default limits on that GPU. Where a log has
tokens ("GPU KV cache size"), these count, of all groups of layers; else what is left for the cache
("Available KV cache memory"), in GiB a GPU. `terms`: the GiB follow from the weights, activations
and non-torch memory that the source gives. The share of gpt-oss-120b is not the 0.9 of its table,
with which its own terms leave nothing, but the 0.95 with which they sum up. The GPU of 24 GB is
not named in its thread; an RTX 4090 has 0.07 GiB more.
"""

from __future__ import annotations

from typing import NamedTuple

from mist_sim.clients import LlmClient
from mist_sim.clients.kv_cache import KvCacheConfig, kv_block_bytes
from mist_sim.clients.kv_cache.capacity import NULL_BLOCKS
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.models import load_model
from mist_sim.scenario import llm_client

_PLANNER, _PLANNER_LOG, _TERMS = "planner", "planner, log", "planner, terms"
_BENCHMARK = "benchmark"
_GIB = 2.0**30


class Log(NamedTuple):
    """One start of an engine.

    ranks: of tensor parallelism. share: gpu_memory_utilization. version: of vLLM, as logged, and
    engine: the entry of ours that is nearest. tokens, gib: what it logged, one of the two.
    """

    model: str
    gpu: str
    ranks: int
    share: float
    version: str
    engine: str
    tokens: int | None
    gib: float | None
    source: str

    @property
    def logged(self) -> float:
        """Tokens or GiB."""
        return float(self.tokens or self.gib or 0.0)


def _h100(model: str, ranks: int, version: str, engine: str, gib: float, source: str) -> Log:
    share = 0.9 if source == _BENCHMARK and model != "gpt-oss-120b" else 0.95
    return Log(model, "h100-sxm", ranks, share, version, engine, None, gib, source)


_NEW, _MID, _OLD = ("0.19", "vllm-0.19"), ("0.15", "vllm-0.14"), ("0.11", "vllm-0.12")
LOGS: tuple[Log, ...] = (
    Log("llama-3.1-8b", "h100-sxm", 1, 0.95, *_NEW, 476_016, None, _PLANNER_LOG),
    Log("qwen2.5-7b", "h100-sxm", 1, 0.95, *_NEW, 1_096_000, None, _PLANNER),
    Log("gpt-oss-20b", "h100-sxm", 2, 0.9, *_NEW, 2 * 2_591_776, None, _PLANNER_LOG),
    _h100("llama-3.1-8b", 2, *_NEW, 63.76, _TERMS),
    _h100("llama-3.1-8b", 4, *_NEW, 67.44, _TERMS),
    _h100("qwen2.5-7b", 2, *_NEW, 63.84, _TERMS),
    _h100("qwen2.5-7b", 4, *_NEW, 67.34, _TERMS),
    _h100("qwen3-8b", 1, *_NEW, 57.50, _TERMS),
    _h100("phi-4", 1, *_NEW, 46.06, _TERMS),
    _h100("qwen3-30b-a3b", 1, *_NEW, 15.40, _TERMS),
    _h100("mixtral-8x7b", 2, *_NEW, 28.45, _TERMS),
    _h100("qwen3-14b", 1, "0.18", "vllm-0.19", 45.23, _PLANNER),
    _h100("qwen3-14b", 1, *_MID, 41.94, _PLANNER),
    _h100("llama-3.1-8b", 1, *_OLD, 51.38, _BENCHMARK),
    _h100("qwen3-0.6b", 1, *_OLD, 64.45, _BENCHMARK),
    _h100("qwen3-32b", 1, *_OLD, 4.45, _BENCHMARK),
    _h100("qwen3-32b", 2, *_OLD, 34.49, _BENCHMARK),
    _h100("llama-3.1-70b-fp8", 2, *_OLD, 32.00, _BENCHMARK),
    _h100("gpt-oss-20b", 1, *_OLD, 50.28, _BENCHMARK),
    _h100("gpt-oss-120b", 1, *_OLD, 3.33, _BENCHMARK),
    Log("gpt-oss-20b", "a100-80gb-sxm", 1, 0.65, *_NEW, None, 36.56, "blog"),
    Log(
        *("qwen3-8b", "rtx-4090", 1, 0.9764, "0.21", "vllm-0.24", 46_368, None),
        "LMCache#3430",
    ),
)


def engine(log: Log) -> LlmClient:
    """Return the engine of a log as it is simulated."""
    return llm_client(
        "logged",
        model=log.model,
        gpu=log.gpu,
        tensor_parallel_size=log.ranks,
        engine=log.engine,
        kv_cache=KvCacheConfig(gpu_memory_utilization=log.share),
    )


def computed(log: Log) -> float:
    """Return what a log should have said, in its unit."""
    client = engine(log)
    blocks, cache = client.num_gpu_blocks + NULL_BLOCKS, client.config.kv_cache
    if log.tokens:
        return float(blocks * cache.block_size)
    cluster = Cluster(load_gpu(log.gpu), log.ranks)
    share = kv_block_bytes(cache, load_model(log.model), cluster) / log.ranks
    return blocks * share / _GIB


def table() -> list[str]:
    """Return the comparison as lines of Markdown."""
    head = "| model, GPUs | vLLM, share | logged | here | error | source |"
    lines = [head, "|---|---|---|---|---|---|"]
    for log in LOGS:
        found = computed(log)
        unit = ",.0f" if log.tokens else ".2f"
        name = "tokens" if log.tokens else "GiB"
        lines.append(
            f"| {log.model}, {log.ranks} x {log.gpu} | {log.version}, {log.share:g} "
            f"| {log.logged:{unit}} {name} | {found:{unit}} | {found / log.logged - 1:+.1%} "
            f"| {log.source} |"
        )
    return lines


def main() -> None:
    """Print the comparison."""
    print("\n".join(table()))


if __name__ == "__main__":
    main()
