"""Prefix caching with sliding windows and with drafts: the hits that vLLM's rule gives.

One request at a time.
"""

from typing import Any

import pytest

from mist_sim import ChunkedScheduler, Simulation, Workload
from mist_sim.core.request import Content
from mist_sim.models.kv_groups import KvGroups
from mist_sim.models.speculative import METHODS, SpeculativeConfig
from mist_sim.scenario.engines.versions import VERSIONS
from tests.reference.comparison import OfJobs
from tests.reference.engines import llm_engine
from tests.reference.predictors import ConstantPredictor
from tests.reference.stepwise import Job

BLOCK_SIZE = 16
GPT_OSS = KvGroups(layers_per_group=18, num_window_groups=1, sliding_window=128)
GEMMA = KvGroups(layers_per_group=10, num_window_groups=6, sliding_window=1024)
MISTRAL = KvGroups(layers_per_group=32, num_full_groups=0, num_window_groups=1, sliding_window=4096)


def hit(
    num_tokens: int,
    full: set[int],
    window: set[int],
    groups: KvGroups | None,
    method: str = "",
    version: str = "0.24",
) -> int:
    """Return the cached tokens of a prompt, as vLLM's hybrid coordinator finds them.

    full, window: positions of its blocks that are cached in the groups of either kind.
    method: who drafts. With `mtp`, `eagle`, `eagle3` (`use_eagle`) every kind of group looks one
    block further than it gives: the groups with full attention drop the last one that they find,
    then those with windows look for one more in a row, from one behind that on, and drop it. In
    0.19 they look from that one on, and in 0.14 again and again, until nothing is left.
    """
    most = (num_tokens - 1) // BLOCK_SIZE
    drops = method in ("mtp", "eagle", "eagle3")
    end = most
    if groups is None or groups.num_full_groups:
        end = next((k for k in range(most) if k not in full), most)
        end = max(0, end - drops)
    if groups is None:
        return end * BLOCK_SIZE
    if drops and groups.num_full_groups and version == "0.14":
        return 0
    needed = -(-(groups.sliding_window - 1) // BLOCK_SIZE) + drops
    contiguous, further = 0, drops if version == "0.24" else 0
    for position in reversed(range(min(most, end + further))):
        contiguous = contiguous + 1 if position in window else 0
        if contiguous == needed:
            return (position + needed - drops) * BLOCK_SIZE
    return max(0, contiguous - drops) * BLOCK_SIZE


def last_hit(
    groups: KvGroups | None,
    jobs: list[Job],
    num_blocks: int = 20_000,
    method: str = "",
    version: str = "0.24",
) -> int:
    """Return the cached tokens of the last of some requests, each after the one before it.

    method: who drafts one token a step; nobody by default.
    """
    drafting: dict[str, Any] = {"num_speculative_tokens": 1, "acceptance_rate": 0.5}
    if method == "draft_model":
        drafting["model"] = "llama-3.2-1b"
    client = llm_engine(
        "llm",
        scheduler=ChunkedScheduler(max_num_batched_tokens=512),
        predictor=ConstantPredictor(0.01),
        num_gpu_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        kv_groups=groups,
        hybrid_drops=VERSIONS[f"vllm-{version}"].rules.hybrid_drops,
        speculative_config=SpeculativeConfig(method=method, **drafting) if method else None,
    )
    plain = Workload.from_lists(
        [job.num_prompt_tokens for job in jobs],
        [job.num_output_tokens for job in jobs],
        [job.arrival_time for job in jobs],
    )
    workload = OfJobs(plain.source, plain.arrivals, jobs=tuple(jobs))
    result = Simulation(clients=[client], workload=workload).run()
    return int(result.requests["num_cached_tokens"].iloc[-1])


def job(number: int, prompt: int, output: int, content: Content) -> Job:
    return Job(1e4 * number, prompt, output, content=content)


def blocks(num_tokens: int) -> set[int]:
    return set(range(num_tokens // BLOCK_SIZE))


def test_windows_whose_blocks_are_gone_shorten_the_hit():
    """A request in between takes pages: of what windows left first, the last block's first.

    The pool has 200 pages, of which the 80 blocks of the prompt take 160. Before its pieces behind
    tokens 512 and 1,024 its window returns blocks 0 to 23 and 24 to 55, so that 23 waits first
    behind the 40 pages that were never used. A request of 27 blocks takes these and 14 more: 23
    down to 10 are lost.
    """
    num_tokens = 80 * BLOCK_SIZE
    jobs = [
        job(0, num_tokens, 1, ((0, num_tokens),)),
        job(1, 27 * BLOCK_SIZE, 1, ()),
        job(2, 24 * BLOCK_SIZE, 1, ((0, 24 * BLOCK_SIZE),)),
    ]
    window = blocks(num_tokens) - set(range(10, 24))
    expected = hit(jobs[2].num_prompt_tokens, blocks(num_tokens), window, GPT_OSS)
    assert last_hit(GPT_OSS, jobs, 200) == expected == 10 * BLOCK_SIZE


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("groups", [None, GPT_OSS, GEMMA, MISTRAL])
@pytest.mark.parametrize("num_tokens", [1, 16, 17, 32, 33, 130, 5_000, 5_008, 5_009])
def test_the_same_prompt_again_with_drafts(groups, num_tokens, method):
    """A layer that drafts has the block before the end computed again; other methods do not."""
    jobs = [job(k, num_tokens, 1, ((0, num_tokens),)) for k in range(2)]
    cached = blocks(num_tokens)
    expected = hit(num_tokens, cached, cached, groups, method)
    assert last_hit(groups, jobs, method=method) == expected
    most = (num_tokens - 1) // BLOCK_SIZE
    drops = 1 if method in ("mtp", "eagle", "eagle3") else 0
    assert expected == max(0, most - drops) * BLOCK_SIZE


@pytest.mark.parametrize("version", ["0.14", "0.19", "0.24"])
@pytest.mark.parametrize("groups", [GPT_OSS, GEMMA])
@pytest.mark.parametrize("num_tokens", [17, 33, 130, 5_008])
def test_versions_lose_more_or_less_where_layer_drafts(groups, num_tokens, version):
    jobs = [job(k, num_tokens, 1, ((0, num_tokens),)) for k in range(2)]
    cached = blocks(num_tokens)
    expected = hit(num_tokens, cached, cached, groups, "eagle", version)
    assert last_hit(groups, jobs, method="eagle", version=version) == expected
    most = (num_tokens - 1) // BLOCK_SIZE
    lost = {"0.14": most, "0.19": 2, "0.24": 1}[version]
    assert expected == max(0, most - lost) * BLOCK_SIZE


@pytest.mark.parametrize("method", ["draft_model", "mtp", "eagle"])
def test_windows_need_one_block_more_with_drafts(method):
    """As without drafts, but behind the end of the prompt a block is held for what is drafted.

    So the windows lack blocks 8 to 23. Of 33 blocks, 24 to 32 are the nine in a row that a drafting
    layer asks for, so 32 are found. Of 32 blocks eight are left, enough without such a layer; with
    it the first eight are found less one.
    """
    num_tokens = 80 * BLOCK_SIZE
    window = blocks(num_tokens) - set(range(8, 24))
    drops = method != "draft_model"
    for most, found in ((33, 33 - drops), (32, 7 if drops else 32)):
        length = most * BLOCK_SIZE + 1
        jobs = [
            job(0, num_tokens, 1, ((0, num_tokens),)),
            job(1, 27 * BLOCK_SIZE, 1, ()),
            job(2, length, 1, ((0, length),)),
        ]
        expected = hit(length, blocks(num_tokens), window, GPT_OSS, method)
        assert last_hit(GPT_OSS, jobs, 200, method) == expected == found * BLOCK_SIZE
