"""What the schedulers of vLLM did with random workloads, to the bit (`python -m conformance`)."""

from pathlib import Path

import pytest

from conformance import logs
from conformance.report import compare

LOGS = Path(__file__).with_name("vllm")

DIFFERENT: dict[str, set[tuple[str, int]]] = {
    "0.12.0-sync": set(),
    "0.12.0-async": set(),
    "0.19.0-sync": set(),
    "0.19.0-async": set(),
    "0.33.0-sync": set(),
    "0.33.0-async": set(),
}
"""Workloads (class, seed) whose tokens come at other times here, for the reasons in
docs/background/memory.md. One that is equal has to be taken out."""


LOADS = ("loads-0.19.0-sync", "loads-0.24.0-async", "loads-0.33.0-async")
"""Blocks come from a store behind vLLM's connector, and here from a tier."""


@pytest.mark.parametrize("name", DIFFERENT)
def test_token_times_are_those_of_vllm(name):
    assert different_in(name) == DIFFERENT[name]
    assert len(logs.read(LOGS / f"{name}.jsonl")) > 30


@pytest.mark.parametrize("name", LOADS)
def test_token_times_are_those_of_vllm_with_a_store_below(name):
    assert different_in(name) == set()
    entries = logs.read(LOGS / f"{name}.jsonl")
    assert sum(any(result["cached"]) for _, result in entries) >= 5
    assert len({spec["name"] for spec, _ in entries}) >= 5


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_token_times_are_those_of_vllm_with_drafts(mode):
    """With EAGLE a block is found only once the token behind it is known (0.33)."""
    name = f"drafts-0.33.0-{mode}"
    assert different_in(name) == set()
    assert sum(any(result["cached"]) for _, result in logs.read(LOGS / f"{name}.jsonl")) >= 5


def different_in(name: str) -> set[tuple[str, int]]:
    """Return the workloads of a log whose tokens come at other times here."""
    path = LOGS / f"{name}.jsonl"
    options, different = logs.options(path), set()
    for spec, result in logs.read(path):
        found = compare(
            spec,
            result,
            release=logs.release(path),
            asynchronous=name.endswith("-async"),
            options=options,
        )
        if found.times:
            different.add((spec["name"], spec["seed"]))
    return different


def test_prompts_go_by_their_first_chunk_in_0_12():
    """The option came in 0.19; so a log without it would not say what 0.12 does."""
    reserves = [logs.options(LOGS / f"{name}.jsonl") for name in ("0.12.0-sync", "0.33.0-sync")]
    assert [found["scheduler_reserve_full_isl"] for found in reserves] == [False, True]


def test_the_logs_hold_what_is_hard():
    """Many entries preempt or find prefixes, so that a rule that is lost shows."""
    for version, num_preempted in (("0.12.0", 20), ("0.19.0", 20), ("0.33.0", 10)):
        modes = [LOGS / f"{version}-{mode}.jsonl" for mode in ("sync", "async")]
        results = [found for path in modes for _, found in logs.read(path)]
        assert sum(any(result["preemptions"]) for result in results) >= num_preempted
        assert sum(any(result["cached"]) for result in results) >= 30
