"""What to buy for chats at 8 requests a second: the cheapest of two GPUs, and what comes second."""

from mist_sim import Scenario
from mist_sim.search import PlanOptions, plan

SCENARIO = {
    "model": "llama-3.1-8b",
    "workload": {
        "lengths": {"type": "profile", "name": "azure-conv-2023", "num_requests": 400},
        "arrivals": {"type": "poisson", "rate": "8 /s"},
    },
    "clients": [{"name": "llm", "gpu": "h100-sxm"}],
    "slo": {"ttft": "500 ms", "tpot": "40 ms"},
}
OPTIONS = PlanOptions(
    gpus=("h100-sxm", "l40s"),
    max_gpus=2,
    tensor_parallel_sizes=(1,),
    designs=("together",),
    seconds=None,
)


def main() -> None:
    found = plan(Scenario.from_dict(SCENARIO), OPTIONS, jobs=1)
    print(f"{found.name}: {found.usd_per_hour:.2f} $/h, {100 * found.headroom:.0f} % headroom")
    print(found.runner_up)
    print(found.deployment.text)


if __name__ == "__main__":
    main()
