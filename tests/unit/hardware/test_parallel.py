"""Pipelines and replicas: how a model is split, what a pipeline yields, what is refused."""

import pytest

from mist_sim import (
    ChunkedScheduler,
    EngineOverhead,
    KvCacheConfig,
    PipelinePredictor,
    Scenario,
    ScenarioError,
    Simulation,
    Workload,
    llm_client,
)
from mist_sim.clients.kv_cache import num_gpu_blocks
from mist_sim.core.batch import StepBatch
from mist_sim.core.front_end import NONE
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.predictors import RooflinePredictor, pipeline_predictor
from mist_sim.models import load_model
from mist_sim.models.spec import layers_per_rank, rank_part
from mist_sim.scenario.build import build
from tests.reference.engines import llm_engine
from tests.reference.predictors import ConstantPredictor
from tests.refusals import refused

MODEL = load_model("llama-3.1-8b")
H100 = load_gpu("h100-sxm")
PROMPT, DECODES = StepBatch(((2048, 0),)), StepBatch((), 16, 16 * 1024)


# --- the parts of a model -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_layers", "size", "expected"),
    [
        (32, 1, [32]),
        (32, 4, [8, 8, 8, 8]),
        (22, 4, [5, 6, 6, 5]),
        (5, 3, [2, 2, 1]),
        (4, 3, [1, 2, 1]),
        (3, 2, [2, 1]),
    ],
)
def test_remainder_of_layers_goes_to_ranks_before_last(num_layers, size, expected):
    """The cases of vLLM's tests/distributed/test_pipeline_partition.py, and even ones."""
    assert layers_per_rank(num_layers, size) == expected


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3", "gpt-oss-120b", "qwen3-4b"])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_the_parts_make_the_whole(name, size):
    model = load_model(name)
    parts = [rank_part(model, rank, size) for rank in range(size)]
    copied = model.vocab_size * model.hidden_size if model.tie_word_embeddings and size > 1 else 0
    assert sum(part.num_parameters for part in parts) == model.num_parameters + copied
    assert sum(part.kv_bytes_per_token for part in parts) == model.kv_bytes_per_token
    assert sum(len(part.window_layers) for part in parts) == len(model.window_layers)
    if size == 1:
        assert parts == [model]


def test_ranks_take_together_what_the_whole_takes():
    one = RooflinePredictor(MODEL, Cluster(H100))
    ranks = pipeline(4).ranks
    for batch in (PROMPT, DECODES):
        together = sum(rank.step_time(batch) for rank in ranks)
        assert together == pytest.approx(one.step_time(batch))


def pipeline(size, tensor=1, model=MODEL):
    cluster = Cluster(H100, tensor, pipeline_parallel_size=size)
    return pipeline_predictor(lambda part: RooflinePredictor(part, cluster), model, cluster)


def test_equal_ranks_share_a_predictor():
    ranks = pipeline(4).ranks
    assert ranks[1] is ranks[2]
    assert len({id(rank) for rank in ranks}) == 3
    assert ranks[3].step_time(DECODES) > ranks[1].step_time(DECODES)  # the output head


def test_the_hand_over_sends_hidden_state_and_residual():
    sent = 2 * 2048 * MODEL.hidden_size * 2
    bandwidth = H100.interconnect.bandwidth * H100.interconnect.efficiency
    fixed = pipeline(2).rank_delay(0)
    assert 0 < fixed < 20e-6
    assert pipeline(2).rank_delay(2048) == pytest.approx(sent / bandwidth, rel=0.2)
    assert pipeline(2).rank_delay(2048) == pipeline(2, tensor=4).rank_delay(2048)


def test_overhead_of_pass_is_paid_on_first_rank():
    overhead = EngineOverhead(step=3e-3, sequence=0.0)
    plain = pipeline(4)
    with_host = plain.with_first(overhead.around(plain.ranks[0]))
    slower = [
        after.step_time(DECODES) - before.step_time(DECODES)
        for before, after in zip(plain.ranks, with_host.ranks, strict=True)
    ]
    assert slower == pytest.approx([3e-3, 0, 0, 0])


# --- memory ---------------------------------------------------------------------------------


def blocks(size, model=MODEL, tensor=1):
    return num_gpu_blocks(
        KvCacheConfig(),
        model,
        Cluster(H100, tensor, pipeline_parallel_size=size),
        max_num_batched_tokens=2048,
        max_num_seqs=256,
    )


def test_more_ranks_hold_more_tokens_than_their_number():
    """Seesaw, appendix A: b_max grows super-linearly with TP x PP, since weights are split too."""
    assert blocks(4) > 4 * blocks(1)
    assert blocks(4) == pytest.approx(blocks(1, tensor=4), rel=0.05)


def test_the_fullest_rank_decides():
    """70 layers on four ranks are 17, 18, 18, 17."""
    size = 4
    model = load_model("bloom-176b")
    assert layers_per_rank(model.num_layers, size) == [17, 18, 18, 17]
    fullest = rank_part(model, 0, size)
    assert fullest.weight_bytes_per_rank(4) > rank_part(model, 1, size).weight_bytes_per_rank(4)
    held = blocks(size, model, tensor=4) * 16 * fullest.kv_bytes_per_token_per_rank(4)
    assert held + fullest.weight_bytes_per_rank(4) < 0.9 * H100.memory


def test_a_model_that_does_not_fit_one_gpu_fits_four_ranks():
    with pytest.raises(ScenarioError, match="tensor_parallel_size"):
        llm_client("one", model="llama-3.1-70b")
    assert llm_client("four", model="llama-3.1-70b", pipeline_parallel_size=4).num_gpu_blocks


# --- what a pipeline yields -----------------------------------------------------------------

SECONDS = 0.25  # of a pass on a rank


def constant_pipeline(num_ranks, num_requests, num_output_tokens):
    client = llm_engine(
        "pipeline",
        scheduler=ChunkedScheduler(max_num_seqs=8, max_num_batched_tokens=8),
        predictor=PipelinePredictor((ConstantPredictor(SECONDS),) * num_ranks, lambda _: 0.0),
        num_gpu_blocks=8_000,
    )
    lengths = [1] * num_requests, [num_output_tokens] * num_requests
    workload = Workload.from_lists(*lengths, [0.0] * num_requests)
    return Simulation(clients=[client], workload=workload).run()


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_full_pipeline_ends_pass_for_every_rank_time(num_ranks):
    """Seesaw, eq. 1: in steady state a micro-batch of b / PP is done every T_stage."""
    result = constant_pipeline(num_ranks, num_ranks, 1_000)
    tokens = num_ranks * 1_000
    assert result.summary["duration"] == (tokens + num_ranks - 1) * SECONDS
    assert set(result.steps["num_decodes"]) == {0, 1}
    assert result.summary["median_itl_ms"] == 1e3 * num_ranks * SECONDS


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
@pytest.mark.parametrize("num_busy", [1, 2, 3])
def test_bubbles_are_the_ranks_without_a_micro_batch(num_ranks, num_busy):
    """With q of p lanes busy, a share of (p - q) / p of the ranks' time is empty."""
    num_busy = min(num_busy, num_ranks)
    result = constant_pipeline(num_ranks, num_busy, 2_000)
    share = result.clients["busy"].item() / (num_ranks * result.summary["duration"])
    assert 1 - share == pytest.approx((num_ranks - num_busy) / num_ranks, abs=1e-3)


def test_a_lone_request_is_no_faster_in_pipeline():
    """Pipelines do not shorten a pass (Seesaw, appendix A.3)."""
    workload = Workload.from_lists([500], [200], [0.0])
    times = []
    for size in (1, 4):
        client = llm_client(
            "a", gpu="h100-sxm", pipeline_parallel_size=size, async_scheduling=False
        )
        times.append(Simulation(clients=[client], workload=workload).run().summary["duration"])
    assert times[0] < times[1] < 1.1 * times[0]


# --- replicas -------------------------------------------------------------------------------


def test_lanes_share_the_seats_of_their_engine():
    scheduler = ChunkedScheduler(max_num_seqs=10)
    sizes = {"pipeline_parallel_size": 4, "data_parallel_size": 2}
    client = llm_client("pp", **sizes, virtual_engines=True, scheduler=scheduler)
    Simulation(clients=[client], workload=Workload.from_lists([1], [1])).run()
    seats = [lane.core.max_num_seqs for lane in client.lanes]
    assert seats == [3, 3, 2, 2, 3, 3, 2, 2]
    assert scheduler.max_num_seqs == 10


def test_scheduler_of_all_batches_lets_one_request_run():
    """Other than virtual engines, which need a seat each (vLLM v1)."""
    client = llm_client("pp", pipeline_parallel_size=4, scheduler=ChunkedScheduler(max_num_seqs=1))
    workload = Workload.from_lists([300] * 3, [20] * 3, [0.0] * 3)
    result = Simulation(clients=[client], workload=workload).run()
    assert len(client.lanes) == 1
    assert client.memory.num_blocks == client.num_gpu_blocks
    assert (result.requests["status"] == "finished").all()
    assert result.steps["num_decodes"].max() == 1


def test_replicas_share_nothing():
    """Two engines with half of the requests each are two clients with half of the requests."""
    workload = Workload.from_lists([300] * 8, [100] * 8, [0.0] * 8)
    both = llm_client("both", data_parallel_size=2)
    result = Simulation(clients=[both], workload=workload, front_end=NONE).run()
    half = Workload.from_lists([300] * 4, [100] * 4, [0.0] * 4)
    one = Simulation(clients=[llm_client("one")], workload=half, front_end=NONE).run()
    assert result.summary["duration"] == one.summary["duration"]
    assert both.num_gpu_blocks == 2 * llm_client("one").num_gpu_blocks
    assert sorted(result.steps["track"].unique()) == [0, 1]
    assert result.clients["num_steps"].item() == 2 * one.clients["num_steps"].item()


def test_replicas_that_share_experts_step_together():
    options = {"model": "qwen3-30b-a3b", "data_parallel_size": 2}
    workload = Workload.from_lists([3000, 10], [200, 200], [0.0, 0.0])
    together = llm_client("moe", enable_expert_parallel=True, **options)
    result = Simulation(clients=[together], workload=workload).run()
    first, second = (set(result.recorder.step_ends[track]) for track in (0, 1))
    assert len(first & second) > 190
    apart = Simulation(clients=[llm_client("moe", **options)], workload=workload).run()
    assert not set(apart.recorder.step_ends[0]) & set(apart.recorder.step_ends[1])


def test_replicas_that_share_experts_plan_ahead_each_of_its_own():
    """Steps of 1 s, and 0.25 s of host time, which only steps on the spot show.

    The first request's engine plans ahead: the third one comes to it at 0.75 s and joins at 2.25 s.
    The second one's engine is idle, so it plans on the spot at 1.25 s, which both wait for.
    """
    timed = EngineOverhead(step=0.25).around(ConstantPredictor(1.0), overlapped=True)
    engine = llm_engine(
        "moe",
        predictor=timed,
        scheduler=ChunkedScheduler(),
        num_gpu_blocks=1000,
        data_parallel_size=2,
        enable_expert_parallel=True,
        async_scheduling=True,
    )
    workload = Workload.from_lists([10] * 3, [4, 4, 3], [0.0, 0.5, 0.75])
    result = Simulation(clients=[engine], workload=workload).run()
    assert [result.token_times(number).tolist() for number in range(3)] == [
        [1.25, 2.5, 3.5, 4.5],
        [2.5, 3.5, 4.5, 5.5],
        [3.5, 4.5, 5.5],
    ]


def test_pipelines_that_share_experts_pass_together():
    """Two pipelines of two lanes, a request each: lanes of equal number end passes at once."""
    workload = Workload.from_lists([3000, 10, 500, 40], [200] * 4, [0.0] * 4)
    client = llm_client(
        "moe",
        model="qwen3-30b-a3b",
        pipeline_parallel_size=2,
        data_parallel_size=2,
        enable_expert_parallel=True,
    )
    result = Simulation(clients=[client], workload=workload).run()
    assert (result.requests["status"] == "finished").all()
    first, second, third, fourth = (set(ends) for ends in result.recorder.step_ends)
    assert len(first & third) > 190
    assert len(second & fourth) > 190
    assert not first & second


@pytest.mark.parametrize(
    ("size", "model", "room"),
    [
        (1, "llama-3.1-8b", "1001 tokens exceed the KV cache of 336 tokens (21 blocks of 16)"),
        (
            2,
            "llama-3.1-8b",
            "part of the KV cache that a lane of the pipeline has, 160 of 336 tokens (10 of 21 b",
        ),
        (1, "gpt-oss-120b", "take 126 blocks and exceed the KV cache of 21 blocks"),
        (2, "gpt-oss-120b", "that a lane of the pipeline has, 10 of 21 blocks"),
    ],
)
def test_a_prompt_that_no_lane_has_room_for_is_told_what_a_lane_has(size, model, room):
    client = llm_client(
        "a",
        model=model,
        gpu="h100-sxm",
        pipeline_parallel_size=size,
        virtual_engines=size > 1,
        kv_cache=KvCacheConfig(num_gpu_blocks_override=22),
    )
    workload = Workload.from_lists([1001], [2], [0.0])
    result = Simulation(clients=[client], workload=workload).run()
    assert room in result.requests.reason[0]


# --- scenario files -------------------------------------------------------------------------

BASE = {
    "model": "qwen3-30b-a3b",
    "workload": {"lengths": {"type": "profile", "num_requests": 5}, "arrivals": "all_at_once"},
}


FOUR_LANES = {"pipeline_parallel_size": 4, "virtual_engines": True}


test_what_cannot_be_split_is_refused = refused(
    lambda options: build(
        Scenario.from_dict({**BASE, "clients": [{"name": "a", "gpu": "h200", **options}]})
    ),
    ({"pipeline_parallel_size": 0}, "pipeline_parallel_size: must be >= 1, got 0"),
    ({"data_parallel_size": 0}, "data_parallel_size: must be >= 1, got 0"),
    ({"pipeline_parallel_size": 49}, "must be from 1 to the 48 layers, got 49"),
    (
        {**FOUR_LANES, "scheduler": {"max_num_seqs": 3}},
        "max_num_seqs must be >= pipeline_parallel_size (4), got 3",
    ),
    ({**FOUR_LANES, "kv_cache": {"num_gpu_blocks_override": 4}}, "num_gpu_blocks must be >="),
)


def test_a_predictor_of_whole_model_cannot_time_pipeline():
    with pytest.raises(ScenarioError, match="pipeline_parallel_size must be 1, the ranks that"):
        llm_client("a", predictor=ConstantPredictor(1.0), pipeline_parallel_size=2)
