"""What vLLM did with small workloads, kept in few bytes: tests compare with it without vLLM."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

from conformance.workloads import workload

_MOST_STEPS = 70
_MOST_OF_A_CLASS = 2
Entry = tuple[str, int, dict[str, Any]]
"""A class, a seed, and what vLLM did with the workload."""

_KEPT = ("arrivals", "ends", "preemptions", "cached")


def is_small(result: dict[str, Any]) -> bool:
    """Tell whether a result is worth its bytes."""
    return len(result["ends"]) <= _MOST_STEPS


def write(path: Path, header: dict[str, Any], results: list[Entry]) -> None:
    """Write what vLLM did with workloads of a class and a seed, one a line.

    header: the version as `vllm`, and the `options` of its scheduler.
    Those of each class in which most happens: preemptions first, then prefixes that are found.
    """
    lines = [json.dumps(header)]
    for name, seed, result in _eventful(results):
        kept = {key: result[key] for key in _KEPT}
        kept["token_steps"] = [_packed(steps) for steps in result["token_steps"]]
        lines.append(json.dumps([name, seed, kept], separators=(",", ":")))
    path.write_text("\n".join(lines) + "\n")


def options(path: Path) -> dict[str, Any]:
    """Return the options of the scheduler whose log it is, beside those of the workloads."""
    return dict(_header(path).get("options", {}))


def release(path: Path) -> str:
    """Return the release of vLLM whose log it is, such as 0.33.0."""
    return str(_header(path)["vllm"])


def _header(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text().partition("\n")[0]))


def read(path: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the workloads of a log, made anew, and what vLLM did with each."""
    _, *lines = path.read_text().splitlines()
    found = []
    for line in lines:
        name, seed, result = json.loads(line)
        result["token_steps"] = [_unpacked(text) for text in result["token_steps"]]
        found.append((workload(name, seed, MOST_JOBS), result))
    return found


MOST_JOBS = 6
"""Jobs of a workload in a log."""


def _eventful(results: list[Entry]) -> list[Entry]:
    """Return those of each class in which most happens."""

    def score(entry: Entry) -> tuple[int, int]:
        result = entry[2]
        return -sum(result["preemptions"]), -sum(number > 0 for number in result["cached"])

    chosen = []
    for _, entries in groupby(results, key=lambda entry: entry[0]):
        chosen += sorted(sorted(entries, key=score)[:_MOST_OF_A_CLASS], key=lambda each: each[1])
    return chosen


def _packed(steps: list[int]) -> str:
    """Return step numbers as ranges: 3-17,19."""
    ranges = []
    for _, run in groupby(enumerate(steps), key=lambda pair: pair[1] - pair[0]):
        numbers = [number for _, number in run]
        ranges.append(f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else f"{numbers[0]}")
    return ",".join(ranges)


def _unpacked(text: str) -> list[int]:
    steps: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        steps += range(int(first), int(last or first) + 1)
    return steps
