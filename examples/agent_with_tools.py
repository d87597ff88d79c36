"""Agents that call tools: what the KV entries of a turn are worth when the tool is done."""

from mist_sim import Scenario, simulate

AGENTS = {
    "model": "qwen3-8b",
    "workload": {
        "lengths": {
            "type": "synthetic",
            "num_requests": 200,
            "prompt": {"type": "lognormal", "mean": 12_000, "std": 6_000},
            "output": {"type": "fixed", "tokens": 150},
        },
        "arrivals": {"type": "poisson", "rate": "0.5 /s"},
        "pipeline": [
            {"type": "tool_loop", "num_turns": 8, "duration": "8 s", "num_result_tokens": 600}
        ],
    },
    "clients": [
        {"name": "llm", "gpu": "h100-sxm"},
        {"name": "app", "type": "application"},
        {"name": "tools", "type": "sequential", "serves": ["tool_call"], "num_workers": 1000},
    ],
}
CACHES = {
    "dropped": {"enable_prefix_caching": False},
    "kept": {},
    "in a tier": {"tiers": [{"name": "host", "capacity": "512 GiB"}]},
}
for name, cache in CACHES.items():
    result = simulate(Scenario.from_dict(AGENTS, {"clients.0.kv_cache": cache}))
    computed = result.clients["num_prefill_tokens"].sum() / result.summary["total_input_tokens"]
    print(f"{name:9} {computed:4.0%} of the prompts computed, ", end="")
    print(f"median session {result.summary['median_e2el_ms'] / 1e3:.0f} s")
