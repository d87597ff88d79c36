"""Eight GPUs: one engine of eight, two of four, or four of two?"""

# %% A model of 70B at 3 requests a second; each engine takes its share.
from mist_sim import Scenario
from mist_sim.search import compare

CHATS = {
    "model": "llama-3.1-70b",
    "workload": {
        "lengths": {"type": "profile", "name": "azure-conv-2023", "num_requests": 600},
        "arrivals": {"type": "poisson", "rate": "3 /s"},
    },
    "clients": [{"name": "llm", "gpu": "h100-sxm", "max_model_len": 8192}],
    "router": "least_outstanding",
    "slo": {"ttft": "1 s", "tpot": "50 ms"},
}
scenarios = {
    f"{8 // size} x TP {size}": Scenario.from_dict(
        CHATS, {"clients.0.tensor_parallel_size": size, "clients.0.count": 8 // size}
    )
    for size in (2, 4, 8)
}

# %% Large engines answer sooner; whether they serve more, `mist compare --goodput` tells.
found = compare(scenarios, jobs=1)
found.show()
found.plot("p99_tpot_ms").save("which_parallelism.png", replace=True)
