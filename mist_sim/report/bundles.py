"""Bundles of attention and FFN workers as tables for a terminal (`mist afd`)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from rich.console import Group, RenderableType

from mist_sim.report.elements import Row, columns, count, listed, pairs, percent, section

_PARTS = {"attention": "A", "ffn": "F", "communication": "comm.", "sum": "sum"}
_RULES = {
    "attention": "attention = the slower of FFN and communication",
    "communication": "best for communication alone",
    "ffn": "best for FFN alone",
    "crossing": "communication = FFN",
    "senders": "as many attention GPUs as FFN cards",
}


class _Unit(NamedTuple):
    """How times are shown: multiplied by `scale`, in `ms`; throughput, in all and by worker."""

    scale: float
    ms: str
    rate: str
    rate_each: str


def _unit(found: Any) -> _Unit:
    """Return the unit of what is shown: seconds are milliseconds."""
    scale, ms, rate = (1e3, "ms", "/s") if found.unit == "s" else (1.0, "", "/cycle")
    each = "worker" if found.spec.ffn_weight == 1 else "GPU"  # FFN workers of several count so
    return _Unit(scale, ms, rate, f"{rate}/{each}")


def _interval(found: Any) -> str:
    return f"{percent(found.estimate.confidence)} interval"


def bundles_table(found: Any) -> RenderableType:
    """Return the tables of `Bundles`."""
    spec = found.spec
    best = section("Best bundles", _choices(found)) if found.choices else ()
    return Group(
        *section("Load of a slot", pairs(_load_rows(found))),
        *best,
        *section(f"Mean-field rule, B = {spec.slots}", _candidates(found)),
        *section("Best ratios", pairs(_best_rows(found))),
        *section(f"Bundles with {spec.batches} batches in flight", _bundles(found)),
    )


def _load_rows(found: Any) -> Iterator[Row]:
    estimate, tail, share = found.estimate, found.tail, _interval(found)
    theta, variance = estimate.theta, estimate.nu_squared
    yield "requests that decode", count(estimate.num_requests), ""
    yield "mean prompt", _number(estimate.mean_prefill), "tokens"
    yield "mean decode", _number(estimate.mean_decode), "steps"
    yield "covariance of both", _number(estimate.covariance), ""
    yield "theta, mean", _number(theta.value), f"{share} {_range(theta.low, theta.high)} tokens"
    ends = _range(math.sqrt(variance.low), math.sqrt(variance.high))
    yield "nu, standard deviation", _number(math.sqrt(variance.value)), f"{share} {ends} tokens"
    if tail is not None:
        alpha = "light" if math.isinf(tail.alpha) else _number(tail.alpha)
        yield "tail exponent of decodes", alpha, f"95 % interval from {_number(tail.low)} on"


def _choices(found: Any) -> Any:
    unit = _unit(found)
    rows = [
        [
            f"{bundle.attention_workers}:{bundle.ffn_workers}",
            str(bundle.slots),
            str(choice.batches),
            _number(bundle.throughput),
            _number(bundle.tpot * unit.scale),
            count(round(choice.kv_tokens)),
            _PARTS[bundle.binds],
        ]
        for choice in found.shown
        for bundle in [choice.prediction]
    ]
    titles = ("A:F", "slots", "batches", "tokens", "TPOT", "KV tokens", "binds")
    below = ("", "", "", unit.rate_each, unit.ms, "a worker", "")
    return columns(titles, rows, right=range(1, 6), below=below)


def _candidates(found: Any) -> Any:
    rows = []
    for candidate in found.best.candidates:
        mark = "best" if candidate is found.best.mean_field else ""
        numbers = (candidate.ratio, candidate.throughput)
        cells = ["-" if value is None else _number(value) for value in numbers]
        rows.append([_RULES[candidate.rule], *cells, mark])
    return listed(("candidate", "ratio", f"tokens{_unit(found).rate_each}", ""), rows, right=(1, 2))


def _best_rows(found: Any) -> Iterator[Row]:
    low, high = found.mean_field_ends
    best = found.best
    ratio = best.mean_field.ratio or 0.0
    yield "mean field", _number(ratio), f"{_interval(found)} {_range(low, high)}"
    for name, bundle, remark in (
        ("mean field, whole", best.mean_field_integer, "attention workers for an FFN worker"),
        ("Gaussian", best.gaussian, "with the barrier, many batches in flight"),
        ("in flight", best.in_flight, f"with the barrier, {found.spec.batches} batches in flight"),
    ):
        yield name, str(bundle.attention_workers), remark


def _bundles(found: Any) -> Any:
    unit = _unit(found)
    rows = [
        [
            f"{bundle.attention_workers}:{bundle.ffn_workers}",
            _number(unit.scale * bundle.cycle_mean_field),
            _number(unit.scale * bundle.communication),
            _number(unit.scale * bundle.cycle_gaussian),
            _number(bundle.throughput_gaussian),
            _number(unit.scale * bundle.cycle),
            _number(bundle.throughput),
            _number(unit.scale * bundle.tpot),
            percent(bundle.attention_idle),
            percent(bundle.ffn_idle),
            _PARTS[bundle.binds],
        ]
        for bundle in found.predicted
    ]
    ms, rate = unit.ms, unit.rate
    titles = ("A:F", "cycle", "comm.", "cycle", "tokens", "cycle", "tokens", "TPOT", "idle", "idle")
    below = ("", f"mf {ms}", ms, f"G {ms}", f"G {rate}", ms, rate, ms, "A", "F", "")
    return columns((*titles, "binds"), rows, right=range(1, 10), below=below)


def _number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _range(low: float, high: float) -> str:
    return f"{_number(low)} to {_number(high)}"
