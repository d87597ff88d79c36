"""Prefill context parallelism: vLLM's cut of a step, its rules, memory, and laws of step times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mist_sim as mist
from mist_sim import Simulation, Workload
from mist_sim.core.batch import StepBatch, StepGrowth, grown
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.collectives import all_gather
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.hardware.predictors.analytic.context_parallel import (
    of_group,
    with_shared_prompts,
)
from mist_sim.hardware.predictors.ranks import ranks_of
from mist_sim.models import load_model
from tests.effort import examples

NAME = "prefill_context_parallel_size"
DENSE, SPARSE = load_model("deepseek-v3"), load_model("deepseek-v3.2")
H200 = load_gpu("h200")


def cluster(groups, ranks=8, **split):
    sizes = {"tensor_parallel_size": ranks // groups, NAME: groups}
    return Cluster(H200, enable_expert_parallel=True, **sizes, **split)


def predictor(model, groups):
    alone = ranks_of(RooflinePredictor(model, cluster(groups)))
    return with_shared_prompts(alone).ranks[0]


def client(model=DENSE, groups=2, **options):
    sizes = {"tensor_parallel_size": 8 // groups, NAME: groups, "enable_expert_parallel": True}
    return mist.llm_client("llm", model=model, gpu="h200", **{**sizes, **options})


def cut(new, context, groups, group):
    """The pieces of a group as `PCPManager._iter_rank_chunks` has them."""
    size = -(-new // (2 * groups))
    for piece in (group, 2 * groups - 1 - group):
        if (tokens := min(size, new - piece * size)) > 0:
            yield tokens, context + piece * size


def pairs(pieces):
    return sum(new * context + new * (new + 1) // 2 for new, context in pieces)


@given(
    new=st.integers(1, 3_000),
    context=st.integers(0, 9_000),
    decodes=st.integers(0, 70),
    groups=st.integers(2, 8),
)
def test_group_that_is_timed_has_most_of_step(new, context, decodes, groups):
    batch = StepBatch(((new, context),), decodes, 700 * decodes)
    mine = of_group(batch, groups)
    each = [list(cut(new, context, groups, group)) for group in range(groups)]
    assert sum(tokens for pieces in each for tokens, _ in pieces) == new
    most = max(sum(tokens for tokens, _ in pieces) for pieces in each)
    size = -(-new // (2 * groups))
    if new > groups * size:  # the middle pieces are there, as of all prompts but the shortest
        assert list(mine.chunks) == each[groups - 1]
        assert mine.num_prefill_tokens == min(2 * size, new - (groups - 1) * size)
    if new % (2 * groups) == 0:
        assert {pairs(pieces) for pieces in each} == {pairs(mine.chunks)}
        assert mine.num_prefill_tokens == most
    assert 1 <= mine.num_prefill_tokens <= most
    assert mine.num_decodes == len(range(0, decodes, groups))
    assert mine.context_sum == 700 * mine.num_decodes


def test_a_step_is_that_of_replicas_with_experts_in_common_and_the_exchange():
    """Of 4 groups: 4 replicas of two GPUs, each with a quarter of prompts and decodes."""
    batch = StepBatch(((4096, 1024),), 16, 16 * 2000)
    replicas = Cluster(H200, 2, data_parallel_size=4, enable_expert_parallel=True)
    mine = StepBatch(((512, 1024 + 3 * 512), (512, 1024 + 4 * 512)), 4, 4 * 2000)
    gather = all_gather(cluster(4).gpu.interconnect, 4)
    expected = 61 * gather(4112 * 576 * 2) + gather(4112 * 7168 * 2)
    assert predictor(DENSE, 4).seconds(batch) == pytest.approx(expected, rel=1e-12)
    alone = RooflinePredictor(DENSE, replicas).step_time(mine)
    assert predictor(DENSE, 4).step_time(batch) == pytest.approx(alone + expected, rel=1e-12)


def test_long_prompts_gain_where_an_indexer_looks_at_all_tokens():
    long = StepBatch(((8192, 65_536),))
    whole = RooflinePredictor(SPARSE, Cluster(H200, 8, enable_expert_parallel=True))
    assert predictor(SPARSE, 8).step_time(long) < 0.4 * whole.step_time(long)


@examples(60)
@given(
    model=st.sampled_from([DENSE, SPARSE]),
    chunks=st.lists(st.tuples(st.integers(1, 600), st.integers(0, 9000)), max_size=2),
    decodes=st.integers(0, 40),
    num_steps=st.integers(1, 9),
)
def test_runs_are_single_steps_to_the_bit(model, chunks, decodes, num_steps):
    if not chunks and not decodes:
        return
    parts = predictor(model, 2)
    batch = StepBatch(tuple(chunks), decodes, 900 * decodes + 1)
    growth = StepGrowth(decodes)
    singly = [parts.step_time(grown(batch, growth, number)) for number in range(num_steps)]
    assert np.array_equal(parts.run(batch, growth, num_steps), singly)


def test_groups_hold_all_entries_and_share_experts():
    groups, replicas = (
        client(groups=4),
        client(groups=1, tensor_parallel_size=2, data_parallel_size=4),
    )
    held = [
        DENSE.weight_bytes_per_rank(2, each.traits.machine.cluster.expert_parallel_size)
        for each in (groups, replicas)
    ]
    assert held[0] == held[1]
    assert groups.memory.num_blocks == pytest.approx(replicas.memory.num_blocks, rel=0.01)
    assert groups.traits.num_gpus == replicas.traits.num_gpus == 8
    assert groups.traits.machine.gpus_an_engine == 8


def test_a_run_counts_all_gpus():
    workload = Workload.from_lists([4096] * 4, [16] * 4, [0.0] * 4)
    run, whole = (
        Simulation(clients=[client(groups=groups)], workload=workload).run() for groups in (4, 1)
    )
    summary = run.summary
    assert summary["completed"] == 4
    assert run.clients["num_gpus"].sum() == 8
    assert all(bar["low"] is None for bar in summary["expected_errors"]["llm"].values())
    watts = [each.summary["energy_j"] / each.summary["duration"] for each in (run, whole)]
    assert watts[0] == pytest.approx(watts[1], rel=0.3)  # as busy, on as many GPUs


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"model": "llama-3.1-8b"}, "must be 1 with llama-3.1-8b: prompts of models without"),
        ({"model": "qwen3.5-397b-a17b"}, "must be 1 with qwen3.5-397b-a17b"),
        ({"enable_expert_parallel": False}, "needs enable_expert_parallel with deepseek-v3"),
        ({"role": "prefill"}, "role must be left out with prefill_context_parallel_size 2"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size must be 1 with prefill_context"),
        ({"decode_context_parallel_size": 2}, "decode_context_parallel_size must be 1 with pref"),
        ({NAME: 0}, "prefill_context_parallel_size must be >= 1, got 0"),
        ({"predictor": predictor(DENSE, 2)}, "predictor must be roofline with prefill_context"),
    ],
)
def test_what_vllm_or_we_do_not_share_out_is_refused(options, problem):
    if "enable_expert_parallel" not in options and options.get("model") == "llama-3.1-8b":
        options = {**options, "enable_expert_parallel": False}
    with pytest.raises(ScenarioError, match=problem):
        client(**options)


def test_the_flag_of_vllm(mist):
    line = "vllm serve deepseek-v3 -tp 4 -pcp 2 --enable-expert-parallel"
    code, out, _ = mist("from-vllm", line, "--gpu", "h200")
    assert code == 0
    assert f"{NAME}: 2" in out


def test_older_versions_have_no_back_end_for_it(mist):
    line = "vllm serve deepseek-v3 -tp 4 -pcp 2 --enable-expert-parallel"
    code, _, err = mist("from-vllm", line, "--gpu", "h200", "--engine", "vllm-0.24")
    assert code == 2
    assert "which no back end has before 0.33" in err


@examples(100)
@given(
    shared=st.dictionaries(st.integers(2, 64), st.integers(1, 8_000), min_size=1, max_size=3),
    more=st.integers(0, 64),
    groups=st.sampled_from([2, 4]),
)
def test_no_group_reads_faster_than_its_cache_allows(shared, more, groups):
    """Decodes that share a prefix are spread over the groups, each with caches of its own."""
    model, decodes = DENSE, max(shared) + more
    keys = sum(readers * tokens for readers, tokens in shared.items()) + decodes
    timed = predictor(model, groups)
    again = timed.traits.reads_again(shared, decodes, keys)
    batch = StepBatch((), decodes, keys - decodes, num_read_again=again)
    mine = of_group(batch, groups)
    assert 0 <= mine.num_read_again <= mine.context_sum
    alone = RooflinePredictor(model, cluster(groups))
    read = mine.context_sum + mine.num_decodes
    each = {readers // groups: tokens for readers, tokens in shared.items() if readers >= groups}
    if len(shared) == 1:
        most = alone.traits.reads_again({n: each[n] for n in each if n > 1}, mine.num_decodes, read)
        assert mine.num_read_again <= most + 1
    assert timed.step_time(batch) <= timed.step_time(StepBatch((), decodes, keys - decodes))
