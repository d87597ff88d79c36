"""The typed summary: every key that runs write is in it, with the type of its value."""

import re
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

import pytest

from mist_sim import Scenario, Summary, simulate
from mist_sim.metrics.requests import GroupFigures

HINTS = get_type_hints(Summary)
FEW = {"workload.lengths.num_requests": 60}
APART = {
    "clients": [
        {"name": "p", "gpu": "h100-sxm", "role": "prefill"},
        {"name": "d", "gpu": "h100-sxm", "role": "decode"},
    ],
    "network": {"bandwidth": "50 GB/s"},
}
CASES: dict[str, dict[str, Any]] = {
    "with limits": {},
    "with dollars": {
        "cost": {"electricity": "0.15 $/kWh", "api": {"input": "1 $/Mtok", "output": "2 $/Mtok"}}
    },
    "apart": APART,
    "with drafts": {
        "clients.0.speculative_config": {
            "method": "ngram",
            "num_speculative_tokens": 3,
            "acceptance_rate": 0.7,
        }
    },
    "with failures": {
        "lifecycle": {"failures": [{"clients": "llm-0", "at": "1 s", "repair": "1 s"}]}
    },
    "with classes": {"slo": {"ttft": "1 s", "classes": {"all": {"ttft": "1 s", "priority": 0}}}},
    "over PCIe": {"clients.0.gpu": "l40s", "clients.0.tensor_parallel_size": 2},
    "preset taichi": {"preset": "taichi-chatbot"},
    "re-sharded": {"preset": "seesaw"},
}


def fits(value: Any, hint: Any) -> bool:
    """Whether a value has a type, all the way down. A whole number is also a float."""
    if is_typeddict(hint):
        hints = get_type_hints(hint)
        told = get_type_hints(hint, include_extras=True)  # __required_keys__ sees no strings
        required = {k for k in hint.__required_keys__ if get_origin(told[k]) is not NotRequired}
        return (
            isinstance(value, dict)
            and required <= set(value) <= set(hints)
            and all(fits(each, hints[key]) for key, each in value.items())
        )
    origin, args = get_origin(hint), get_args(hint)
    if origin is dict:
        return isinstance(value, dict) and all(fits(each, args[1]) for each in value.values())
    if origin is list:
        return isinstance(value, list) and all(fits(each, args[0]) for each in value)
    if origin is UnionType:
        return any(fits(value, each) for each in args)
    if hint is NoneType:
        return value is None
    if hint is float:
        return type(value) in (int, float)
    return type(value) is hint


@pytest.mark.parametrize("name", CASES)
def test_what_run_writes_has_types_that_are_said(name):
    changes = {**CASES[name]}
    scenario = Scenario.load(changes.pop("preset", "demo"), overrides=FEW | changes)
    summary = dict(simulate(scenario).summary)
    assert Summary.__required_keys__ <= set(summary)
    wrong = {k: v for k, v in summary.items() if k not in HINTS or not fits(v, HINTS[k])}
    assert not wrong


def test_the_page_on_metrics_names_the_same_keys():
    text = (Path(__file__).parents[3] / "docs/reference/metrics.md").read_text("utf-8")
    table = text.split("## ")
    rows = [line.split("|")[1] for part in table for line in part.splitlines() if "|" in line]
    named = set(re.findall(r"`([a-z_0-9]+)`", " ".join(rows)))
    latency = re.compile(r"[a-z0-9]+_(ttft|tpot|itl|e2el|queue)_ms")
    latencies = {key for key in HINTS if latency.fullmatch(key)}
    assert set(HINTS) - latencies <= named


def test_groups_have_keys_of_the_whole():
    assert set(get_type_hints(GroupFigures)) <= set(HINTS)


def test_a_value_of_another_type_does_not_fit():
    assert not fits("1", float)
    assert not fits({"limit": 1.0}, get_type_hints(Summary)["slo"])
    assert not fits(None, HINTS["stability"])
