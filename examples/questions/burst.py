"""What happens in a burst, and how long does it take to recover?"""

# %% 30 requests a second for 10 seconds on average, then none for 30.
from mist_sim import Scenario, simulate

scenario = Scenario.from_dict(
    {
        "model": "llama-3.1-8b",
        "workload": {
            "lengths": {"type": "profile", "name": "azure-conv-2023", "num_requests": 1200},
            "arrivals": {"type": "bursty", "rate_on": "30 /s", "on": "10 s", "off": "30 s"},
        },
        "clients": [{"name": "llm", "gpu": "h100-sxm"}],
        "slo": {"ttft": "500 ms", "tpot": "40 ms"},
    }
)

# %% Latencies by arrival: how high they rise, and when they are back.
result = simulate(scenario)
result.show()
result.plot("latency").save("burst.png", replace=True)
