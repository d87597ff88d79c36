"""Pages of models whose layers keep different things, worked out by hand."""

import pandas as pd
from typer.testing import CliRunner

from mist_sim.cli.app import app
from mist_sim.clients.kv_cache.pages import PagePool, PageRules
from mist_sim.models.cache_layout import cache_layout
from mist_sim.models.layers import LayerSpec
from mist_sim.models.mixers import CompressedMixer, HeadsMixer, Indexer, LinearMixer, Mixer


def layout(*mixers: tuple[Mixer, int], ranks: int = 1):
    """Return the pages of so many layers of each mixer, with entries of 16 bits."""
    layers = [LayerSpec(mixer=mixer) for mixer, number in mixers for _ in range(number)]
    return cache_layout(tuple(layers), ranks, 2)


def heads(kv: int, size: int, window: int | None = None) -> HeadsMixer:
    return HeadsMixer(num_heads=16, num_kv_heads=kv, head_dim=size, v_head_dim=size, reach=window)


def state(values: int) -> LinearMixer:
    return LinearMixer(kind="gdn", key_heads=16, value_heads=values, key_dim=128, value_dim=128)


def test_blocks_hold_the_largest_state_in_largest_entries():
    """States of 32 x 65,536 + 8,192 x 6 = 2,146,304 bytes at most, entries of 4,096 at most.

    16 tokens have 65,536 bytes, of which the state fills 32.75: 33 x 16 tokens. Three layers with
    attention and four with states are two groups of four, the first padded.
    """
    found = layout((state(32), 3), (state(16), 1), (heads(4, 256), 2), (heads(2, 256), 1))
    assert found.block_size == 528
    assert found.page_bytes_per_token == 4 * 4_096
    assert (found.groups.num_full_groups, found.groups.num_state_groups) == (1, 1)
    assert found.groups.num_window_groups == 0
    assert found.has_states


def test_blocks_are_shorter_where_ranks_split_states_and_not_entries():
    """Eight ranks: a state of 268,288 bytes; one of two KV heads, whose entries have 1,024."""
    found = layout((state(32), 3), (heads(2, 256), 1), ranks=8)
    assert found.block_size == 16 * 17  # 268,288 / 16,384 = 16.4
    assert found.page_bytes_per_token == 1_024


def test_a_state_holds_one_page_of_each_group_at_any_length():
    found = layout((state(32), 6), (heads(4, 256), 2))
    pool = PagePool(1_000, found.block_size, 0, found.groups, PageRules())
    assert [pool.blocks_for(length) for length in (1, 528, 529, 5_280)] == [4, 4, 5, 13]


def test_equal_entries_of_windows_fill_groups_that_are_padded():
    """Three full layers beside four with windows: groups of four, as three would pad less."""
    found = layout((heads(8, 128), 3), (heads(8, 128, 1_024), 4))
    assert found.page_bytes_per_token == 4 * 4_096
    assert (found.groups.num_full_groups, found.groups.num_window_groups) == (1, 1)
    assert (found.groups.sliding_window, found.block_size) == (1_024, 1)
    assert not found.has_states


def test_larger_entries_of_windows_fill_several_pages():
    """Two full layers of 4,096 bytes a token; seven with windows of 8,192: 57,344 in 7 pages."""
    full, windows = (heads(8, 128), 2), ((heads(8, 256, 1_024), 5), (heads(8, 256, 512), 2))
    found = layout(full, *windows)
    assert found.page_bytes_per_token == 8_192
    assert (found.groups.num_full_groups, found.groups.num_window_groups) == (1, 7)
    assert found.groups.sliding_window == 1_024  # the longer one bounds both


def compressed(ratio: int, *, has_indexer: bool = False) -> CompressedMixer:
    indexer = Indexer(num_heads=4, head_dim=128, topk=512) if has_indexer else None
    return CompressedMixer(
        num_heads=8,
        head_dim=512,
        rope_dim=64,
        q_lora_rank=64,
        o_groups=2,
        o_lora_rank=64,
        sliding_window=128,
        ratio=ratio,
        indexer=indexer,
    )


def test_compressed_entries_have_blocks_of_256_and_pages_for_windows():
    """A window alone, two HCA layers and one with CSA.

    Entries of 584 bytes, index keys of 132: 2 x 584 / 128 + 716 / 4 = 188.125 bytes a token, in a
    block 48,160. Four windows of 128 x 584 = 74,752; tokens that no entry is made of yet, in 32
    bits: 2 x 128 x 1,024 x 4, and 4 x 2,560 x 4 with the index keys: 1,388,544 in 28.8 pages.
    """
    found = layout((compressed(0), 1), (compressed(128), 2), (compressed(4, has_indexer=True), 1))
    assert found.page_bytes_per_token == 188.125
    assert found.block_size == 256
    assert (found.groups.num_full_groups, found.groups.num_state_groups) == (1, 29)
    assert found.groups.num_window_groups == 0
    assert found.has_states


def test_a_hand_over_moves_whole_pages_of_entries_and_states(tmp_path):
    """Qwen3.5-35B-A3B on two ranks: blocks of 1,088 tokens, and three pages of states.

    A page has 10 layers of one KV head of 256 on each rank: 22,282,240 bytes on both.
    """
    page = 10 * 2 * 256 * 2 * 1_088 * 2
    for prompt, pages in ((100, 1 + 3), (1_088, 1 + 3), (1_089, 2 + 3), (10_000, 10 + 3)):
        path = tmp_path / f"{prompt}.yaml"
        path.write_text(PAIR.format(prompt=prompt))
        out = tmp_path / f"out-{prompt}"
        assert not CliRunner().invoke(app, ["run", str(path), "--out", str(out)]).exit_code
        moved = pd.read_parquet(out / "transfers.parquet")["num_bytes"]
        assert moved.tolist() == [pages * page]


PAIR = """
clients:
  - {{name: p, model: qwen3.5-35b-a3b, gpu: h200, tensor_parallel_size: 2, role: prefill}}
  - {{name: d, model: qwen3.5-35b-a3b, gpu: h200, tensor_parallel_size: 2, role: decode}}
network: {{bandwidth: 50 GB/s}}
workload:
  arrivals: {{type: poisson, rate: 2 /s}}
  lengths:
    type: synthetic
    prompt: {{type: fixed, tokens: {prompt}}}
    output: {{type: fixed, tokens: 5}}
    num_requests: 1
"""
