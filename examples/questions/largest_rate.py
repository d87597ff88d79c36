"""How many requests a second does one server carry within its limits?"""

# %% One H100 serves chats; a chat is good if its first token and its gaps keep these limits.
from mist_sim import Scenario
from mist_sim.search import GoodputOptions, find_goodput

scenario = Scenario.from_dict(
    {
        "model": "llama-3.1-8b",
        "workload": {
            "lengths": {"type": "profile", "name": "azure-conv-2023", "num_requests": 400},
            "arrivals": {"type": "poisson", "rate": "10 /s"},
        },
        "clients": [{"name": "llm", "gpu": "h100-sxm"}],
        "slo": {"ttft": "500 ms", "tpot": "25 ms"},
    }
)

# %% The search raises the rate until fewer than nine in ten are good; each mark is a run.
found = find_goodput(scenario, GoodputOptions(tolerance=0.05, most_requests=8000), jobs=1)
low, high = found.interval
print(f"{found.rate:.1f} /s, between {low:.1f} and {high:.1f}; {found.first_limit} misses first")
found.plot("rates").save("largest_rate.png", replace=True)
