"""TaiChi, table 2 and figure 4: Llama-2-70B on 32 A100s, together or six for prompts and two apart.

The paper says neither its lengths nor its ratio, and its QPS of 12 means another load with other
step times. What its figures need is that six clients do not keep up with the prompts and eight
that do everything just about do: here the six are offered 110 % of the prompt tokens that they
compute. Lengths are arXiv's of at most 4,096 tokens (the profile `arxiv-4096`).
"""

import numpy as np
import pytest

import mist_sim as mist
from mist_sim.metrics import InterferenceLaw

LOAD = 1.10
LIMITS = {"16 s": (16.0, 0.060), "5 s": (5.0, 0.250), "6 s": (6.0, 0.100)}  # TTFT, TPOT
LINE = {"type": "linear", "step": "44 ms", "prefill_token": "0.2045 ms"}  # of the paper's figure 4
PREDICTORS = {"linear": LINE, "roofline": "roofline"}
NOMINAL = 14.0  # requests a second, at which the arrivals of a seed are counted


def run(way, predictor, seed, rate):
    """Simulate a preset."""
    changes = {"workload.arrivals.rate": f"{rate!r} /s", "seed": seed}
    changes["clients.0.predictor"] = PREDICTORS[predictor]
    if way == "disaggregation":
        changes["clients.1.predictor"] = PREDICTORS[predictor]
    return mist.simulate(mist.Scenario.load(f"taichi-{way}", overrides=changes))


def rate_of(predictor, seed):
    """Return the rate at which the six are offered `LOAD` times what they compute."""
    result = run("disaggregation", predictor, seed, NOMINAL)
    requests, clients = result.requests, result.clients
    prompts = clients[clients["client"].str.startswith("prefill")]
    capacity = len(prompts) * prompts["num_prefill_tokens"].sum() / prompts["busy"].sum()
    offered = requests["num_prompt_tokens"].sum() / requests["arrival_time"].max()
    return float(NOMINAL * LOAD * capacity / offered)


def attained(result):
    """Return the percentage of requests that keep each pair of limits."""
    requests = result.requests
    assert (requests["status"] == "finished").all()
    ttft, tpot = requests["ttft"], requests["tpot"]
    return {
        name: 100 * np.mean((ttft <= most[0]) & ((tpot <= most[1]) | tpot.isna()))
        for name, most in LIMITS.items()
    }


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("predictor", PREDICTORS)
def test_who_attains_what(predictor, seed):
    """The paper: 7, 97 and 16 % together, 98, 42 and 50 % apart."""
    rate = rate_of(predictor, seed)
    together = attained(run("aggregation", predictor, seed, rate))
    apart = attained(run("disaggregation", predictor, seed, rate))
    assert together["16 s"] <= 20
    assert together["5 s"] >= 80
    assert together["6 s"] <= 35
    assert apart["16 s"] >= 85
    assert apart["5 s"] <= 70
    assert apart["6 s"] <= 80
    winners = {name: together[name] > apart[name] for name in LIMITS}
    assert winners == {"16 s": False, "5 s": True, "6 s": False}


def test_tpot_on_roofline_step_times_is_almost_linear_in_interference():
    """The paper: R2 0.99, 0.2 ms a prompt token, 44 ms without; here 0.99, 0.18 and 36 ms."""
    requests = run("aggregation", "roofline", 0, NOMINAL).requests
    law = InterferenceLaw.fit(requests["interference"], requests["tpot"])
    assert law.r_squared == pytest.approx(0.99, abs=0.005)
    assert law.slope == pytest.approx(0.18e-3, rel=0.03)
    assert law.intercept == pytest.approx(36e-3, rel=0.05)
