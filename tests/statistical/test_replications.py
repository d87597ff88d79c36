"""Confidence intervals of replications hold the true mean as often as they say.

The true mean is known: each of 40 requests generates a geometric number of tokens with mean 25,
so a run generates 1,000 on average. 300 experiments of 5 replications each; the number of
intervals that hold 1,000 is binomial with p = 0.95.
"""

import pytest
from scipy import stats

from mist_sim import Scenario, replicate

NUM_EXPERIMENTS = 300
FALSE_ALARM = 0.001
SCENARIO = {
    "model": "llama-3.1-8b",
    "replications": 5,
    "workload": {
        "lengths": {
            "type": "synthetic",
            "num_requests": 40,
            "prompt": {"type": "fixed", "tokens": 1},
            "output": {"type": "geometric", "mean": 25},
        },
        "arrivals": "all_at_once",
    },
    "clients": [{"name": "llm", "gpu": "h100-sxm"}],
}


@pytest.mark.statistical
@pytest.mark.deep
def test_intervals_hold_mean_as_often_as_they_say():
    """Power: intervals that hold it 88 % of the time are noticed with probability 0.88."""
    held = 0
    for seed in range(NUM_EXPERIMENTS):
        found = replicate(Scenario.from_dict(SCENARIO, {"seed": seed}), jobs=1)
        tokens = found.estimate("total_output_tokens")
        held += tokens.low <= 1_000 <= tokens.high
    law = stats.binom(NUM_EXPERIMENTS, 0.95)
    low, high = law.ppf(FALSE_ALARM / 2), law.isf(FALSE_ALARM / 2)
    assert low <= held <= high, f"{held} of {NUM_EXPERIMENTS}"
    too_narrow = stats.binom(NUM_EXPERIMENTS, 0.88)
    assert too_narrow.cdf(low - 1) > 0.8, "too few experiments to notice intervals of 88 %"
