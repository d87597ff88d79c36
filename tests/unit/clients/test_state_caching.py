"""Prefix caching of models whose layers keep a state: modes by version, pieces, pages, errors."""

import pytest

import mist_sim as mist
from mist_sim import KvCacheConfig, Simulation, Workload
from mist_sim.clients.kv_cache.pages import (
    PagePool,
    PageRules,
    PageTable,
    Piece,
    StatePages,
    StateRules,
    end_of,
    saved_block,
)
from mist_sim.core.request import Request
from mist_sim.models.kv_groups import KvGroups
from mist_sim.scenario.from_vllm.commands import from_vllm
from tests.refusals import refused

GDN, MAMBA = "qwen3.5-35b-a3b", "nemotron-3-nano-30b-a3b-bf16"
MTP = mist.SpeculativeConfig(method="mtp", num_speculative_tokens=2, acceptance_rate=0.8)
V0_19 = StateRules(waits=True)
V0_24 = StateRules(waits=True, shared_stop="at_first")
V0_33 = StateRules(waits=True, shared_stop="always", goes_on=True, most=512)


def client_of(model=GDN, gpu="h200", engine=None, mode=None, **options):
    kv_cache = options.pop("kv_cache", KvCacheConfig(mamba_cache_mode=mode))
    return mist.llm_client("llm", model=model, gpu=gpu, engine=engine, kv_cache=kv_cache, **options)


@pytest.mark.parametrize(
    ("model", "gpu", "engine", "asked", "mode", "size", "inside"),
    [
        (GDN, "h200", None, None, "align", 1_088, True),  # FlashInfer saves every 64 tokens
        (GDN, "a100-80gb-sxm", None, None, "align", 1_056, False),
        (GDN, "h200", None, "none", "none", 1_056, False),
        (GDN, "h200", "vllm-0.24", None, "none", 1_056, False),
        (GDN, "h200", "vllm-0.24", "align", "align", 1_056, False),
        (MAMBA, "a100-80gb-sxm", None, None, "align", 2_096, True),
        (MAMBA, "h200", "vllm-0.14", "all", "all", 2_176, False),  # chunks of 128 tokens
        (MAMBA, "h200", "vllm-0.24", "align", "align", 2_096, False),
    ],
)
def test_modes_by_version_model_and_gpu(model, gpu, engine, asked, mode, size, inside):
    client = client_of(model, gpu, engine, asked)
    config, groups = client.config.kv_cache, client.memory.groups
    assert (config.mamba_cache_mode, config.block_size) == (mode, size)
    assert config.enable_prefix_caching is (mode != "none")
    assert (groups.state_cache, groups.saves_inside) == (mode, inside)


test_what_does_not_go_together = refused(
    lambda options: client_of(**options),
    ({"model": "llama-3.1-8b", "mode": "align"}, "must be left out for llama-3.1-8b"),
    ({"engine": "vllm-0.24", "mode": "all"}, "must be none or align for qwen3.5-35b-a3b"),
    ({"mode": "align", "scheduler": mist.ContinuousScheduler()}, "must be none with a scheduler"),
    (
        {"mode": "align", "scheduler": mist.ChunkedScheduler(preemption="swap")},
        "must be none where preempted requests are swapped",
    ),
    (
        {"engine": "vllm-0.28", "mode": "align", "speculative_config": MTP},
        "must be none with drafts from vllm-0.26 to 0.32",
    ),
    ({"model": "deepseek-v4-flash", "gpu": "b200", "mode": "align"}, "compressed entries"),
    (
        {
            "engine": "vllm-0.24",
            "mode": "align",
            "scheduler": mist.ChunkedScheduler(max_num_batched_tokens=1_024),
        },
        r"max_num_batched_tokens must be >= 1056, the tokens of a block",
    ),
    error=mist.ScenarioError,
)


def test_modes_of_a_config():
    with pytest.raises(ValueError, match="must be none without a prefix cache, got align"):
        KvCacheConfig(mamba_cache_mode="align", enable_prefix_caching=False)
    with pytest.raises(ValueError, match="mamba_cache_mode"):
        KvCacheConfig(mamba_cache_mode="some")


@pytest.mark.parametrize(
    ("engine", "flags", "mode"),
    [
        ("vllm-0.24", "--enable-prefix-caching", "align"),
        ("vllm-0.24", "--enable-prefix-caching --mamba-cache-mode all", "align"),
        ("vllm-0.24", "--mamba-cache-mode align", None),
        ("vllm-0.14", "--enable-prefix-caching", None),
        ("vllm-0.33", "--enable-prefix-caching --mamba-cache-mode all", "align"),
        ("vllm-0.33", "--enable-prefix-caching", None),
    ],
)
def test_flags(engine, flags, mode):
    found = from_vllm([f"vllm serve Qwen/Qwen3.5-35B-A3B {flags}"], engine=engine)
    assert found.keys["clients"][0].get("kv_cache", {}).get("mamba_cache_mode") == mode


def test_mamba_keeps_all_where_a_version_can():
    line = "vllm serve nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 --enable-prefix-caching"
    for engine, mode in (("vllm-0.14", "all"), ("vllm-0.24", "all"), ("vllm-0.33", None)):
        (client,) = from_vllm([line], engine=engine).keys["clients"]
        assert client["kv_cache"].get("mamba_cache_mode") == mode


@pytest.mark.parametrize(
    ("piece", "rules", "end"),
    [
        (Piece(0, 100, 200, 200), V0_19, 96),  # whole blocks
        (Piece(0, 15, 200, 200), V0_19, 0),  # no block fits
        (Piece(96, 200, 200, 200), V0_19, 192),  # the last block that is full
        (Piece(192, 200, 200, 200), V0_19, 200),
        (Piece(199, 200, 200, 100), V0_19, 200),  # the last token, after a preemption
        (Piece(0, 200, 200, 200, 96), V0_19, 192),
        (Piece(0, 200, 200, 200, 96), V0_24, 96),  # full attention has 96 tokens
        (Piece(96, 200, 200, 200), V0_24._replace(num_again=1), 176),  # a block is computed again
        (Piece(0, 10, 10, 10), V0_24._replace(num_again=1), 10),
        (Piece(0, 200, 208, 208), V0_33, 192),
        (Piece(0, 208, 208, 208), V0_33, 192),  # a block before the last token
        (Piece(0, 208, 208, 208, 96), V0_33, 96),
        (Piece(100, 200, 300, 300), V0_33, 112),  # it began inside a block
        (Piece(0, 8, 300, 300), V0_33._replace(most=8), 8),  # no step has room for a block
        (Piece(0, 208, 208, 208), V0_33._replace(saves_inside=True), 208),
        (Piece(0, 200, 208, 208), V0_33._replace(saves_inside=True), 192),
    ],
)
def test_where_pieces_end(piece, rules, end):
    assert end_of(piece, 16, rules) == end


def test_which_block_a_step_saves_inside():
    rules = V0_33._replace(saves_inside=True)
    assert saved_block(0, 40, 16, rules) == 1
    assert saved_block(0, 32, 16, rules) == 0
    assert saved_block(0, 16, 16, rules) is None
    assert saved_block(32, 40, 16, rules) is None
    assert saved_block(8, 40, 16, rules) is None
    assert saved_block(0, 40, 16, V0_33) is None


def pool_of(mode, *, inside=False, drafts=0):
    groups = KvGroups(layers_per_group=1, num_state_groups=2, state_cache=mode, saves_inside=inside)
    return PagePool(100, 16, 0, groups, PageRules(), drafts)


@pytest.mark.parametrize(("mode", "first"), [("align", 1), ("all", 10)])
def test_pages_of_a_state_step_by_step(mode, first):
    """A prompt of ten blocks, the next token, and the one after that."""
    pool = pool_of(mode)
    table = PageTable(100, 3, blank_first=True)
    states, used = StatePages(pool, table), []
    for computed, end in ((0, 160), (160, 161), (161, 162)):
        states.leave_behind(computed)
        lacking = states.num_lacking(end)
        before = pool.num_used
        states.take(end)
        assert pool.num_used - before == lacking
        used.append(pool.num_used // 2)
    assert used == [first, 2, 1]
    states.end()
    assert (pool.num_free, table.num_free) == (100, 100)


def test_pages_of_drafts_move_behind_the_newest_state():
    pool = pool_of("align", drafts=2)
    states = StatePages(pool, PageTable(100, 3, blank_first=True))
    for computed, end in ((0, 32), (32, 160), (160, 163), (163, 180)):
        states.leave_behind(computed)
        states.take(end)
        assert pool.num_used == 2 * (3 + (computed > 0))
    states.end()
    assert pool.num_free == 100


def alike(mode, engine, num_tokens=9_000, **options):
    """Serve a prompt twice, one after the other; return the cached tokens of the second."""
    client = client_of(GDN, engine=engine, mode=mode, **options)
    workload = Workload.from_lists([num_tokens] * 2, [4, 4], [0.0, 60.0])

    class Same(type(workload)):
        def requests(self, streams):
            for request in super().requests(streams):
                assert isinstance(request, Request)
                request.content = (("same", num_tokens),)
                yield request

    same = Same(workload.source, workload.arrivals)
    return Simulation(clients=[client], workload=same).run().requests["num_cached_tokens"].tolist()


def test_a_prompt_finds_last_state_that_was_kept():
    assert alike("align", "vllm-0.24") == [0, 8 * 1_056]
    assert alike(None, "vllm-0.33") == [0, 8 * 1_088]
    assert alike("none", "vllm-0.33") == [0, 0]
    assert alike("align", "vllm-0.24", speculative_config=MTP) == [0, 7 * 1_056]
    assert alike("align", "vllm-0.19", speculative_config=MTP) == [0, 7 * 1_056]
    assert alike(None, "vllm-0.33", speculative_config=MTP) == [0, 8 * 1_088]
    assert alike(None, "vllm-0.33", speculative_config=MTP, num_tokens=8 * 1_088) == [0, 7 * 1_088]
