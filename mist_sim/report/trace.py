"""The statistics of a trace, and the latencies of an observed server, as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Group, RenderableType

from mist_sim.metrics.latency import SHORT_NAMES
from mist_sim.report.elements import Row, columns, count, in_ms, number, pairs, percent, section

_MOST_MODELS = 10
_UNITS = {"/s": 1, "/min": 60, "/h": 3600, "/day": 86400}  # of rates, in seconds
_LEAST = 0.1  # of a unit; two decimals show it


def trace_table(found: Mapping[str, Any]) -> RenderableType:
    """Return the tables of `traces.statistics.statistics`."""
    prompts, answers = found["prompt_tokens"], found["output_tokens"]
    rows = [[title, number(prompts[title]), number(answers[title])] for title in prompts]
    return Group(
        *section("Requests", pairs(_requests(found))),
        *section("Tokens", columns(["", "prompts", "answers"], rows, right=[1, 2])),
    )


def _requests(found: Mapping[str, Any]) -> Iterator[Row]:
    yield "requests", count(found["num_requests"]), ""
    if found["seconds"] is None:
        yield "times", "-", "none; choose arrivals"
    elif found["rate"] is None:
        yield "time", number(0.0), "s: all requests come at once"
    else:
        yield "time", number(found["seconds"]), "s from the first to the last"
        rate = found["rate"]
        unit = next((each for each, seconds in _UNITS.items() if rate * seconds >= _LEAST), "/day")
        yield "rate", number(rate * _UNITS[unit]), unit
        yield "gaps", number(found["cv"]), "standard deviation over mean; 1 is Poisson"
    if found["sessions"]:
        turns = number(found["turns_a_session"])
        yield "conversations", count(found["sessions"]), f"{turns} requests each"
    if found["known_prompt_share"]:
        share = percent(found["known_prompt_share"], 1)
        yield "prompt tokens known", share, "that an earlier request began with"
    for name, times in list(found["models"].items())[:_MOST_MODELS]:
        yield f"model {name}", count(times), "requests"


_PERCENTILES = (50, 90, 99)


def observed_table(seconds: Mapping[str, Sequence[float]], answers: int) -> RenderableType:
    """Return the latencies of answers. seconds: by metric, such as ttft. answers: how many."""
    titles = ["", "mean", *(f"p{each}" for each in _PERCENTILES)]
    rows = []
    for key, name in SHORT_NAMES.items():
        if found := seconds[key]:  # answers of one token have no gaps
            figures = (np.mean(found), *np.percentile(found, _PERCENTILES))
            rows.append([name, *(in_ms(float(each) * 1e3) for each in figures)])
    body = columns(titles, rows, right=range(1, len(titles)))
    return Group(*section(f"Latency of the {answers:,} requests that were answered, ms", body))
