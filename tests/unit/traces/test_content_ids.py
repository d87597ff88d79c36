"""Content ids: others' own, those made here, and those that adapters set apart."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mist_sim as mist
from mist_sim.core.content_ids import OF_OTHERS, OF_RUN, computed_by, content_id, origin_of

ORIGINS = range(OF_OTHERS, OF_RUN + 1)


def _numbers(origin):
    return range(100) if origin == OF_OTHERS else range(-100, 100)


@given(st.sampled_from(ORIGINS), st.integers(-(2**70), 2**70), st.integers(1, 9), st.data())
def test_ids_tell_origin_number_and_variant(origin, number, num_variants, data):
    if origin == OF_OTHERS:
        number = abs(number)
    variant = data.draw(st.integers(0, num_variants - 1))
    span = content_id(origin, number)
    assert origin_of(span) == (origin, number)
    assert (span >= 0) == (origin == OF_OTHERS)
    ((apart, length),) = computed_by(((span, 7),), variant, num_variants)
    assert origin_of(apart) == (origin, number * num_variants + variant)
    assert length == 7


def test_small_ids_of_different_origins_differ():
    ids = [content_id(origin, number) for origin in ORIGINS for number in _numbers(origin)]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("pair", list(itertools.combinations((0, 1, 5, 8, 40, 2**61), 2)))
def test_prompts_with_other_ids_share_nothing(pair):
    """Numbers that a script gives once were taken for blocks of traces, and joined with others."""
    items = [mist.TraceRow(200, 10, content=((number, 210),)) for number in pair]
    run = mist.Simulation(
        clients=[mist.llm_client("llm", model="llama-3.1-8b", gpu="l40s")],
        workload=mist.Workload(mist.Rows(items), mist.ClosedLoop(concurrency=1)),
    ).run()
    assert run.requests.num_cached_tokens.tolist() == [0, 0]


def test_prompts_with_the_same_id_share_their_blocks():
    items = [mist.TraceRow(200, 10, content=((0, 210),))] * 2
    run = mist.Simulation(
        clients=[mist.llm_client("llm", model="llama-3.1-8b", gpu="l40s")],
        workload=mist.Workload(mist.Rows(items), mist.ClosedLoop(concurrency=1)),
    ).run()
    assert run.requests.num_cached_tokens.tolist() == [0, 192]
