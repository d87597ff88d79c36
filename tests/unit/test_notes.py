"""What a run says beside its numbers."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from mist_sim.report import results_table
from mist_sim.scenario import Scenario, replicate, simulate
from mist_sim.scenario.load import as_data


def shared_beginnings(model: str, **changes: object) -> Scenario:
    """Return two system prompts that many requests begin with."""
    data = {
        "model": model,
        "workload": {
            "lengths": {
                "type": "prefix_repetition",
                "num_requests": 20,
                "num_prefixes": 2,
                "prefix_len": 500,
                "suffix": {"type": "fixed", "tokens": 30},
                "output": {"type": "fixed", "tokens": 5},
            },
            "arrivals": {"type": "poisson", "rate": "50 /s"},
        },
        "clients": [
            {
                "name": "llm",
                "gpu": "h100-sxm",
                "tensor_parallel_size": 4,
                "speculative_config": {
                    "method": "ngram",
                    "num_speculative_tokens": 2,
                    "acceptance_rate": 0.5,
                },
            }
        ],
    }
    return Scenario.from_dict(data, changes)


def test_an_engine_without_prefix_cache_says_so_where_beginnings_are_shared():
    scenario = shared_beginnings("gpt-oss-120b")
    assert "enable_prefix_caching: false" in scenario.resolved()
    result = simulate(scenario)
    (note,) = result.summary["notes"]
    assert "prefix caching is not simulated for models with sliding windows" in note
    again = simulate(Scenario.from_dict(as_data(scenario)))
    assert again.summary["notes"] == [note]  # a resolved scenario gives the same results
    console = Console(width=80, record=True, file=StringIO())
    console.print(results_table(result))
    assert "prefix caching is not simulated" in " ".join(console.export_text().split())


def test_nothing_is_said_where_nothing_is_lost():
    alone = {"workload.lengths.num_prefixes": 20, "workload.lengths.num_requests": 1}
    assert "notes" not in simulate(shared_beginnings("gpt-oss-120b", **alone)).summary
    windows = {"model": "gpt-oss-120b", "clients.0.speculative_config": None}
    drafts = {"model": "llama-3.1-8b"}
    for changes in (drafts, windows):
        cached = shared_beginnings(**changes)
        assert "enable_prefix_caching: null" in cached.resolved()
        summary = simulate(cached).summary
        assert "notes" not in summary
        assert summary["prefix_cache_hit_rate"] > 0.5


def test_replications_say_it_once():
    found = replicate(shared_beginnings("gpt-oss-120b", replications=2), jobs=1)
    assert len(found.summary["notes"]) == 1
