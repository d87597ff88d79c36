"""Preemption by swapping: how long copies take, who goes on when, and what is reported."""

from typing import Any

import pytest

from mist_sim import (
    ChunkedScheduler,
    Fabric,
    KvCacheConfig,
    LlmClient,
    Result,
    Scenario,
    ScenarioError,
    Simulation,
    llm_client,
    load_model,
    simulate,
)
from mist_sim.clients.kv_cache import CacheTier, SwapSpace, swap_space
from mist_sim.clients.scheduling import Scheduler
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.predictors import PipelinePredictor
from mist_sim.models.kv_groups import KvGroups
from mist_sim.models.speculative import SpeculativeConfig
from tests.reference.comparison import POLICIES, workload
from tests.reference.engines import assert_all_is_free, llm_engine
from tests.reference.predictors import ConstantPredictor
from tests.reference.scenarios import changed, synthetic
from tests.reference.stepwise import Job
from tests.refusals import refused

DRAFTS = SpeculativeConfig(method="ngram", num_speculative_tokens=2, acceptance_rate=0.5)
WINDOWS = KvGroups(layers_per_group=1, num_full_groups=1, num_window_groups=1, sliding_window=8)
STEP, COPY = 1.0, 0.125  # seconds; of any step, and of any block
FIRST, SECOND = Job(0.0, 8, 9), Job(0.0, 8, 9)
# Two prompts of two blocks each in six blocks of four tokens. Both get their first token at 1 s
# and a third block each then. After four more steps, at 5 s, both need a fourth one: the second
# gives its three blocks up. The first one ends at 9 s.


def engine(num_ranks: int = 1, **more: Any) -> LlmClient:
    one = ConstantPredictor(STEP)
    ranks = PipelinePredictor((one,) * num_ranks, lambda num_tokens: 0.0)
    options: dict[str, Any] = {
        "scheduler": ChunkedScheduler(preemption="swap"),
        "predictor": one if num_ranks == 1 else ranks,
        "num_gpu_blocks": 6 * num_ranks,
        "block_size": 4,
        "enable_prefix_caching": False,
        "swap_space": SwapSpace(6 * num_ranks, COPY),
    }
    return llm_engine("llm", **options | more)


def served(client: LlmClient, *jobs: Job) -> Result:
    return Simulation(clients=[client], workload=workload(jobs)).run()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_step_waits_for_the_copies_before_it(policy):
    scheduler = POLICIES[policy][0](preemption="swap")
    result = served(engine(scheduler=scheduler), FIRST, SECOND)
    assert result.transfers["kind"].tolist() == ["swap_out", "swap_in"]
    assert result.transfers["num_tokens"].tolist() == [12, 12]
    assert result.transfers["start"].tolist() == [5.0, 9 + 3 * COPY]
    assert result.requests["finished_at"].tolist() == [9 + 3 * COPY, 13 + 6 * COPY]
    assert result.token_times(1).tolist()[:5] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert result.token_times(1).tolist()[5] == 10 + 6 * COPY


def test_what_the_summary_says_of_swaps():
    summary = served(engine(), FIRST, SECOND).summary
    assert summary["num_preemptions"] == summary["num_swaps"] == 1
    assert summary["swapped_tokens"] == 24
    assert summary["swap_time"] == 6 * COPY
    assert summary["max_output_tokens_per_s"] == 2


def test_nothing_is_computed_again():
    swapped = served(engine(), FIRST, SECOND).clients
    again = served(engine(scheduler=ChunkedScheduler(), swap_space=None), FIRST, SECOND).clients
    assert swapped["num_prefill_tokens"].item() == 16
    assert again["num_prefill_tokens"].item() == 16 + 13


def test_without_room_in_host_memory_all_is_computed_again():
    result = served(engine(swap_space=SwapSpace(2, COPY)), FIRST, SECOND)
    assert result.transfers.empty
    assert result.summary["num_preemptions"] == 1
    assert "num_swaps" not in result.summary
    assert result.clients["num_prefill_tokens"].item() == 16 + 13


def test_the_size_of_the_swap_space():
    """4 GiB a GPU hold 2,048 blocks of 2 MiB; each comes over all links at once."""
    model, gpu = load_model("llama-3.1-8b"), load_gpu("h100-sxm")
    block_bytes = 16 * model.kv_bytes_per_token
    assert swap_space(KvCacheConfig(), model, Cluster(gpu)).num_blocks == 2**32 // block_bytes
    four = swap_space(
        KvCacheConfig(swap_space=2**30), model, Cluster(gpu, 2, 3, pipeline_parallel_size=2)
    )
    assert four.num_blocks == 4 * 2**30 // block_bytes
    assert four.seconds_per_block == pytest.approx(block_bytes / (4 * gpu.host_bandwidth))


def scenario(**changes: Any) -> Scenario:
    """Answers that outgrow the memory which their prompts were admitted to."""
    data = {
        "model": "llama-3.1-8b",
        "workload": synthetic(40, 500, 400, "all_at_once"),
        "clients": [
            {
                "name": "llm",
                "gpu": "h100-sxm",
                "scheduler": {"preemption": "swap"},
                "kv_cache": {"num_gpu_blocks_override": 800},
            }
        ],
    }
    return changed(data, **changes)


SWAP_SPACE, PREEMPTION = "clients__0__kv_cache__swap_space", "clients__0__scheduler__preemption"


@pytest.mark.parametrize("change", [{SWAP_SPACE: "256 MiB"}, {PREEMPTION: "recompute"}])
def test_both_options_change_a_result(change, tmp_path):
    plain, changed = simulate(scenario()), simulate(scenario(**change))
    assert plain.summary["num_swaps"] > changed.summary.get("num_swaps", 0)
    assert plain.summary["mean_tpot_ms"] != changed.summary["mean_tpot_ms"]
    assert (plain.save(tmp_path / "out") / "transfers.parquet").exists()


test_refusals = refused(
    lambda changes: simulate(scenario(**changes)),
    ({PREEMPTION: "swop"}, "preemption"),
    ({SWAP_SPACE: "0 GiB"}, "swap_space: must be finite and > 0 B"),
    ({SWAP_SPACE: "1 MiB"}, "swap_space has 1,048,576 bytes on 1 GPUs, less than a block"),
    ({PREEMPTION: "recompute", SWAP_SPACE: "1 GiB"}, "kv_cache: must have no swap_space, since"),
    (
        {"clients__0__kv_cache__tiers": [{"name": "cpu", "capacity": "1 GiB"}]},
        "scheduler: must have preemption: recompute with tiers",
    ),
)


def test_refusals_in_python():
    with pytest.raises(ValueError, match="preemption has no 'swop'; did you mean 'swap'"):
        ChunkedScheduler(preemption="swop")
    with pytest.raises(ScenarioError, match="swap_space is required when"):
        engine(swap_space=None)
    with pytest.raises(ScenarioError, match="swap_space must be null unless"):
        engine(scheduler=ChunkedScheduler())
    with pytest.raises(ScenarioError, match="must have preemption: recompute with tiers"):
        engine(enable_prefix_caching=True, cache_tiers=[CacheTier("cpu", 10, 0.0, 0.0)])
    with pytest.raises(ScenarioError, match="less than one for each of 2 lanes"):
        engine(2, swap_space=SwapSpace(1, COPY))
    with pytest.raises(ScenarioError, match="must have no swap_space"):
        llm_client("llm", kv_cache=KvCacheConfig(swap_space=2**30))


def test_schedulers_recompute_by_default():
    assert Scheduler.preemption == "recompute"


# --- copies that overlap with steps ---------------------------------------------------------------
#
# In nine blocks of four tokens: a prompt of six tokens, and two of eight. In the step from 5 s on
# both of eight need a fourth block, and the third gives its three up.

SHORT = Job(0.0, 6, 6)


def overlapping(**more: Any) -> LlmClient:
    scheduler = ChunkedScheduler(preemption="async_swap")
    return engine(**{"scheduler": scheduler, "num_gpu_blocks": 9, **more})


def test_steps_go_on_while_blocks_are_copied():
    """Of nine blocks, three are on their way until 5.375 s: free at 6 s, when the step has ended.

    The second request, which needs one, sits a step out; the first one gets its last token in it.
    Then there is room for all: the third's blocks are back at 6.375 s, and it goes on at 7 s.
    """
    result = served(overlapping(), SHORT, FIRST, SECOND)
    assert result.token_times(0).tolist() == [1, 2, 3, 4, 5, 6]
    assert result.token_times(1).tolist() == [1, 2, 3, 4, 5, 7, 8, 9, 10]
    assert result.token_times(2).tolist() == [1, 2, 3, 4, 5, 8, 9, 10, 11]
    moves = result.transfers
    assert moves["kind"].tolist() == ["swap_out", "swap_in"]
    assert moves["start"].tolist() == [5.0, 6.0]
    assert moves["end"].tolist() == [5 + 3 * COPY, 6 + 3 * COPY]
    by_start = result.steps.set_index("start")
    assert by_start["num_decodes"][5.0] == 1
    assert by_start["num_used_blocks"][[5.0, 6.0]].tolist() == [9, 7]


@pytest.mark.parametrize("timeout", [5.25, 5.5, 6.25, 6.5, 8.5])
def test_who_gives_up_during_a_copy_leaves_nothing(timeout):
    """On its way out, when it is out, on its way back, when it is back, and when it decodes."""
    client = overlapping()
    given_up = Job(0.0, 8, 9, timeout=timeout)
    result = served(client, SHORT, FIRST, given_up, Job(12.0, 4, 1))
    assert result.requests["status"].tolist() == ["finished"] * 2 + ["timed_out", "finished"]
    assert_all_is_free(client)


def test_who_gives_up_makes_room_in_host_memory_when_it_is_copied():
    """Of three blocks of host memory none is free until the copy has ended."""
    client = overlapping(swap_space=SwapSpace(3, 1.0))
    jobs = SHORT, FIRST, Job(0.0, 8, 9, timeout=5.25)
    served(client, *jobs, Job(12.0, 4, 1))
    assert_all_is_free(client)


def test_over_a_topology_copies_take_its_links():
    """A block of 8 GB over 64 GB/s takes 1/8 s each way, as on the link of its own."""
    network = Fabric(topology="hgx-h100", nodes=1, pcie=64e9)
    plain = served(overlapping(), SHORT, FIRST, SECOND)
    client = overlapping(kv_block_bytes=8e9)
    result = Simulation(
        clients=[client], workload=workload([SHORT, FIRST, SECOND]), network=network
    ).run()
    assert result.transfers["end"].tolist() == plain.transfers["end"].tolist()
    assert result.transfers["num_bytes"].tolist() == [24e9, 24e9]


test_what_does_not_go_with_overlap = refused(
    lambda options: overlapping(**options),
    ({"speculative_config": DRAFTS}, "not have preemption: async_swap with speculative_config"),
    ({"kv_groups": WINDOWS}, "not have preemption: async_swap with a model with sliding"),
)
