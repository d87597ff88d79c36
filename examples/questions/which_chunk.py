"""How many tokens should a step have? Small steps keep gaps short, large ones prompts."""

# %% Code completion: long prompts, short answers, on one H100.
from mist_sim import Scenario
from mist_sim.studies import study

scenario = Scenario.from_dict(
    {
        "model": "llama-3.1-8b",
        "workload": {
            "lengths": {"type": "profile", "name": "azure-code-2023", "num_requests": 800},
            "arrivals": {"type": "poisson", "rate": "10 /s"},
        },
        "clients": [{"name": "llm", "gpu": "h100-sxm", "scheduler": {"type": "chunked"}}],
        "slo": {"ttft": "500 ms", "tpot": "30 ms"},
    }
)

# %% The p99 of both limits for five chunks, the mean and interval of three seeds.
chunks = {"clients.0.scheduler.max_num_batched_tokens": [256, 512, 1024, 2048, 8192]}
found = study(scenario, vary=chunks, seeds=3, jobs=1)
found.show()
found.plot("p99_tpot_ms").save("which_chunk.png", replace=True)
