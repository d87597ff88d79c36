"""Which GPU gives the cheapest tokens within these limits?"""

# %% The same chats, at 4 a second, on one GPU of four kinds.
from mist_sim import Scenario
from mist_sim.search import compare

CHATS = {
    "model": "llama-3.1-8b",
    "workload": {
        "lengths": {"type": "profile", "name": "azure-conv-2023", "num_requests": 800},
        "arrivals": {"type": "poisson", "rate": "4 /s"},
    },
    "clients": [{"name": "llm", "gpu": "h100-sxm", "max_model_len": 16384}],
    "slo": {"ttft": "1 s", "tpot": "50 ms"},
    "cost": {},  # dollars by the hour, at the median of what clouds ask on demand
}
GPUS = ("h200", "h100-sxm", "a100-80gb-sxm", "l40s")
scenarios = {name: Scenario.from_dict(CHATS, {"clients.0.gpu": name}) for name in GPUS}

# %% Dollars a million output tokens at this rate; a star stands at the best that keeps the limits.
found = compare(scenarios, jobs=1)
found.show()
picture = found.plot("cost_per_million_output_tokens_usd")
picture.save("which_gpu.png", replace=True)
