"""What does FP8 buy? Faster steps, and room for more answers at a time."""

# %% A model of 32B on one H100: in bf16 its weights fill most of the memory.
from mist_sim import Scenario
from mist_sim.search import compare

CHATS = {
    "model": "qwen3-32b",
    "workload": {
        "lengths": {"type": "profile", "name": "azure-conv-2023", "num_requests": 600},
        "arrivals": {"type": "poisson", "rate": "3 /s"},
    },
    "clients": [{"name": "llm", "gpu": "h100-sxm", "max_model_len": 8192}],
    "slo": {"ttft": "1 s", "tpot": "50 ms"},
}
scenarios = {
    "bf16": Scenario.from_dict(CHATS),
    "fp8": Scenario.from_dict(CHATS, {"clients.0.quantization": "fp8"}),
}

# %%
found = compare(scenarios, jobs=1)
found.show()
found.plot("p99_ttft_ms").save("fp8_or_bf16.png", replace=True)
