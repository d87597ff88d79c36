"""A client that re-shards: overlap of copies, bad input, options, and what a timeline shows."""

import json
from dataclasses import replace

import pytest

import mist_sim as mist
from mist_sim import ContinuousScheduler, Workload, llm_client
from mist_sim.clients.kv_cache import KvCacheConfig
from mist_sim.clients.options.resharding_options import Resharding
from mist_sim.core.batch import StepBatch
from mist_sim.errors import ScenarioError
from mist_sim.hardware.predictors import PipelinePredictor
from mist_sim.hardware.resharding import SeesawPredictor
from tests.reference.predictors import AWKWARD
from tests.reference.resharding import BLOCK_BYTES, resharding_engine

PLAIN = replace(AWKWARD, per_longest=0.0, needs_longest_context=False)
PROMPT, OUTPUT, NUM = 64, 9, 40  # 16 blocks of 4 tokens
SCHEDULER = ContinuousScheduler(max_num_seqs=64, max_num_batched_tokens=2 * PROMPT)


def client(per_block: float, weights: float = 0.0, num_gpu_blocks: int = 10_000, **options):
    bandwidth = BLOCK_BYTES / per_block if per_block else 1e300
    return resharding_engine(
        PLAIN,
        PLAIN,
        num_host_blocks=10_000,
        host_bandwidth=bandwidth,
        weights=weights,
        options={"tensor_parallel_size": 2} | options,
        scheduler=SCHEDULER,
        num_gpu_blocks=num_gpu_blocks,
        block_size=4,
        enable_prefix_caching=False,
        kv_block_bytes=BLOCK_BYTES,
    )


def run(engine, num=NUM):
    workload = Workload.from_lists([PROMPT] * num, [OUTPUT] * num, [0.0] * num)
    return mist.Simulation(clients=[engine], workload=workload).run()


PROMPTS = NUM / 2 * PLAIN.step_time(StepBatch(((PROMPT, 0),) * 2))  # seconds of all prompts
BLOCKS = NUM * PROMPT // 4
KINDS = {"prefill", "decode"}


# --- overlap ------------------------------------------------------------------------------------


@pytest.mark.parametrize("slower", [10, 40])
def test_a_slow_link_is_what_binds(slower):
    """Copies out take `slower` times as long as prompts: bytes over bandwidth, within 2 %."""
    per_block = slower * PROMPTS / BLOCKS
    result = run(client(per_block, num_gpu_blocks=64))
    moves = result.transfers
    out = moves[moves["kind"] == "swap_out"]
    copied = out["num_bytes"].sum() / (BLOCK_BYTES / per_block)
    assert out["num_bytes"].sum() == BLOCKS * BLOCK_BYTES
    assert out["end"].max() == pytest.approx(copied, rel=0.02)
    back = moves[moves["kind"] == "swap_in"]
    assert result.summary["duration"] == pytest.approx(2 * copied, rel=0.02)
    assert back["start"].min() >= out["end"].max()


def test_copies_hide_behind_prompts():
    """At a tenth of the prompts' time nothing waits for the link but the last copy."""
    per_block = PROMPTS / 10 / BLOCKS
    hidden, free = run(client(per_block)), run(client(0.0))
    prefill = [each.steps.query("num_chunks > 0")["end"].max() for each in (hidden, free)]
    assert prefill[0] == prefill[1]
    assert hidden.steps["layout"].max() == 2


def test_with_a_link_at_infinity_it_is_a_run_without_swaps():
    """All fits on the GPUs: prompts, then answers, with the times of the client without buffer."""
    swapping = run(client(0.0, prefetch=False))
    staying = run(client(0.0, policy="decode_prioritised"))
    for number in range(NUM):
        assert swapping.token_times(number).tolist() == staying.token_times(number).tolist()
    assert len(swapping.transfers) == 2 * NUM
    assert staying.transfers.empty


def test_transitions_load_weights_over_the_link():
    slow = run(client(1e-4, weights=0.5 * BLOCK_BYTES / 1e-4))
    periods = slow.summary["layouts"]
    assert [each["ready"] - each["start"] for each in periods] == pytest.approx([0.0, 0.5, 0.5])


def test_entries_that_stay_cross_the_host_in_transition():
    """Without a buffer, all entries go out and in again: 2 x blocks over the link."""
    result = run(client(1e-4, policy="decode_prioritised"))
    last = result.summary["layouts"][-1]
    assert last["ready"] - last["start"] == pytest.approx(2 * BLOCKS * 1e-4)


def test_the_host_copies_from_pinned_to_shared_memory_behind_the_link():
    """What the host copies slowly comes back later; the GPUs' blocks are free before that."""
    fast, slow = client(1e-5), client(1e-5, host_copy_bandwidth=BLOCK_BYTES / 1e-4)
    fast, slow = run(fast), run(slow)
    prompts = [each.steps.query("num_chunks > 0")["end"].max() for each in (fast, slow)]
    assert prompts[0] == prompts[1]
    assert slow.summary["duration"] > fast.summary["duration"] + 0.5 * BLOCKS * 1e-4


def test_entries_by_token_take_longer():
    by_head, by_token = run(client(1e-3)), run(client(1e-3, kv_layout_efficiency=0.5))
    assert by_token.summary["duration"] == pytest.approx(2 * by_head.summary["duration"], rel=0.02)


# --- entries that come back while prompts are computed ------------------------------------------


def with_full_buffer(prefetch, **options):
    """Return a run whose buffer holds a quarter of all entries, and its GPUs twice as many."""
    engine = resharding_engine(
        PLAIN,
        PLAIN,
        num_host_blocks=BLOCKS // 4,
        host_bandwidth=BLOCK_BYTES / (PROMPTS / 10 / BLOCKS),
        options={"tensor_parallel_size": 2, "prefetch": prefetch} | options,
        scheduler=SCHEDULER,
        num_gpu_blocks=BLOCKS // 2,
        block_size=4,
        enable_prefix_caching=False,
        kv_block_bytes=BLOCK_BYTES,
    )
    return run(engine)


def test_what_came_back_leaves_room_in_the_buffer_for_more_prompts():
    """The GPUs' free blocks take some of the entries, so that more prompts make a cycle."""
    with_it, without = (with_full_buffer(each) for each in (True, False))
    cycles = [(len(each.summary["layouts"]) - 1) // 2 for each in (with_it, without)]
    assert cycles == [2, 4]
    for result in (with_it, without):
        assert (result.requests["status"] == "finished").all()


def test_entries_come_back_while_prompts_are_computed_and_leave_them_their_blocks():
    """The first prompts take no longer than without; the next batch has 32 blocks."""
    with_it, without = (with_full_buffer(each) for each in (True, False))
    first = [each.summary["layouts"][2]["start"] for each in (with_it, without)]
    moves = with_it.transfers
    back = moves[(moves["kind"] == "swap_in") & (moves["end"] <= first[0])]
    assert 0 < back["num_bytes"].sum() / BLOCK_BYTES <= BLOCKS // 2 - 2 * PROMPT // 4
    in_common = without.steps.query("num_chunks > 0 and end <= @first[1]")
    assert with_it.steps.iloc[: len(in_common)]["end"].tolist() == in_common["end"].tolist()
    none_back = without.transfers
    none_back = none_back[none_back["kind"] == "swap_in"]
    assert none_back["start"].min() >= first[1]


# --- under a limit on TTFT ----------------------------------------------------------------------


def test_hysteresis_saves_transitions():
    """Prompts that come one by one go together when the lower threshold is far below the upper."""
    numbers = []
    for to_decode in (0.8, 0.0):
        engine = client(
            1e-6, policy="ttft_bound", ttft_limit=0.1, to_prefill=0.9, to_decode=to_decode
        )
        times = [0.004 * n for n in range(NUM)]
        workload = Workload.from_lists([PROMPT] * NUM, [600] * NUM, times)
        result = mist.Simulation(clients=[engine], workload=workload).run()
        numbers.append(len(result.summary["layouts"]))
        assert (result.requests["status"] == "finished").all()
        assert result.requests["ttft"].max() < 0.1
    assert numbers[0] > 3 * numbers[1]


# --- bad input ----------------------------------------------------------------------------------


def built(model="llama-2-70b", gpu="a10", tensor=8, **options):
    engine = {"pipeline_parallel_size": 8} | options
    more = {key: engine.pop(key) for key in ("scheduler", "data_parallel_size") if key in engine}
    return llm_client(
        "llm",
        model=model,
        gpu=gpu,
        tensor_parallel_size=tensor,
        kv_cache=KvCacheConfig(enable_prefix_caching=False),
        predictor=SeesawPredictor,
        resharding=Resharding(**engine),
        **more,
    )


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"pipeline_parallel_size": 4}, ("TP 1 x PP 4 = 4", "TP 8 x PP 1 = 8")),
        ({"host_memory": 1e6}, ("resharding.host_memory", "GiB", "one prompt")),
        ({"host_bandwidth": 0.0}, ("host_bandwidth must be finite and > 0 B/s, got 0",)),
        ({"host_copy_bandwidth": -1.0}, ("host_copy_bandwidth must be finite and > 0",)),
        ({"policy": "prefill_first"}, ("policy has no 'prefill_first'", "prefill_prioritised")),
        ({"running": "wait"}, ("running has no 'wait'", "drain")),
        ({"threshold": 0.5}, ("threshold has no effect",)),
        ({"policy": "threshold", "threshold": 2.0}, ("threshold must be in (0, 1]",)),
        ({"policy": "threshold", "running": "out"}, ("running has no effect", "no buffer")),
        ({"policy": "threshold", "prefetch": True}, ("prefetch has no effect", "no buffer")),
        ({"ttft_limit": 2.0}, ("ttft_limit has no effect with policy: transition_minimising",)),
        ({"to_prefill": 0.3}, ("to_prefill has no effect",)),
        ({"policy": "ttft_bound"}, ("ttft_limit must be a time > 0", "got None")),
        ({"policy": "ttft_bound", "ttft_limit": 0.0}, ("ttft_limit must be a time > 0",)),
        (
            {"policy": "ttft_bound", "ttft_limit": 2.0, "to_decode": 0.5},
            ("to_decode must be >= 0 and below to_prefill, got 0.5 and 0.5",),
        ),
        (
            {"policy": "ttft_bound", "ttft_limit": 2.0, "running": "drain"},
            ("running must be out", "got drain"),
        ),
        ({"kv_layout_efficiency": 0.0}, ("kv_layout_efficiency must be in (0, 1]",)),
        ({"scheduler": mist.ChunkedScheduler()}, ("scheduler must be continuous",)),
        ({"tensor_parallel_size": 0}, ("tensor_parallel_size must be >= 1",)),
    ],
)
def test_bad_input_is_refused_with_the_sizes(options, parts):
    with pytest.raises(ScenarioError) as error:
        built(**options)
    for part in parts:
        assert part in str(error.value)


def test_both_layouts_have_to_fit():
    """A pipeline cannot have more ranks than the model has layers."""
    with pytest.raises(ScenarioError, match=r"resharding, TP 1 x PP 72 for prompts: .*64 layers"):
        llm_client(
            "llm",
            model="llama-3-15b",
            gpu="a10",
            tensor_parallel_size=8,
            pipeline_parallel_size=9,
            kv_cache=KvCacheConfig(enable_prefix_caching=False),
            resharding=Resharding(pipeline_parallel_size=72),
        )


def test_prompt_that_one_layout_cannot_hold_is_refused():
    engine = client(0.0, num_gpu_blocks=20)
    workload = Workload.from_lists([PROMPT, 100], [4, 4], [0.0, 0.0])
    result = mist.Simulation(clients=[engine], workload=workload).run()
    assert result.requests["status"].tolist() == ["finished", "rejected"]
    assert "100 tokens exceed the 80 that lanes" in result.requests["reason"][1]


# --- files --------------------------------------------------------------------------------------


def test_what_nobody_said_is_named():
    assert "resharding.host_memory" in built().traits.times.assumed
    assert "resharding.host_memory" not in built(host_memory=80e9).traits.times.assumed


def test_layouts_have_a_lane_of_a_timeline_however_often_they_come(tmp_path):
    """Both layouts of these clients have one engine, and the same title."""
    result = run(client(1e-4, num_gpu_blocks=150, policy="decode_prioritised"))
    assert len(result.summary["layouts"]) > 6
    result.save_timeline(tmp_path / "timeline.json")
    events = json.loads((tmp_path / "timeline.json").read_text("utf-8"))["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    titles = dict.fromkeys(each["layout"] for each in result.summary["layouts"])
    assert sorted(names) == sorted([*(f"{title}, engine 0" for title in titles), "re-shard"])
    steps = [event for event in events if event["ph"] == "X" and event["name"] in KINDS]
    assert len(steps) == len(result.steps)


def test_it_is_a_setting_like_any_other():
    """Whoever varies a scenario may leave it out, or have another layout for prompts."""
    base = {"workload.lengths.num_requests": 8}
    cases = ({}, {"clients.0.resharding": None}, {"clients.0.resharding.tensor_parallel_size": 8})
    cases[2]["clients.0.resharding.pipeline_parallel_size"] = 1
    results = [mist.simulate(mist.Scenario.load("seesaw", base | case)) for case in cases]
    titles = [[each["layout"] for each in r.summary.get("layouts", ())] for r in results]
    assert titles == [
        ["TP 4 x PP 2", "PP 8", "TP 4 x PP 2"],
        [],
        ["TP 4 x PP 2", "TP 8", "TP 4 x PP 2"],
    ]


def test_a_headline_counts_all_gpus():
    assert "seesaw (codellama-34b on 8 x a10)" in mist.Scenario.load("seesaw").headline


def test_a_timeline_shows_transitions_and_copies(tmp_path):
    result = run(client(1e-4, weights=1.0))
    result.save_timeline(tmp_path / "timeline.json")
    events = json.loads((tmp_path / "timeline.json").read_text("utf-8"))["traceEvents"]
    names = {event["name"] for event in events}
    assert {"prefill", "decode", "swap_out gpu to host", "swap_in host to gpu"} <= names
    assert any(name.startswith("re-shard to") for name in names)


# --- progress -----------------------------------------------------------------------------------


def test_answer_that_outgrows_lanes_for_answers_is_refused():
    """Its prompt fills the six blocks of a lane; the first answer's does not."""
    engine = resharding_engine(
        PLAIN,
        PipelinePredictor((PLAIN, PLAIN), lambda _: 0.0),
        num_host_blocks=20,
        options={"tensor_parallel_size": 8},
        scheduler=ContinuousScheduler(max_num_seqs=4),
        num_gpu_blocks=12,
        block_size=4,
        enable_prefix_caching=False,
        kv_block_bytes=BLOCK_BYTES,
    )
    workload = Workload.from_lists([20, 24], [4, 4], [0.0, 0.0])
    result = mist.Simulation(clients=[engine], workload=workload).run()
    assert result.requests["status"].tolist() == ["finished", "rejected"]
    assert "25 tokens" in result.requests["reason"][1]
    assert engine.phases.room.num_used == 0
