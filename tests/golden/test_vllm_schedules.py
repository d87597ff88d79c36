"""What vLLM's own scheduler did with random workloads, to the bit (`python -m conformance`)."""

from pathlib import Path

import pytest

from conformance import logs
from conformance.report import compare

LOGS = Path(__file__).with_name("vllm")

DIFFERENT: dict[str, set[tuple[str, int]]] = {
    "sync": {
        ("scarce, conversations, threshold", 0),
        ("scarce, overlapping turns", 158),
        ("scarce, repeats", 198),
    },
    "async": {
        ("scarce, repeats", 198),
    },
}
"""Workloads (class, seed) whose tokens come at other times here, for the reasons in
docs/background/memory.md. One that is equal has to be taken out."""


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_token_times_are_those_of_vllm(mode):
    different = set()
    entries = logs.read(LOGS / f"0.19.0-{mode}.jsonl")
    for spec, result in entries:
        found = compare(spec, result, asynchronous=mode == "async")
        if found.times:
            different.add((spec["name"], spec["seed"]))
    assert different == DIFFERENT[mode]
    assert len(entries) > 30


def test_the_logs_hold_what_is_hard():
    """Many entries preempt or find prefixes, so that a rule that is lost shows."""
    results = [found for mode in DIFFERENT for _, found in logs.read(LOGS / f"0.19.0-{mode}.jsonl")]
    assert sum(any(result["preemptions"]) for result in results) >= 20
    assert sum(any(result["cached"]) for result in results) >= 30
