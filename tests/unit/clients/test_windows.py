"""Sliding windows: which layers have one, what they hold, and what they cost."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mist_sim import (
    ARRIVALS,
    KvCacheConfig,
    ScenarioError,
    Simulation,
    SpeculativeConfig,
    Workload,
    llm_client,
)
from mist_sim.clients import EngineConfig
from mist_sim.clients.engine.lanes import page_rules
from mist_sim.clients.engine_rules import EngineRules
from mist_sim.clients.kv_cache.pages import HeldPages, PagePool, PageRules, PageTable
from mist_sim.clients.scheduling import ChunkedScheduler, ContinuousScheduler
from mist_sim.core.batch import StepBatch, StepGrowth, grown
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.devices import MemoryTier
from mist_sim.hardware.drafter import drafter
from mist_sim.hardware.predictors import BestServePredictor, RooflinePredictor
from mist_sim.models import ModelSpec, load_model
from mist_sim.models.kv_groups import KvGroups, kv_groups
from mist_sim.testing import check_predictor

CONFIG = {
    "model_type": "mistral",
    "num_hidden_layers": 6,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 4096,
    "sliding_window": 32,
}
SLIDING, FULL = "sliding_attention", "full_attention"


def read(**changes: object) -> ModelSpec:
    config = {key: value for key, value in {**CONFIG, **changes}.items() if value is not ...}
    return ModelSpec.from_config(config, name="tiny", source="tiny/config.json")


def roofline(model: ModelSpec, ranks: int = 1) -> RooflinePredictor:
    return RooflinePredictor(model, Cluster(load_gpu("h100-sxm"), ranks))


# --- which layers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({}, {0, 1, 2, 3, 4, 5}),  # Mistral: all
        ({"model_type": "gemma2"}, {0, 2, 4}),
        ({"model_type": "gemma3_text"}, {0, 1, 2, 3, 4}),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 3}, {0, 1, 3, 4}),
        ({"layer_types": [SLIDING, FULL] * 3}, {0, 2, 4}),
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 4}, {4, 5}),
        ({"model_type": "qwen2"}, set()),
        ({"sliding_window": None}, set()),
        ({"sliding_window": 4096}, set()),  # as long as the longest context
        ({"layer_types": [FULL] * 6}, set()),
    ],
)
def test_layers_with_a_window(changes, layers):
    model = read(**changes)
    assert model.window_layers == layers
    assert model.sliding_window == (32 if layers else None)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"layer_types": [FULL, SLIDING]}, "layer_types must have 6 entries, got 2"),
        ({"layer_types": ["chunked_attention"] * 6}, "layer_types names 'chunked_attention'"),
        ({"sliding_window": -1}, "sliding_window must be an integer > 0, got -1"),
        ({"sliding_window": ..., "use_sliding_window": True}, "sliding_window is missing"),
    ],
)
def test_wrong_windows_name_the_key(changes, problem):
    with pytest.raises(ScenarioError, match=f"^tiny/config.json: .*{problem}"):
        read(**changes)


def test_gpt_oss_counts_the_published_parameters():
    """Model card of gpt-oss (2025), table 1: 116.83 B, 5.13 B active, checkpoint 60.8 GiB."""
    model = load_model("gpt-oss-120b")
    embedding = model.vocab_size * model.hidden_size
    assert model.num_parameters == pytest.approx(116.83e9, rel=1e-4)
    assert model.num_active_parameters - embedding == pytest.approx(5.13e9, rel=1e-3)
    assert model.weight_bytes_per_rank(1) / 2**30 == pytest.approx(60.8, rel=1e-3)
    assert (len(model.window_layers), model.sliding_window) == (18, 128)


def test_gemma_counts_the_published_parameters():
    """Gemma 3 report (arXiv 2503.19786), table 1: 25,600 M beside the embedding."""
    model = load_model("gemma-3-27b")
    beside = model.num_parameters - model.embedding_params
    assert beside == pytest.approx(25_600e6, rel=1e-4)
    assert len(model.window_layers) == 52


def test_the_text_part_of_a_gemma_that_sees(tmp_path):
    """The published config.json leaves out what equals the defaults."""
    text = {
        "head_dim": 128,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "model_type": "gemma3_text",
        "num_attention_heads": 32,
        "num_hidden_layers": 62,
        "num_key_value_heads": 16,
        "sliding_window": 1024,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    assert load_model(str(path)).num_parameters == load_model("gemma-3-27b").num_parameters


# --- what they hold -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("full", "window", "groups"),
    [
        (18, 18, (18, 1, 1)),  # gpt-oss-120B
        (10, 52, (10, 1, 6)),  # Gemma-3-27B: the last group is padded
        (13, 12, (13, 1, 1)),  # vLLM's example of padding the smaller kind
        (10, 20, (10, 1, 2)),
        (0, 32, (32, 0, 1)),  # Mistral-7B
    ],
)
def test_layers_are_grouped_as_in_vllm(full, window, groups):
    found = kv_groups(full + window, window, 128)
    sizes = (found.layers_per_group, found.num_full_groups, found.num_window_groups)
    assert sizes == groups


def test_layers_without_a_window_are_one_group():
    assert kv_groups(32, 0, None) == KvGroups(layers_per_group=32)


@pytest.mark.parametrize(("block_size", "window"), [(1, 1), (1, 5), (4, 9), (4, 10), (16, 128)])
def test_blocks_behind_a_window(block_size, window):
    """Counted token by token, over every position of the window."""
    groups = KvGroups(
        layers_per_group=1, num_full_groups=0, num_window_groups=1, sliding_window=window
    )
    pool = PagePool(1000, block_size, 0, groups, PageRules())
    for last in range(4 * window + 4 * block_size):
        seen = {token // block_size for token in range(max(0, last - window + 1), last + 1)}
        assert pool.num_skipped(last) == min(seen)


def test_pages_of_a_sequence():
    groups = KvGroups(layers_per_group=10, num_window_groups=6, sliding_window=1024)
    pool = PagePool(1000, 16, 0, groups, PageRules())
    assert pool.blocks_of(1) == 7
    assert pool.blocks_of(1040) == 7 * 65 - 6  # the window of token 1,040 begins with token 17
    assert pool.blocks_of(16_000) == 1000 + 6 * 64
    assert pool.blocks_for(16_000) == 7 * 1000


def test_capacity_counts_pages_of_a_group():
    """The same bytes hold more tokens than if every layer kept all of them."""
    model = load_model("gpt-oss-120b")
    client = llm_client("llm", model=model, gpu="h200")
    kept = replace(model, sliding_window=None, window_layers=frozenset())
    whole = llm_client("llm", model=kept, gpu="h200")
    blocks, of_all = (each.num_gpu_blocks + 1 for each in (client, whole))  # with the null block
    assert blocks == pytest.approx(2 * of_all, abs=1)
    # of a window, less one token, and two steps of 8,192 in flight; it may begin within a block
    most_in_window = -(-(127 + 2 * 8192) // 16) + 1
    assert client.memory.pool().blocks_alone(131_072) == 8192 + most_in_window


def test_a_layer_that_drafts_is_in_the_groups():
    """gpt-oss-120B with one: of 19 full layers and 18 with windows, 19 share a page."""
    config = SpeculativeConfig(method="mtp", num_speculative_tokens=3, acceptance_rate=0.7)
    model = replace(load_model("gpt-oss-120b"), num_nextn_predict_layers=1)
    plain = llm_client("llm", model=model, gpu="h200")
    drafting = llm_client("llm", model=model, gpu="h200", speculative_config=config)
    assert plain.memory.groups.layers_per_group == 18
    assert drafting.memory.groups == replace(plain.memory.groups, layers_per_group=19)
    layer = model.kv_bytes_per_token_per_rank(1) // model.num_layers
    before = plain.num_gpu_blocks * 16 * 18 * layer
    after = drafting.num_gpu_blocks * 16 * 19 * layer
    weights = drafter(config, model, Cluster(load_gpu("h200"))).weight_bytes_per_rank
    assert before - after == pytest.approx(weights, rel=1e-3)


def test_an_engine_serves_a_model_with_windows():
    """Long contexts: windows leave room for more requests, and fewer keys to read."""
    model = load_model("gpt-oss-120b")
    kept = replace(model, sliding_window=None, window_layers=frozenset())
    lengths = [60_000] * 12, [200] * 12
    summaries = {}
    for name, served in (("windows", model), ("full", kept)):
        scheduler = ChunkedScheduler(max_num_seqs=256, max_num_batched_tokens=2048)
        client = llm_client(
            "llm", model=served, gpu="h100-sxm", engine="vllm-0.24", scheduler=scheduler
        )
        workload = Workload.from_lists(*lengths, arrivals=ARRIVALS["all_at_once"]())
        result = Simulation(clients=[client], workload=workload).run()
        assert (result.requests["status"] == "finished").all()
        row = result.clients.iloc[0]
        assert 0 < row["peak_used_blocks"] <= row["num_gpu_blocks"]
        summaries[name] = result.summary | {"mean_decodes": row["mean_decodes"]}
    windows, full = summaries["windows"], summaries["full"]
    assert windows["mean_e2el_ms"] < 0.85 * full["mean_e2el_ms"]
    assert windows["mean_decodes"] > 1.5 * full["mean_decodes"]


def test_tiers_are_refused_for_a_model_with_windows():
    kv_cache = KvCacheConfig(tiers=(MemoryTier(name="cpu", capacity=2.0**36),))
    with pytest.raises(ScenarioError, match="tiers must be empty for a model with sliding windows"):
        llm_client("llm", model="gpt-oss-120b", gpu="h100-sxm", kv_cache=kv_cache)


@pytest.mark.parametrize(
    ("rules", "whole", "ahead", "expected"),
    [
        ({}, True, True, (None, False)),  # 0.19 counts all tokens
        ({}, False, False, (64, False)),  # 0.12 admits by the first piece, of a step's tokens
        ({"caps_windows": True}, True, True, (64, False)),  # 0.24
        ({"caps_windows": True, "returns_unseen": True}, True, False, (64, False)),
        ({"caps_windows": True, "returns_unseen": True}, True, True, (128, True)),  # 0.33
    ],
)
def test_how_versions_count_the_pages_of_windows(rules, whole, ahead, expected):
    scheduler = ChunkedScheduler(
        max_num_seqs=8, max_num_batched_tokens=64, scheduler_reserve_full_isl=whole
    )
    config = EngineConfig(scheduler=scheduler, async_scheduling=ahead)
    assert page_rules(config, EngineRules(**rules))[:2] == expected
    with_role = replace(config, role="prefill")
    assert page_rules(with_role, EngineRules(**rules))[:2] == expected
    at_once = replace(config, scheduler=ContinuousScheduler(max_num_seqs=8))
    assert page_rules(at_once, EngineRules(**rules)).most_beside is None


@pytest.mark.parametrize(
    ("method", "rules", "num_again"),
    [("eagle", {}, 1), ("ngram", {}, 0), ("eagle", {"hashes_ahead": True}, 0)],
)
def test_a_layer_that_drafts_computes_the_last_block_found_again(method, rules, num_again):
    drafting = SpeculativeConfig(method=method, num_speculative_tokens=1, acceptance_rate=0.5)
    config = EngineConfig(scheduler=ChunkedScheduler(max_num_seqs=8), speculative_config=drafting)
    assert page_rules(config, EngineRules(**rules)).num_again == num_again


def test_pages_of_a_prompt_in_pieces():
    """A window of 8 tokens, blocks of 4: a piece of 16 sees the 7 tokens before it.

    Two groups. The first piece takes 4 blocks; before the second, tokens 0 to 8 are behind the
    window of token 16, which are 2 whole blocks; before a decode of token 32, 25 are: 6 blocks.
    """
    groups = KvGroups(layers_per_group=1, num_window_groups=1, sliding_window=8)
    pool = PagePool(100, 4, 0, groups, PageRules())
    holding = HeldPages(pool, PageTable(100, groups.num_groups, blank_first=False))
    used = []
    for computed, new in ((0, 16), (16, 16), (32, 1)):
        holding.leave_behind(computed)
        holding.extend(computed + new)
        used.append(pool.num_used)
    assert used == [8, 16 - 2, 18 - 6]
    holding.end()
    assert pool.num_used == 0


# --- what they cost -------------------------------------------------------------------------------


@pytest.mark.parametrize(("new", "context"), [(1, 0), (7, 0), (40, 0), (5, 30), (50, 200), (9, 23)])
def test_pairs_of_a_chunk_are_counted_one_by_one(new, context):
    """A chunk's attention takes time for its pairs, and for as many keys as its last token sees."""
    window, model = 32, read()
    found = roofline(model)._windows
    pairs = sum(min(position + 1, window) for position in range(context, context + new))
    keys = len({key for p in range(context, context + new) for key in range(max(0, p - 31), p + 1)})
    begun = found.prefill.begin(0.0, min(context + new, window))
    expected = found.prefill.add(begun, new, keys, pairs)
    assert found.add(0.0, StepBatch(((new, context),))) == expected


@pytest.mark.parametrize("model", [read(), read(model_type="gemma2"), load_model("gpt-oss-120b")])
def test_runs_equal_steps_to_the_bit(model):
    predictor = roofline(model)
    check_predictor(lambda: predictor)
    batch = StepBatch(((512, 100), (300, 5000)), 5, 7000, 90)
    growth = StepGrowth(5, 3)
    run = predictor.run(batch, growth, 100).tolist()
    assert run == [predictor.step_time(grown(batch, growth, ahead)) for ahead in range(100)]


def test_decodes_read_no_more_than_the_window():
    predictor = roofline(read())  # all layers slide
    short, long = (predictor.step_time(StepBatch((), 4, 4 * n, 4 * 31)) for n in (31, 3000))
    assert short == long
    full = roofline(read(sliding_window=None))
    assert full.step_time(StepBatch((), 4, 12_000)) > long


def test_tokens_to_verify_read_a_window_once_and_see_one_at_most():
    found = roofline(read())._windows  # 32 tokens
    for contexts in ([5], [31], [500], [3, 9], [400, 900]):
        queries = 4 * len(contexts)
        positions = [[c + draft for draft in range(4)] for c in contexts]
        keys = sum(min(c, 31) for c in contexts) + queries
        pairs = sum(min(position + 1, 32) for places in positions for position in places)
        batch = StepBatch((), len(contexts), sum(contexts), keys - queries, num_drafts=3)
        assert found.add(0.0, batch) == found.decode.add(0.0, batch, keys, pairs)


def test_without_a_count_contexts_are_taken_as_equal():
    predictor = roofline(read(model_type="gemma2"))
    counted, guessed = StepBatch((), 4, 4 * 20, 4 * 20), StepBatch((), 4, 4 * 20)
    assert predictor.step_time(guessed) == predictor.step_time(counted)
    run = predictor.run(guessed, StepGrowth(4), 40).tolist()
    steps = [StepBatch((), 4, 4 * n, 4 * min(n, 31)) for n in range(20, 60)]
    assert run == [predictor.step_time(step) for step in steps]


def test_bestserve_has_no_tables_for_windows():
    with pytest.raises(ScenarioError, match="without sliding windows only, not for tiny"):
        BestServePredictor(read(), Cluster(load_gpu("ascend-910b3")))
