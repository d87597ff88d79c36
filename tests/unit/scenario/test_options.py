"""`mist list options`: every option of an engine, beside what vLLM calls it."""

import pytest

from mist_sim.clients.scheduling.order import ORDERS
from mist_sim.models.quantization import KV_CACHE_BYTES
from mist_sim.scenario.from_vllm.tables import OPTIONS as NAMED
from mist_sim.scenario.options import engine_options

OPTIONS = {option.key: option for option in engine_options()}


@pytest.mark.parametrize("key", list(OPTIONS))
def test_every_option_says_what_vllm_calls_it(key):
    """A new option needs its key in mist_sim/scenario/from_vllm/flags.toml."""
    name = OPTIONS[key].vllm
    assert name is not None, f"flags.toml says nothing of {key}"
    assert name == "no counterpart" or name.startswith("--")


def test_no_name_is_left_of_an_option_that_is_gone():
    wholes = {"kv_cache.tiers", "speculative_config", "resharding", "step_time_scale"}
    assert set(NAMED) - wholes <= set(OPTIONS)


@pytest.mark.parametrize("key", list(OPTIONS))
def test_every_option_has_a_meaning(key):
    assert OPTIONS[key].meaning


def test_defaults_are_those_of_a_file():
    assert OPTIONS["gpu"].default is None
    assert OPTIONS["tensor_parallel_size"].default == "1"
    assert OPTIONS["scheduler.type"].default == "chunked"
    assert OPTIONS["kv_cache.watermark"].default == "0.0"
    assert OPTIONS["overhead.request"].default == "null"


def test_words_that_an_option_can_be_are_listed():
    assert OPTIONS["scheduler.order"].values[0] == "fcfs"
    assert OPTIONS["scheduler.order"].values == ORDERS
    assert OPTIONS["scheduler.preemption"].values == ("recompute", "swap", "async_swap")
    assert "draft_model" in OPTIONS["speculative_config.method"].values
    assert OPTIONS["quantization"].values == ("fp8", "fp8_block", "int8", "int4", "nvfp4")
    assert OPTIONS["kv_cache.kv_cache_dtype"].values == ("auto", *KV_CACHE_BYTES)
    assert "chunked" in OPTIONS["scheduler.type"].values
    assert OPTIONS["scheduler.max_num_seqs"].values == ()


def test_where_plugins_differ_each_says_its_default_and_meaning():
    budgets = {o.types: o for o in engine_options() if o.key == "scheduler.max_num_batched_tokens"}
    assert [(types, o.default) for types, o in budgets.items()] == [
        (("chunked",), "2048 or 8192 or 16384, by GPU"),
        (("continuous", "mixed", "static"), "null"),
    ]
    assert len({option.meaning for option in budgets.values()}) == 2


def test_options_of_some_plugins_say_which():
    assert OPTIONS["scheduler.long_prefill_token_threshold"].types == ("chunked",)
    assert OPTIONS["predictor.composition"].types == ("bestserve",)
    assert OPTIONS["scheduler.max_num_seqs"].types == ()
