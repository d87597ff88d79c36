"""Keys that decodes share come from the chip's cache; one block reads heads without groups."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim import Scenario, simulate
from mist_sim.core.batch import StepBatch, StepGrowth, grown
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.devices import gpu_from_table, gpu_names
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.hardware.predictors.explained import explained
from mist_sim.models import load_model
from mist_sim.rng import Streams
from tests.effort import examples

H100, L40S, A100 = load_gpu("h100-sxm"), load_gpu("l40s"), load_gpu("a100-80gb-sxm")
MHA, GQA, LATENT = (load_model(name) for name in ("llama-2-7b", "llama-3.1-8b", "deepseek-v3"))
CARDS = gpu_names()
SMALLEST = {MHA.name: 1, GQA.name: 1, LATENT.name: 16}


@cache
def predictor_of(name, gpu, ranks):
    return RooflinePredictor(load_model(name), Cluster(load_gpu(gpu), ranks))


def roofline(model, gpu=H100, ranks=None):
    number = ranks or SMALLEST[model.name]
    if gpu is load_gpu(gpu.name):
        return predictor_of(model.name, gpu.name, number)
    return RooflinePredictor(model, Cluster(gpu, number))


def read_again(model, shared, number, num_keys, gpu=H100):
    return roofline(model, gpu).traits.reads_again(shared, number, num_keys)


models = st.sampled_from([MHA, GQA, LATENT])
cards = st.sampled_from([H100, L40S, A100, load_gpu("b200")])


@st.composite
def batches(draw):
    """Return what decodes share, their number, and their keys, to which shared ones belong."""
    number = draw(st.integers(2, 256))
    groups = draw(st.dictionaries(st.integers(2, number), st.integers(1, 20_000), max_size=5))
    least = sum(readers * tokens for readers, tokens in groups.items())
    return groups, number, least + draw(st.integers(number, 100_000))


# --- shared prefixes --------------------------------------------------------------------------


@examples(200)
@given(models, cards, batches())
def test_no_step_is_faster_than_the_cache_allows_or_slower_than_memory(model, gpu, batch):
    groups, number, num_keys = batch
    predictor = roofline(model, gpu)
    again = predictor.traits.reads_again(groups, number, num_keys)
    most = sum((readers - 1) * tokens for readers, tokens in groups.items())
    assert 0 <= again <= most
    alone = StepBatch((), number, num_keys - number)
    shared = replace(alone, num_read_again=again)
    per_key = model.kv_bytes_per_token_per_rank(predictor.cluster.tensor_parallel_size)
    assert predictor.step_time(shared) <= predictor.step_time(alone)
    least = num_keys * per_key / gpu.l2_bandwidth
    attention = [each for each in explained(predictor, shared) if "attention" in each.name]
    assert sum(each.seconds for each in attention) >= least * (1 - 1e-9)


@examples(200)
@given(models, batches(), st.integers(1, 5_000))
def test_more_is_shared_fewer_keys_come_from_memory(model, batch, more):
    groups, number, num_keys = batch
    again = read_again(model, groups, number, num_keys)
    readers = max(groups, default=2)
    larger = {**groups, readers: groups.get(readers, 0) + more}
    assert read_again(model, larger, number, num_keys) >= again
    # tokens that are not shared push others out of the cache
    beside = read_again(model, groups, number, num_keys + more)
    assert num_keys + more - beside >= num_keys - again


@examples(200)
@given(models, st.integers(2, 255), st.integers(1, 4_000), st.integers(0, 200_000))
def test_one_more_decode_with_a_prefix_never_makes_a_step_shorter(model, readers, tokens, others):
    def seconds(number):
        num_keys = number * (tokens + 1) + others
        again = read_again(model, {number: tokens}, number, num_keys)
        batch = StepBatch((), number, num_keys - number, num_read_again=again)
        return roofline(model).step_time(batch)

    assert seconds(readers + 1) >= seconds(readers)


def test_a_prefix_of_the_whole_batch_is_read_from_memory_once_where_it_fits():
    """64 decodes share 2,000 tokens: 262 MB a layer, of which 4 MB differ from each other."""
    again = read_again(GQA, {64: 2_000}, 64, 64 * 2_001, replace(H100, l2_bandwidth=1e15))
    assert 0.9 * 63 * 2_000 < again < 63 * 2_000
    # the cache's own bandwidth binds: 4.3 TB/s beside the 2.8 that kernels get from memory
    bound = read_again(GQA, {64: 2_000}, 64, 64 * 2_001)
    share = bound / (64 * 2_001)
    assert share == pytest.approx(1 - 0.836 * 3.35 / 4.3, abs=1e-3)


def test_what_the_cache_keeps_between_two_readers_is_the_law_of_gaps():
    """Random orders of a batch, a cache of the latest 50 MB: hits as the closed form says."""
    rng, per_key = Streams(7).generator("batches"), 2 * 2 * 32 * 128
    number, length, prefix, readers = 80, 700, 600, 8
    hits = []
    for _ in range(2_000):
        places = np.sort(rng.permutation(number)[:readers])
        hits.append(np.count_nonzero(np.diff(places) * length * per_key <= H100.l2_cache))
    found = read_again(MHA, {readers: prefix}, number, number * length) / prefix
    assert found == pytest.approx(np.mean(hits), rel=0.15)


def test_nothing_changes_where_nothing_is_shared_or_the_cache_is_not_known():
    assert read_again(MHA, {}, 64, 64_000) == 0
    assert roofline(MHA, replace(H100, l2_cache=None, l2_bandwidth=None)).traits.reads_again is None
    assert roofline(MHA, load_gpu("mi300x")).traits.reads_again is None


@pytest.mark.parametrize("card", [H100, L40S])
def test_runs_have_the_bits_of_their_steps_and_of_lines(card):
    predictor = roofline(MHA, card)
    batch = StepBatch((), 12, 9_000, num_read_again=2_345)
    growth = StepGrowth(12)
    run = predictor.run(batch, growth, 50).tolist()
    assert run == [predictor.step_time(grown(batch, growth, step)) for step in range(50)]
    line = predictor.decode_line(12)
    assert run == line.run(9_012 - 2_345, 12, 50).tolist()
    mixed = replace(batch, chunks=((300, 20),))
    assert predictor.run(mixed, growth, 9).tolist() == [
        predictor.step_time(grown(mixed, growth, step)) for step in range(9)
    ]
    for each in (batch, mixed):
        parts = sum(operator.seconds for operator in explained(predictor, each))
        assert parts == pytest.approx(predictor.step_time(each), rel=1e-12)


def test_answers_to_prompts_with_a_prefix_in_common_come_sooner():
    def tpot(num_prefixes):
        lengths = {
            "type": "prefix_repetition",
            "num_requests": 64,
            "num_prefixes": num_prefixes,
            "prefix_len": 1_008,
            "suffix": {"type": "fixed", "tokens": 20},
            "output": {"type": "fixed", "tokens": 100},
        }
        workload = {"lengths": lengths, "arrivals": {"type": "constant", "rate": "1000 /s"}}
        client = {"name": "llm", "gpu": "h100-sxm", "async_scheduling": False}
        scenario = {"model": "llama-2-7b", "workload": workload, "clients": [client]}
        return simulate(Scenario.from_dict(scenario)).requests["tpot"].to_list()

    shared, apart = tpot(1), tpot(64)
    assert shared[-1] < 0.9 * apart[-1]


@pytest.mark.parametrize("given", ["l2_cache", "l2_bandwidth"])
def test_size_and_bandwidth_of_a_cache_go_together(given):
    table = {"based_on": "l4", given: "48 MB" if given == "l2_cache" else "2 TB/s"}
    with pytest.raises(ScenarioError, match=f"must be given with {given}, or both left out"):
        gpu_from_table(table, name="mine", source="mine.toml")


# --- heads without groups ---------------------------------------------------------------------


def test_a_block_reads_a_context_of_heads_without_groups_where_the_kernel_splits_none():
    """FlashAttention 2 on an A100: 20.6 us for 1,000 keys of a head of 128, in 32 layers."""
    keys = 16_000
    predictor = roofline(MHA, A100)
    batch = StepBatch((), 1, keys - 1)
    attention = next(each for each in explained(predictor, batch) if "attention" in each.name)
    per_layer = 19.3e-6 + 20.6e-9 * keys
    assert attention.seconds == pytest.approx(32 * per_layer, rel=1e-3)
    memory = 2 * 2 * 32 * 128 * keys / (0.701 * A100.memory_bandwidth)
    assert per_layer > 1.5 * memory  # 32 blocks do not fill the memory's bandwidth
    two = predictor.step_time(StepBatch((), 2, 2 * (keys - 1)))
    assert two < 1.15 * predictor.step_time(batch)  # 64 blocks do


@pytest.mark.parametrize(("model", "gpu"), [(GQA, L40S), (MHA, H100), (LATENT, L40S)])
def test_grouped_heads_and_kernels_that_split_wait_for_memory_alone(model, gpu):
    assert roofline(model, gpu, 8)._decodes.per_own_key == 0


def decodes(contexts):
    """Return the batch of decodes with such contexts."""
    return StepBatch((), len(contexts), sum(contexts), longest_context=max(contexts))


@examples(300)
@given(
    st.sampled_from(CARDS),
    st.lists(st.integers(1, 30_000), min_size=1, max_size=128),
    st.integers(0, 30_000),
    st.integers(1, 5_000),
    st.data(),
)
def test_more_context_or_more_decodes_never_make_a_step_shorter(card, contexts, other, more, data):
    """Contexts of any lengths on every GPU: a sequence joins, or one context grows."""
    ranks = 8 if load_gpu(card).interconnect is not None else 1
    predictor = predictor_of(MHA.name, card, data.draw(st.sampled_from([1, ranks])))
    chunks = data.draw(st.sampled_from([(), ((300, 20),)]))
    now = predictor.step_time(replace(decodes(contexts), chunks=chunks))
    joined = replace(decodes([*contexts, other]), chunks=chunks)
    assert predictor.step_time(joined) >= now
    at = data.draw(st.integers(0, len(contexts) - 1))
    grown_one = [context + more * (place == at) for place, context in enumerate(contexts)]
    assert predictor.step_time(replace(decodes(grown_one), chunks=chunks)) >= now


def test_short_decode_beside_long_one_waits_for_it():
    """The step was 6.86 ms with one long decode, and 5.56 with a short one more."""
    predictor = roofline(MHA, A100, 4)
    alone, both = (predictor.step_time(decodes(each)) for each in ([4_000], [4_000, 10]))
    assert alone < both < 1.01 * alone


@examples(100)
@given(
    st.sampled_from([(), ((300, 20),), ((40, 9_000), (7, 0))]),
    st.lists(st.integers(1, 30_000), min_size=1, max_size=40),
    st.integers(0, 5),
    st.data(),
)
def test_runs_wait_for_the_longest_context_as_their_steps_do(chunks, contexts, num_drafts, data):
    """Steps that give each sequence one token, or another number where drafts are verified."""
    predictor, steps = roofline(MHA, A100), 12
    batch = replace(decodes(contexts), chunks=chunks, num_drafts=num_drafts)
    growth = StepGrowth(len(contexts), 0, 1)
    if num_drafts:
        gained = data.draw(st.lists(st.integers(1, 1 + num_drafts), min_size=steps, max_size=steps))
        tokens = np.cumsum([0, *gained[1:]])
        growth = StepGrowth(len(contexts) * tokens, longest_context=tokens)
    every = [predictor.step_time(grown(batch, growth, step)) for step in range(steps)]
    assert predictor.run(batch, growth, steps).tolist() == every
    parts = sum(operator.seconds for operator in explained(predictor, batch))
    assert parts == pytest.approx(every[0], rel=1e-12)


def test_there_is_no_line_where_longest_context_counts():
    assert roofline(MHA, A100).decode_line(12) is None
    assert roofline(MHA, L40S).decode_line(12) is not None  # 32 blocks fill its memory's bandwidth
    assert [roofline(MHA, card).traits.needs_longest_context for card in (A100, L40S)] == [1, 0]


def test_contexts_that_are_not_told_count_as_equal():
    predictor = roofline(MHA, A100)
    batch, growth = StepBatch((), 3, 9_000), StepGrowth(3, 0, 1)
    assert predictor.step_time(batch) == predictor.step_time(replace(batch, longest_context=3_000))
    every = [predictor.step_time(grown(batch, growth, step)) for step in range(50)]
    assert predictor.run(batch, growth, 50).tolist() == every
