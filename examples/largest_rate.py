"""How much load does each router take before 10 % of the requests miss a limit?

    python largest_rate.py

The same 600 requests are sent to four GPUs at one rate after the other; only arrivals scale.
"""

from mist_sim import Scenario
from mist_sim.search import GoodputOptions, find_goodputs

SCENARIO = {
    "model": "llama-3.1-8b",
    "workload": {
        "lengths": {"type": "profile", "name": "azure-code-2023", "num_requests": 600},
        "arrivals": {"type": "poisson", "rate": "40 /s"},
    },
    "clients": [{"name": "llm", "gpu": "h100-sxm", "count": 4}],
    "slo": {"ttft": "300 ms", "tpot": "30 ms"},
}
ROUTERS = ("random", "round_robin", "least_outstanding")


def main() -> None:
    scenarios = [Scenario.from_dict(SCENARIO, {"router": router}) for router in ROUTERS]
    found = find_goodputs(scenarios, GoodputOptions(tolerance=0.05, most_requests=10_000), jobs=1)
    print(f"{'router':18} goodput   per GPU   runs")
    for router, goodput in zip(ROUTERS, found, strict=True):
        print(
            f"{router:18} {goodput.rate:4.0f} /s   {goodput.per_gpu:4.1f} /s   {goodput.num_runs:4}"
        )


if __name__ == "__main__":
    main()
