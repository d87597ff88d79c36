"""Sentences about failures: how long until latencies were as before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mist_sim.metrics.latency import SHORT_NAMES
from mist_sim.metrics.recoveries import FEWEST

_TOLD = 3  # failures with a sentence each
_FEW = (
    f"Fewer than {FEWEST} requests finished before the first failure: too few to tell when "
    "latencies were as before."
)


def recovery_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield when latencies were as before, a sentence a failure; none without failures."""
    found = summary.get("recoveries")
    if found is None:
        return
    if not found:
        yield _FEW
    for each in found[:_TOLD]:
        yield _sentence(each)
    if len(found) > _TOLD:
        yield f"{len(found) - _TOLD} failures more: see recoveries in the summary."


def _sentence(each: Mapping[str, Any]) -> str:
    when = f"failure at {each['begin']:.4g} s"
    if each["end"] > each["begin"]:
        when = f"failures from {each['begin']:.4g} to {each['end']:.4g} s"
    back = {SHORT_NAMES[metric]: seconds for metric, seconds in each["back_after"].items()}
    if not any(seconds != 0 for seconds in back.values()):
        return f"Latencies stayed as they were through the {when}."
    words = ", ".join(f"{name} {_when(seconds)}" for name, seconds in back.items())
    return f"Latencies are as before the {when} again: {words}."


def _when(seconds: float | None) -> str:
    if seconds is None:
        return "not by the last arrival"
    return "at once" if seconds == 0 else f"after {seconds:.3g} s"
