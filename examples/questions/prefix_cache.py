"""What does prefix caching save if all requests share a system prompt?"""

# %% Questions of 200 tokens behind one of ten system prompts of 2,000, on one H100.
from mist_sim import Scenario
from mist_sim.search import compare

QUESTIONS = {
    "model": "llama-3.1-8b",
    "workload": {
        "lengths": {
            "type": "prefix_repetition",
            "num_prefixes": 10,
            "prefix_len": 2000,
            "suffix": {"type": "fixed", "tokens": 200},
            "output": {"type": "fixed", "tokens": 150},
            "num_requests": 1000,
        },
        "arrivals": {"type": "poisson", "rate": "12 /s"},
    },
    "clients": [{"name": "llm", "gpu": "h100-sxm"}],
    "slo": {"ttft": "300 ms", "tpot": "25 ms"},
}
scenarios = {
    name: Scenario.from_dict(QUESTIONS, {"clients.0.kv_cache.enable_prefix_caching": enabled})
    for name, enabled in (("without", False), ("with prefix caching", True))
}

# %%
found = compare(scenarios, jobs=1)
found.show()
found.plot("p99_ttft_ms").save("prefix_cache.png", replace=True)
