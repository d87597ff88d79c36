"""How many GPUs does this load need?"""

# %% Chats come at 40 a second, in bursts (a coefficient of variation above one).
from mist_sim import Scenario
from mist_sim.search import sweep

scenario = Scenario.from_dict(
    {
        "model": "llama-3.1-8b",
        "workload": {
            "lengths": {"type": "profile", "name": "azure-conv-2023", "num_requests": 2000},
            "arrivals": {"type": "gamma", "rate": "40 /s", "burstiness": 0.5},
        },
        "clients": [{"name": "llm", "gpu": "h100-sxm"}],
        "router": "least_outstanding",
        "slo": {"ttft": "300 ms", "tpot": "25 ms"},
        "replications": 3,
    }
)

# %% The share of good requests over the number of GPUs, with its interval over three seeds.
found = sweep(scenario, {"clients.0.count": [1, 2, 3, 4, 5]}, jobs=1)
found.show()
found.plot("curve").save("how_many_gpus.png", replace=True)
