"""Expected errors of TTFT and TPOT, against real engines: `expected_errors.csv`.

A row of that file is a setting that has measurements like it, under a kind of load. `python
docs/make_errors.py` writes it (`tools.validation.error_bars` says how the ranges are found).
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from importlib import resources
from math import isfinite
from typing import Any, NamedTuple

from mist_sim.hardware.setting import Borrowed, ByRule, Setting
from mist_sim.metrics.latency import metric_of

WITHIN = "within error"
"""The verdict on a limit that a real engine might keep or miss, by the error of the step times."""

ANY_LOAD = "any load"
"""The load of bars for a run that is not known yet."""

OF_THE_RULE = 0.09
"""How far a share of a card by rule may be off: of an RTX 3090 by an RTX A6000, the one such pair
that was measured (`tools/related_cards.py`)."""


@dataclass(frozen=True, slots=True)
class ErrorBar:
    """The range in which nine of ten measurements lie, as measured / simulated - 1.

    low, high: the ends of the range. num_points: measured figures behind it, of whole runs and of
        kernels. like: the setting they were measured in, in words. load: the kind of load, one of
        `mist_sim.metrics.load.LOADS` or `ANY_LOAD`. few_of_load: whether too few runs of that load
        were measured, so that the range is that of all loads, widened.
    """

    low: float
    high: float
    num_points: int
    like: str
    load: str = ANY_LOAD
    few_of_load: bool = False

    @property
    def width(self) -> float:
        """From one end to the other."""
        return self.high - self.low


class Range(NamedTuple):
    """Where measured / simulated - 1 of a metric lies, nine times in ten."""

    low: float
    high: float


def error_bar(
    setting: Setting | Borrowed | None, metric: str, load: str = ANY_LOAD
) -> ErrorBar | None:
    """Return the expected error of a setting; None without measurements like it.

    metric: "ttft" or "tpot". load: as in `ErrorBar`.
    """
    if setting is None or isinstance(setting, Borrowed):
        return None
    if isinstance(setting, ByRule):
        bar = _bars().get((setting.measured, metric, load))
        return bar and _by_rule(bar, setting.card)
    return _bars().get((setting, metric, load))


def _by_rule(bar: ErrorBar, card: str) -> ErrorBar:
    """Return a bar of other cards of an architecture for one whose shares follow a rule."""
    return replace(
        bar,
        low=(1 + bar.low) / (1 + OF_THE_RULE) - 1,
        high=(1 + bar.high) * (1 + OF_THE_RULE) - 1,
        like=f"{bar.like}; shares of the {card} by rule",
    )


def expected_errors(
    settings: Mapping[str, Mapping[str, Setting | Borrowed | None]], load: str | None = None
) -> dict[str, dict[str, dict[str, Any] | None]]:
    """Return the expected errors of clients by metric, in the form of the summary.

    settings: as in `Result`. load: the run's kind of load, one of `mist_sim.metrics.load`;
    None: unknown, before a run or if no request finishes.
    """
    shown = cache(_shown)  # many clients have one setting
    return {
        name: {
            metric: (bar := shown(setting, metric, load)) and dict(bar)
            for metric, setting in of_client.items()
        }
        for name, of_client in settings.items()
    }


def expected_ranges(summary: Mapping[str, Any]) -> dict[str, Range | None]:
    """Return the expected error ranges of a run's mean "ttft", "tpot", "itl" and "e2el".

    Each is the widest range of the clients; None if nothing comparable to one of them was measured,
    or if no client times steps. A gap between two tokens (ITL) is one step, of decodes alone or
    with pieces of prompts, so its range spans those of TPOT and TTFT of a client that does both.
    The range of E2E combines those of its parts, each weighted by its share of the simulated mean
    (`end_to_end`).

    summary: of a run or of replications, with `expected_errors` and the means of TTFT and E2E.
    """
    expected = summary.get("expected_errors", {})
    ttft, tpot = (_widest(expected, metric) for metric in ("ttft", "tpot"))
    share = float(summary.get("mean_ttft_ms", 0.0)) / (summary.get("mean_e2el_ms") or float("nan"))
    e2el = end_to_end(ttft, tpot, share) if ttft and tpot and isfinite(share) else None
    return {"ttft": ttft, "tpot": tpot, "itl": _of_gaps(expected), "e2el": e2el}


def biases_of(summary: Mapping[str, Any]) -> dict[str, Range]:
    """Return the ranges of `expected_ranges` that lie on one side of 0: biases, by metric.

    Without ITL, whose range is that of the others.
    """
    found = [(name, each) for name, each in expected_ranges(summary).items() if name != "itl"]
    return {name: each for name, each in found if each and (each.low > 0 or each.high < 0)}


def verdict_of(kept: bool, value: float, limit: float, error: Range | None) -> str:
    """Return "pass", "miss", or "within error" where a real engine might do the other.

    kept: whether the simulated value keeps the limit. error: as `expected_ranges` has it for the
    metric; None: not known, so that the simulated value alone counts. Ranges are of means; one of
    the mean stands for all percentiles.
    """
    if error is not None and isfinite(value):
        if kept and value * (1 + error.high) > limit:
            return WITHIN
        if not kept and value * (1 + error.low) <= limit:
            return WITHIN
    return "pass" if kept else "miss"


def with_verdicts(
    slo: Mapping[str, Mapping[str, Any]], summary: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return each figure that has a limit, with the limit and the verdict (`verdict_of`).

    `error_known` tells whether the verdict knows the expected error.

    slo: as `slo_verdicts` gives them, in milliseconds. summary: as `expected_ranges` takes it.
    """
    ranges = expected_ranges(summary)
    told = {}
    for name, found in slo.items():
        error = ranges.get(metric_of(name))
        verdict = verdict_of(found["kept"], found["value"], found["limit"], error)
        told[name] = {**found, "verdict": verdict, "error_known": error is not None}
    return told


def end_to_end(ttft: Range | ErrorBar, tpot: Range | ErrorBar, ttft_share: float) -> Range:
    """Return the range of E2E from the ranges of TTFT and of the time after it.

    ttft_share: share of TTFT in E2E, in [0, 1]. The time after the first token counts as decode.
    """
    rest = 1 - ttft_share
    return Range(
        low=ttft_share * ttft.low + rest * tpot.low,
        high=ttft_share * ttft.high + rest * tpot.high,
    )


def _widest(expected: Mapping[str, Any], metric: str) -> Range | None:
    """Return the widest range of the clients; None if one has no range or there are no clients."""
    bars = [of_client[metric] for of_client in expected.values() if metric in of_client]
    if not bars or any(bar is None or bar["low"] is None for bar in bars):
        return None
    return max((Range(bar["low"], bar["high"]) for bar in bars), key=lambda r: r.high - r.low)


def _of_gaps(expected: Mapping[str, Any]) -> Range | None:
    """Return the widest range of gaps of the clients that decode; None if one has no range."""
    spans = []
    for of_client in expected.values():
        if "tpot" in of_client:
            bars = [_widest({"": of_client}, metric) for metric in of_client]
            if None in bars:
                return None
            known = [bar for bar in bars if bar is not None]
            spans.append(Range(min(b.low for b in known), max(b.high for b in known)))
    return max(spans, key=lambda r: r.high - r.low, default=None)


def _shown(
    setting: Setting | Borrowed | None, metric: str, load: str | None
) -> dict[str, Any] | None:
    """Return an error bar as data; a borrowed one has no ends, and gives the reason."""
    if isinstance(setting, Borrowed):
        nothing = dict.fromkeys(("low", "high"))
        return {**nothing, "num_points": 0, "like": setting.why, "load": load, "few_of_load": False}
    bar = error_bar(setting, metric, load or ANY_LOAD)
    return None if bar is None else asdict(bar) | {"load": load}


@cache
def _bars() -> Mapping[tuple[Setting, str, str], ErrorBar]:
    text = (resources.files("mist_sim.metrics") / "expected_errors.csv").read_text("utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {(_setting(row), row["metric"], row["load"]): _bar(row) for row in rows}


def _setting(row: Mapping[str, str]) -> Setting:
    return Setting(**{field.name: row[field.name] for field in fields(Setting)})


def _bar(row: Mapping[str, str]) -> ErrorBar:
    return ErrorBar(
        low=float(row["low"]),
        high=float(row["high"]),
        num_points=int(row["num_points"]),
        like=row["like"],
        load=row["load"],
        few_of_load=row["few_of_load"] == "True",
    )
