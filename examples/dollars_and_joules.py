"""H100, A100 or L40S for the same requests within the same limits: dollars and joules.

python dollars_and_joules.py [REQUESTS_A_SECOND]

Of each GPU as many as it takes to keep 99 % of the requests within the limits, at the median of
the on-demand prices that `mist list prices` shows.
"""

import sys

from mist_sim import Result, Scenario, ScenarioError, simulate

RATE = sys.argv[1] if len(sys.argv) > 1 else "6"
MOST = 8  # GPUs
SCENARIO = {
    "model": "llama-3.1-8b",
    "workload": {
        "lengths": {"type": "profile", "name": "azure-conv-2023", "num_requests": 300},
        "arrivals": {"type": "poisson", "rate": f"{RATE} /s"},
    },
    "clients": [{"name": "llm"}],
    "slo": {"ttft": "1 s", "tpot": "60 ms"},
    "router": "least_outstanding",
    "cost": {},  # rented: electricity is in the price
    "power": {"pue": 1.2},
}


def fewest(gpu: str) -> tuple[int, Result] | None:
    """Return how many GPUs it takes, and the run with these; None if more than `MOST`."""
    for count in range(1, MOST + 1):
        changes = {"clients.0.gpu": gpu, "clients.0.count": count}
        result = simulate(Scenario.from_dict(SCENARIO, changes))
        if result.summary["good_request_fraction"] >= 0.99:
            return count, result
    return None


lines = ["GPUs               $/Mtok  J/token   idle  tokens/$  tokens/J  power"]
for gpu in ("h100-sxm", "a100-80gb-sxm", "l40s"):
    try:
        found = fewest(gpu)
    except ScenarioError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    if found is None:
        lines.append(f"more than {MOST} x {gpu}")
        continue
    count, result = found
    summary = result.summary
    lines.append(
        f"{count} x {gpu:14} {summary['cost_per_million_output_tokens_usd']:6.2f}"
        f"{summary['energy_per_output_token_j']:9.2f}"
        f"{summary['idle_energy_j'] / summary['energy_j']:7.0%}"
        f"{summary['good_tokens_per_usd']:10,.0f}{summary['good_tokens_per_j']:10.2f}"
        f"  {next(iter(summary['power_estimates'].values()))}"
    )
print("\n".join(lines))
