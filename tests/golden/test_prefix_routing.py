"""What routers find in the caches of 16 clients, on Mooncake's trace (docs/background)."""

from typing import Any

import pytest

from mist_sim import Scenario, simulate
from tests.conftest import ROOT

TRACE = "traces/mooncake_synthetic_trace.jsonl"
PAGE = "docs/background/memory.md"


def replay(path, router: str) -> dict[str, Any]:
    scenario = {
        "model": "llama-3.1-70b",
        "workload": {"trace": {"type": "mooncake", "path": str(path)}},
        "clients": [{"name": "llm", "count": 16, "gpu": "h100-sxm", "tensor_parallel_size": 4}],
        "router": router,
    }
    return simulate(Scenario.from_dict(scenario)).summary


@pytest.mark.page
@pytest.mark.parametrize("router", ["least_outstanding", "prefix_affinity"])
def test_the_page_says_what_routers_find(shared, router):
    summary = replay(shared(TRACE), router)
    rate, unbounded = (summary["prefix_cache_hit_rate"], summary["prefix_cache_hit_rate_unbounded"])
    ttft, tpot = summary["mean_ttft_ms"], summary["mean_tpot_ms"]
    row = f"| `{router}` | {rate:.3f} | {ttft:,.0f} | {summary['p99_ttft_ms']:,.0f} | {tpot:.1f} |"
    assert row in (ROOT / PAGE).read_text()
    assert f"{unbounded:.3f}" == "0.646"
    if router == "prefix_affinity":  # a router of 12 lines reached these
        assert rate > 0.48
        assert ttft < 700
