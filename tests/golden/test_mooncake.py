"""Prefix caching on Mooncake's trace: hits are the reuse that can be read off the file."""

import json
from dataclasses import dataclass

import pytest

from mist_sim import (
    ChunkedScheduler,
    ClosedLoop,
    KvCacheConfig,
    MooncakeReader,
    Result,
    Simulation,
    TraceArrivals,
    Workload,
    llm_client,
)
from mist_sim.clients.kv_cache import CacheTier
from mist_sim.eviction import EVICTIONS, Eviction
from mist_sim.models import load_model
from mist_sim.models.kv_groups import KvGroups
from tests.conftest import ROOT
from tests.reference.engines import llm_engine
from tests.reference.eviction import RANKS, PlainCache, by_cost
from tests.reference.predictors import ConstantPredictor

TRACE = "traces/mooncake_synthetic_trace.jsonl"
BLOCK_SIZE = 16
ALL = 2_000_000  # blocks; more than the trace has


def replay(
    path,
    arrivals,
    num_blocks: int,
    tiers: tuple[CacheTier, ...] = (),
    groups: KvGroups | None = None,
) -> Result:
    client = llm_engine(
        "llm",
        scheduler=ChunkedScheduler(max_num_batched_tokens=8192),
        predictor=ConstantPredictor(0.01),
        num_gpu_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        cache_tiers=tiers,
        kv_groups=groups,
    )
    workload = Workload(MooncakeReader(path=str(path)), arrivals)
    return Simulation(clients=[client], workload=workload).run()


def reuse(path) -> list[int]:
    """Tokens of every prompt in full blocks whose ids were all seen before, less the last one."""
    seen: set[int] = set()
    tokens = []
    for line in path.read_text().splitlines():
        row = json.loads(line)
        known = 0
        for number in row["hash_ids"]:
            if number not in seen:
                break
            known = min(known + 512, row["input_length"])
        most = min(known, row["input_length"] - 1)
        tokens.append(most // BLOCK_SIZE * BLOCK_SIZE)
        seen.update(row["hash_ids"])
    return tokens


@pytest.mark.parametrize("arrivals", [ClosedLoop(concurrency=1), TraceArrivals()])
def test_hits_are_the_reuse_in_the_file_when_the_cache_holds_all(arrivals, shared):
    """One at a time, and at the trace's times: prompts are computed in order of arrival."""
    path = shared(TRACE)
    result = replay(path, arrivals, ALL)
    assert result.requests["num_cached_tokens"].tolist() == reuse(path)
    assert sum(reuse(path)) == 39_850_800
    rate = result.summary["prefix_cache_hit_rate"]
    assert rate == result.clients["prefix_cache_hit_rate"].item() == 39_850_800 / 61_194_628


@pytest.fixture
def beginning(shared, tmp_path):
    """Return the path of a file with the first quarter of the trace."""
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(shared(TRACE).read_text().splitlines()[:1_000]))
    return path


@pytest.mark.parametrize("arrivals", [ClosedLoop(concurrency=1), TraceArrivals()])
def test_windows_find_the_same_when_cache_holds_all(arrivals, beginning):
    """Every window block of a prompt was in memory once, and stays when the window has left it."""
    groups = load_model("gpt-oss-120b").kv_groups
    result = replay(beginning, arrivals, 2 * ALL, groups=groups)
    assert result.requests["num_cached_tokens"].tolist() == reuse(beginning)


@dataclass
class CostAware(Eviction):
    """By uses, age and cost, as `by_cost` ranks blocks."""

    age: float = 0.0

    def rank(self, blocks):
        return self.age + (1 + blocks.num_uses) / (1 + blocks.start), blocks.used

    def evicted(self, blocks, rank):
        self.age = max(self.age, rank[0])


@dataclass(frozen=True, slots=True)
class Apart(Workload):
    """A workload whose blocks are spans of their own, as the file names them."""

    def requests(self, streams, in_runs=True):
        return Workload.requests(self, streams, in_runs=False)


def hits_of(path, num_blocks, eviction):
    """Return the tokens found of each prompt, one request at a time, in blocks of 512 tokens."""
    client = llm_engine(
        "llm",
        scheduler=ChunkedScheduler(max_num_batched_tokens=8192),
        predictor=ConstantPredictor(0.01),
        num_gpu_blocks=num_blocks,
        block_size=512,
        eviction=eviction,
    )
    workload = Apart(MooncakeReader(path=str(path)), ClosedLoop(concurrency=1))
    result = Simulation(clients=[client], workload=workload).run()
    return result.requests["num_cached_tokens"].tolist()


def hits_by_hand(path, num_blocks, rank, blanks_first=False):
    """Return the same of a plain loop over the file.

    blanks_first: whether blocks of answers, which nobody can find, go before all others; else they
        wait their turn, as in vLLM before 0.9 (`EngineRules.uncached_first`).
    """
    plain, found = PlainCache(num_blocks, rank), []
    for row in map(json.loads, path.read_text().splitlines()):
        computed = row["input_length"] + row["output_length"] - 1
        wanted = row["hash_ids"][: row["input_length"] // 512]
        number = -(-computed // 512) - len(wanted)
        most = (row["input_length"] - 1) // 512
        blank = (0, number) if blanks_first else (number, 0)
        found.append(512 * min(most, plain.serve(wanted, *blank)))
    return found


def both(name, path, num_blocks):
    """Return the tokens found with an order of eviction by the engine and by the plain loop."""
    if name == "by_cost":
        found = hits_of(path, num_blocks, CostAware())
        return found, hits_by_hand(path, num_blocks, by_cost, blanks_first=True)
    found = hits_of(path, num_blocks, EVICTIONS[name]())
    return found, hits_by_hand(path, num_blocks, RANKS[name])


@pytest.mark.parametrize(
    ("name", "num_blocks", "share"),
    [
        ("lru", 2_000, 0.1485),
        ("lfu", 2_000, 0.1150),
        ("by_cost", 2_000, 0.1272),
        ("lru", 8_000, 0.3763),
        ("lfu", 8_000, 0.3133),
        ("by_cost", 8_000, 0.3246),
    ],
)
def test_hit_rates_of_the_whole_trace(name, num_blocks, share, shared, tmp_path):
    """But for prompts of whole blocks, the last of which an engine computes again."""
    path, rows = tmp_path / "trace.jsonl", shared(TRACE).read_text().splitlines()
    rows = [row for row in rows if json.loads(row)["input_length"] % 512]
    path.write_text("\n".join(rows))
    found, expected = both(name, path, num_blocks)
    assert found == expected
    total = sum(json.loads(row)["input_length"] for row in rows)
    assert sum(found) / total == pytest.approx(share, abs=1e-4)


ONE, TIMES = ClosedLoop(concurrency=1), TraceArrivals()
ROWS = (
    ("one at a time, room for all", ONE, 1, ALL),
    ("its own times, room for all", TIMES, 1, ALL),
    ("one at a time, 277,231 blocks", ONE, 1, None),
    ("its own times, 277,231 blocks", TIMES, 1, None),
    ("4 engines of 2 GPUs in turn, room for all", TIMES, 4, ALL),
    ("4 engines of 2 GPUs in turn, 63,450 blocks each", TIMES, 4, None),
)


def rows(path, chosen=ROWS):
    """Yield (name, figures) of the table in docs/background/memory.md."""
    for name, arrivals, num_clients, num_blocks in chosen:
        clients = [
            llm_client(
                f"llm{number}",
                model="llama-3.1-8b",
                gpu="h100-sxm",
                tensor_parallel_size=8 // num_clients,
                scheduler=ChunkedScheduler(max_num_batched_tokens=8192),
                kv_cache=KvCacheConfig(num_gpu_blocks_override=num_blocks),
                max_model_len=200_000,
            )
            for number in range(num_clients)
        ]
        workload = Workload(MooncakeReader(path=str(path)), arrivals)
        summary = Simulation(clients=clients, workload=workload).run().summary
        ttft = f"{summary['mean_ttft_ms']:.0f} | {summary['p99_ttft_ms']:,.0f}"
        yield name, f"{summary['prefix_cache_hit_rate']:.3f} | {ttft}"


def one_row(path):
    return rows(path, ROWS[3:4])


@pytest.mark.parametrize(
    "table",
    [pytest.param(one_row, marks=pytest.mark.page), pytest.param(rows, marks=pytest.mark.deep)],
)
def test_the_tables_of_the_page(shared, table):
    page = (ROOT / "docs/background/memory.md").read_text("utf-8")
    missing = [line for line in map(as_line, table(shared(TRACE))) if line not in page]
    assert not missing, "\n".join(missing)


def test_host_memory_that_writes_back_adds_to_gpu(beginning):
    """One that writes through has what the GPU has already, and is smaller."""
    rates = []
    for tiers in (
        (),
        (CacheTier("cpu", 15_000, 0.0, 0.0),),
        (CacheTier("cpu", 15_000, 0.0, 0.0, writes_back=True),),
    ):
        result = replay(beginning, ClosedLoop(concurrency=1), 30_000, tiers)
        rates.append(result.summary["prefix_cache_hit_rate"])
    none, through, back = rates
    assert none == through < back


def as_line(row) -> str:
    name, figures = row
    return f"| {name} | {figures} |"
