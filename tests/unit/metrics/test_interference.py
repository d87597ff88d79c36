"""Interference intensity, its line in TPOT, and step times that are linear."""

import math

import numpy as np
import pytest

import mist_sim as mist
from mist_sim.core.batch import StepBatch
from mist_sim.metrics import InterferenceLaw
from tests.reference.engines import llm_engine
from tests.refusals import refused

STEP, PREFILL_TOKEN = 44e-3, 0.2045e-3  # TaiChi, figure 4, with the slope that its bound implies
LINE = {"type": "linear", "step": "44 ms", "prefill_token": "0.2045 ms"}
CLIENT = {
    "name": "llm",
    "gpu": "a100-80gb-sxm",
    "tensor_parallel_size": 4,
    "predictor": LINE,
    "scheduler": {"type": "chunked", "max_num_batched_tokens": 1024},
}


def run(*clients, num_requests=200, rate=1.2, **more):
    """Serve conversations on Llama-2-70B."""
    lengths = {"type": "profile", "name": "azure-conv-2023", "num_requests": num_requests}
    workload = {
        "lengths": lengths | {"max_total_tokens": 4096},
        "arrivals": {"type": "poisson", "rate": f"{rate} /s"},
    }
    data = {"model": "llama-2-70b", "workload": workload, "clients": list(clients or [CLIENT])}
    return mist.simulate(mist.Scenario.from_dict(data | more))


def beside(result):
    """Return each request's intensity as its own token times and the steps say it."""
    steps = result.steps
    found = []
    for request in result.requests.itertuples():
        times = result.token_times(request.request_id)
        if len(times) < 2:
            found.append(math.nan)
            continue
        stages = result.stages.query(f"request_id == {request.request_id} and stage == 'decode'")
        mine = steps[steps["client"] == stages["client"].iloc[0]]
        num_tokens = 0
        for row in mine[mine["num_prefill_tokens"] > 0].itertuples():
            ends = np.linspace(row.start, row.end, row.num_steps + 1)[1:]  # all of a run as long
            during = (ends > times[0] + 1e-9) & (ends < times[-1] + 1e-9)
            num_tokens += row.num_prefill_tokens * np.count_nonzero(during)
        found.append(num_tokens / (len(times) - 1))
    return np.array(found)


# --- the law ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheduler", ["chunked", "mixed", "continuous"])
def test_with_linear_step_times_tpot_is_linear_in_interference(scheduler):
    """Where decodes wait for prompts, steps without them take time beside that of the prompts."""
    kind = {"type": scheduler, "max_num_batched_tokens": 1024 if scheduler == "chunked" else 4096}
    result = run(CLIENT | {"count": 2, "scheduler": kind}, rate=6.0)
    requests = result.requests
    intensity, tpot = requests["interference"].to_numpy(), requests["tpot"].to_numpy()
    assert np.nanmax(intensity) > 250
    if scheduler == "continuous":
        beyond = tpot - (STEP + PREFILL_TOKEN * intensity)
        assert beyond.min() > -1e-12
        assert beyond.max() > 5e-3
        return
    np.testing.assert_allclose(tpot, STEP + PREFILL_TOKEN * intensity, rtol=1e-9)
    law = InterferenceLaw.fit(intensity, tpot)
    assert law.slope == pytest.approx(PREFILL_TOKEN, rel=1e-9)
    assert law.intercept == pytest.approx(STEP, rel=1e-9)
    assert law.r_squared == pytest.approx(1, abs=1e-12)
    assert law.most(0.100) == pytest.approx(273.77, abs=1)


# --- the metric ---------------------------------------------------------------------------------


def test_intensity_counts_the_prompts_of_the_steps_between_first_and_last_token():
    two = CLIENT | {"count": 2}
    result = run(two, num_requests=60, rate=6.0)
    np.testing.assert_allclose(result.requests["interference"], beside(result), rtol=1e-12)
    replicas = run(CLIENT | {"data_parallel_size": 2}, num_requests=60, rate=6.0)
    found = replicas.requests["interference"]
    assert found.max() > 100
    expected = STEP + PREFILL_TOKEN * found  # of its own engine alone
    np.testing.assert_allclose(replicas.requests["tpot"], expected, rtol=1e-9)


def test_by_hand():
    """300 tokens come while the first request decodes tokens 2 to 5: 75 a token."""
    model, cluster = mist.load_model("llama-3.1-8b"), mist.Cluster(mist.load_gpu("h100-sxm"))
    line = mist.LinearPredictor(model, cluster, step=0.01, prefill_token=1e-5)
    client = llm_engine(
        "llm", scheduler=mist.ChunkedScheduler(), predictor=line, num_gpu_blocks=500
    )
    workload = mist.Workload.from_lists([100, 300], [5, 2], [0.0, 0.005])
    requests = mist.Simulation(clients=[client], workload=workload).run().requests
    assert requests["interference"].tolist() == [75, 0]
    assert requests["tpot"].tolist() == pytest.approx([0.01 + 75e-5, 0.01])


SCARCE = CLIENT | {"kv_cache": {"num_gpu_blocks_override": 600}}
P_HEAVY = CLIENT | {"name": "p", "role": "p_heavy"}
D_HEAVY = SCARCE | {"name": "d", "role": "d_heavy", "scheduler": {"max_num_batched_tokens": 256}}
FLOWING = {
    "network": {"bandwidth": "400 Gb/s", "latency": "1 ms"},
    "hand_over": {"policy": {"type": "flowing", "tpot": "70 ms"}},
}
WAYS = {
    "replicas": ([CLIENT | {"data_parallel_size": 2}], {}),
    "pipeline": ([CLIENT | {"pipeline_parallel_size": 2, "predictor": "roofline"}], {}),
    "preempted": ([SCARCE | {"count": 2}], {}),
    "flowing": ([P_HEAVY, D_HEAVY], FLOWING),
}


@pytest.mark.parametrize("way", WAYS)
def test_all_that_prompts_cost_is_somebody_s(way):
    """Summed over requests, as over steps: prompt tokens of each times those that decode in it."""
    clients, more = WAYS[way]
    result = run(*clients, rate=5.0, **more)
    requests, steps = result.requests, result.steps
    assert (requests["status"] == "finished").all()
    if way == "preempted":
        assert requests["num_preemptions"].sum() > 3
    if way == "flowing":
        assert len(result.transfers) > len(requests)  # some went on elsewhere more than once
    suffered = (requests["interference"] * (requests["num_output_tokens"] - 1)).sum()
    done = (steps["num_steps"] * steps["num_prefill_tokens"] * steps["num_decodes"]).sum()
    assert suffered == pytest.approx(float(done), rel=1e-12)
    assert done > 5e5


def test_decode_clients_have_no_interference():
    prefill = CLIENT | {"name": "prefill", "role": "prefill"}
    decode = CLIENT | {"name": "decode", "role": "decode"}
    network = {"bandwidth": "400 Gb/s", "latency": "1 ms"}
    requests = run(prefill, decode, num_requests=50, network=network).requests
    assert (requests["interference"] == 0).all()


def test_an_answer_of_one_token_has_no_intensity():
    lengths = {"prompt": {"type": "fixed", "tokens": 900}, "output": {"type": "fixed", "tokens": 1}}
    workload = {
        "lengths": {"type": "synthetic", "num_requests": 3} | lengths,
        "arrivals": {"type": "all_at_once"},
    }
    data = {"model": "llama-2-70b", "clients": [CLIENT], "workload": workload}
    result = mist.simulate(mist.Scenario.from_dict(data))
    assert result.requests["interference"].isna().all()


def test_attempts_that_timed_out_do_not_count():
    crowd = {"name": "azure-conv-2023", "num_requests": 60, "max_total_tokens": 4096}
    workload = {
        "lengths": {"type": "profile"} | crowd,
        "arrivals": {"type": "poisson", "rate": "10 /s"},
        "timeout": "20 s",
        "retries": {"max_attempts": 9, "backoff": "5 s"},
    }
    data = {"model": "llama-2-70b", "clients": [CLIENT], "workload": workload}
    requests = mist.simulate(mist.Scenario.from_dict(data)).requests
    again = requests[(requests["num_attempts"] > 1) & (requests["wasted_output_tokens"] > 0)]
    again = again[again["status"] == "finished"]
    assert len(again) > 5
    expected = STEP + PREFILL_TOKEN * again["interference"]
    np.testing.assert_allclose(again["tpot"], expected, rtol=1e-9)


# --- the fit ------------------------------------------------------------------------------------


def test_a_fit_leaves_out_what_was_not_measured():
    intensity = np.array([0.0, 100.0, 200.0, math.nan, 300.0])
    tpot = np.array([0.04, 0.06, 0.08, 0.09, math.nan])
    law = InterferenceLaw.fit(intensity, tpot)
    assert (law.slope, law.intercept) == pytest.approx((2e-4, 0.04))
    assert law.most(0.1) == pytest.approx(300)


@pytest.mark.parametrize("intensity", [[], [5.0], [5.0, 5.0], [5.0, math.nan]])
def test_a_fit_needs_two_intensities(intensity):
    with pytest.raises(ValueError, match="intensity must have two values that differ"):
        InterferenceLaw.fit(np.array(intensity), np.ones(len(intensity)))


# --- step times ---------------------------------------------------------------------------------


def test_linear_step_times_count_tokens_and_decodes():
    cluster = mist.Cluster(mist.load_gpu("h100-sxm"))
    model = mist.load_model("llama-3.1-8b")
    line = mist.LinearPredictor(model, cluster, step=0.04, prefill_token=2e-4, decode=1e-3)
    batch = StepBatch(chunks=((500, 0), (12, 90)), num_decodes=3, context_sum=10**6)
    assert line.step_time(batch) == 0.04 + 2e-4 * 512 + 1e-3 * 3


test_impossible_lines_are_refused = refused(
    lambda options: run(CLIENT | {"predictor": {"type": "linear"} | options}),
    ({}, r"predictor\.step .*required|predictor.*step"),
    ({"step": "0 s"}, r"step must be finite and > 0 s, got 0\.0"),
    ({"step": "1 ms", "prefill_token": "-1 ms"}, "prefill_token"),
    ({"step": "1 ms", "decode": 3}, "decode"),
)
