"""Work of states and sparse attention by hand, and what their times follow."""

from dataclasses import replace

import numpy as np
import pytest

from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.hardware.predictors.analytic.roofline import Reach
from mist_sim.models import load_model
from mist_sim.models.layers import LayerSpec
from mist_sim.models.mixers import LinearMixer
from mist_sim.models.operators import attends, states

LLAMA = load_model("llama-3.1-8b")


def roofline(name: str, gpu: str, ranks: int = 1, **dtypes: str) -> RooflinePredictor:
    model = load_model(name).with_dtypes(**dtypes) if dtypes else load_model(name)
    return RooflinePredictor(model, Cluster(load_gpu(gpu), ranks))


def work_of(kind: str, ranks: int):
    """Return the work of 32 value heads and 16 (Mamba-2: 8) of keys, of 128 x 128 values."""
    keys = 8 if kind == "mamba2" else 16
    sizes = {"key_heads": keys, "value_heads": 32, "key_dim": 128, "value_dim": 128}
    mixer = LinearMixer(kind=kind, **sizes)
    model = replace(LLAMA, layers=(LayerSpec(mixer=mixer),), num_layers=1)
    (found,) = states(model, ranks)
    return found


def test_a_delta_rule_by_hand():
    """Two ranks: 16 heads, a state of 16 x 128 x 128 x 4 bytes, 8 key heads."""
    work = work_of("gdn", 2)
    state, through = 1_048_576, (2 * 8 * 128 + 16 * 128 + 16 * 128) * 2
    assert work.of_token.flops == 16 * (6 * 128 * 128 + 2 * 64 * (3 * 128 + 2 * 128 + 64))
    assert work.of_token.bytes == through
    assert work.of_prompt.bytes == 2 * state
    assert work.of_decode.bytes == 2 * state + through
    assert work.of_decode.flops == 7 * 16 * 128 * 128


def test_a_scan_by_hand():
    """Mamba-2 in chunks of 64: products of B and C once a group, not once a head."""
    work = work_of("mamba2", 1)
    assert work.of_token.flops == 32 * (4 * 128 * 128 + 2 * 64 * 128) + 8 * 2 * 64 * 128
    assert work.of_prompt.bytes == 2 * 32 * 128 * 128 * 4


def by_name(name: str, ranks: int = 1):
    return {each.name: each for each in attends(load_model(name), ranks)}


def test_what_compressed_attention_reaches():
    """CSA: 512 entries of 4 tokens, chosen by an indexer of such entries; HCA: all, of 128."""
    found = by_name("deepseek-v4-flash")
    assert (found["index"].per_entry, found["index"].reach) == (4, None)
    chosen, every = found["attention_compressed_4"], found["attention_compressed_128"]
    assert (chosen.per_entry, chosen.reach) == (4, 4 * 512)
    assert (every.per_entry, every.reach) == (128, None)
    assert chosen.shares_kernel
    assert every.shares_kernel
    assert not found["attention_window_128"].shares_kernel


def test_pooled_index_keys_stand_for_several_tokens():
    assert by_name("glm-5.3-flash")["index"].per_entry == 4
    assert by_name("deepseek-v3.2")["index"].per_entry == 1


def test_padding_moves_the_rows_of_64_heads():
    """Of 16 heads on a rank: 16 are read and 64 written to pad queries, and 64 read and written.

    Rows of queries (576 values) and outputs (512) are taken alike: (16 + 64) / 2 + 64 of 1,088.
    """
    sparse = by_name("deepseek-v3.2", 8)["attention_top_2048"]
    assert sparse.work(1, 0, 0, True).bytes == ((16 + 64) / 2 + 64) * 1_088 * 2
    assert sparse.work(1, 0, 0, False).bytes == 16 * 1_088 * 2
    assert sparse.work(0, 0, 1, True).flops == 64 * 2 * 1_088
    whole = by_name("deepseek-v3.2")["attention_top_2048"]
    assert whole.work(1, 0, 0, True).bytes == 128 * 1_088 * 2


def test_decodes_see_half_a_chunk_behind_the_first():
    chunk = Reach(8_192, is_chunked=True)
    seen = [
        chunk.of_decodes(StepBatch((), 4, 4 * context), StepGrowth(), np.zeros(1))[0]
        for context in (5_000, 50_000)
    ]
    assert seen == [4 * 5_000 + 4, 4 * 8_191 / 2 + 4]


@pytest.mark.parametrize("name", ["qwen3.5-27b", "gemma-4-31b-it-nvfp4", "deepseek-v3.2"])
def test_another_prompt_shortens_no_step(name):
    """The longest prompt keeps a step waiting, whatever is beside it."""
    predictor = roofline(name, "h200", 8)
    alone = predictor.step_time(StepBatch(((8_000, 0),)))
    assert predictor.step_time(StepBatch(((8_000, 0), (1, 0)))) > alone


def test_decodes_beside_prompts_read_keys_more_slowly():
    predictor = roofline("qwen3.5-27b", "rtx-pro-6000", 2)
    slow = load_gpu("rtx-pro-6000").kernels["decode_attention"].beside_prompts
    assert slow > 1
    name, prompt = "decode_attention", ((64, 0),)

    def keys(chunks, context):
        parts = predictor.explain(StepBatch(chunks, 8, 8 * context))
        return sum(part.seconds for part in parts if part.name == name)

    alone = keys((), 20_000) - keys((), 10_000)
    assert keys(prompt, 20_000) - keys(prompt, 10_000) == pytest.approx(slow * alone)


def test_a_cache_of_8_bits_has_kernels_of_its_own():
    batch = StepBatch(((64, 0),), 8, 80_000)
    for cache, end in (("auto", ""), ("fp8", "_fp8")):
        parts = roofline("qwen3.5-27b", "h200", kv_cache=cache).explain(batch)
        figures = {part.name: part.kernel for part in parts if "attention" in part.name}
        assert figures["decode_attention"] == f"decode_attention{end}"
        assert figures["prefill_attention"] == f"prefill_attention{end}"


def test_kernels_of_an_8_bit_cache_time_step():
    gpu = load_gpu("h200")
    floors = [gpu.kernels[f"decode_attention{end}"].floor for end in ("", "_fp8")]
    parts = [
        {part.name: part for part in roofline("qwen3.5-27b", "h200", kv_cache=cache).explain(batch)}
        for cache in ("auto", "fp8")
        for batch in (StepBatch((), 1, 1),)
    ]
    taken = [each["decode_attention"].seconds for each in parts]
    assert taken == pytest.approx([16 * floor for floor in floors], rel=0.01)


def test_counted_windows_time_window_layers():
    predictor = roofline("mimo-v2-flash", "h200", 8)
    equal = predictor.step_time(StepBatch((), 64, 64 * 50_000))
    counted = predictor.step_time(StepBatch((), 64, 64 * 50_000, 64 * 10))
    assert counted < equal
