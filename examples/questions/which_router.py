"""Which router for questions about documents that come again and again?"""

# %% 400 documents of 6,000 tokens: one engine cannot cache all, four together can.
from mist_sim import Scenario
from mist_sim.search import compare

QUESTIONS = {
    "model": "llama-3.1-8b",
    "workload": {
        "lengths": {
            "type": "prefix_repetition",
            "num_prefixes": 400,
            "prefix_len": 6000,
            "suffix": {"type": "fixed", "tokens": 200},
            "output": {"type": "fixed", "tokens": 150},
            "num_requests": 3000,
        },
        "arrivals": {"type": "poisson", "rate": "20 /s"},
    },
    "clients": [{"name": "llm", "gpu": "h100-sxm", "count": 4}],
    "slo": {"ttft": "500 ms", "tpot": "25 ms"},
}
ROUTERS = ("random", "round_robin", "least_outstanding", "prefix_affinity")
scenarios = {name: Scenario.from_dict(QUESTIONS, {"router": name}) for name in ROUTERS}

# %% A router that knows the caches sends a question where its document is.
found = compare(scenarios, jobs=1)
found.show()
found.plot("p99_tpot_ms").save("which_router.png", replace=True)
