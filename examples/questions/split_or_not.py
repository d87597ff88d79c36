"""Should prompts and answers have engines of their own?"""

# %% Four H100 with long prompts; `designs_of` gives what four GPUs allow.
from mist_sim import Scenario
from mist_sim.search import compare, designs_of

scenario = Scenario.from_dict(
    {
        "model": "llama-3.1-8b",
        "workload": {
            "lengths": {"type": "profile", "name": "azure-code-2023", "num_requests": 600},
            "arrivals": {"type": "poisson", "rate": "30 /s"},
        },
        "clients": [{"name": "llm", "gpu": "h100-sxm", "count": 4}],
        "slo": {"ttft": "500 ms", "tpot": "12 ms"},
    }
)
designs = designs_of(scenario)

# %% At one rate; `mist compare --designs --goodput` finds the rate that each design carries.
found = compare(designs.scenarios, jobs=1)
found.show()
found.plot("p99_tpot_ms").save("split_or_not.png", replace=True)
