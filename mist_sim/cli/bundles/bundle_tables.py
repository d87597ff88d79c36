"""Output of `mist afd`: tables, or the same as plain data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group

from mist_sim.core import result_warnings as kinds
from mist_sim.core.result_warnings import ResultWarning
from mist_sim.report.elements import (
    Row,
    Terminal,
    Trimmed,
    columns,
    count,
    listed,
    pairs,
    percent,
    section,
    with_warnings,
)
from mist_sim.search import (
    BundleChoice,
    BundleSpec,
    Prediction,
    Provisioning,
    SlotLoadEstimate,
    Tail,
    predict,
    provision_interval,
)

SHOWN = 5
"""Of the best bundles."""

_PARTS = {"attention": "A", "ffn": "F", "communication": "comm.", "sum": "sum"}
_RULES = {
    "attention": "attention = the slower of FFN and communication",
    "communication": "best for communication alone",
    "ffn": "best for FFN alone",
    "crossing": "communication = FFN",
    "senders": "as many attention GPUs as FFN cards",
}


def show(
    spec: BundleSpec,
    estimate: SlotLoadEstimate,
    tail: Tail | None,
    found: Provisioning,
    choices: Sequence[BundleChoice] = (),
    told: Sequence[ResultWarning] = (),
    *,
    unit: str,
) -> None:
    """Print everything as tables.

    choices: the best bundles. told: warnings about the coefficients. unit: "s" or "cycles".
    """
    best = section("Best bundles", _choices(spec, choices, unit)) if choices else ()
    parts = Group(
        *section("Load of a slot", pairs(_load_rows(estimate, tail))),
        *best,
        *section(f"Mean-field rule, B = {spec.slots}", _candidates(spec, found, unit)),
        *section("Best ratios", pairs(_best_rows(spec, estimate, found))),
        *section(f"Bundles with {spec.batches} batches in flight", _bundles(spec, found, unit)),
    )
    warned = {"warnings": _warned(told, tail)}
    Terminal().print(Trimmed(with_warnings(warned, parts)))


def _load_rows(estimate: SlotLoadEstimate, tail: Tail | None) -> Iterator[Row]:
    theta, variance = estimate.theta, estimate.nu_squared
    yield "requests that decode", count(estimate.num_requests), ""
    yield "mean prompt", _number(estimate.mean_prefill), "tokens"
    yield "mean decode", _number(estimate.mean_decode), "steps"
    yield "covariance of both", _number(estimate.covariance), ""
    share = f"{percent(estimate.confidence)} interval"
    yield "theta, mean", _number(theta.value), f"{share} {_range(theta.low, theta.high)} tokens"
    ends = _range(math.sqrt(variance.low), math.sqrt(variance.high))
    yield "nu, standard deviation", _number(math.sqrt(variance.value)), f"{share} {ends} tokens"
    if tail is not None:
        alpha = "light" if math.isinf(tail.alpha) else _number(tail.alpha)
        yield "tail exponent of decodes", alpha, f"95 % interval from {_number(tail.low)} on"


def _choices(spec: BundleSpec, choices: Sequence[BundleChoice], unit: str) -> Any:
    rows = []
    for choice in choices[:SHOWN]:
        bundle = choice.prediction
        workers = f"{bundle.attention_workers}:{bundle.ffn_workers}"
        tpot = _number(bundle.tpot * (1e3 if unit == "s" else 1.0))
        numbers = (_number(bundle.throughput), tpot, count(round(choice.kv_tokens)))
        part = _PARTS[bundle.binds]
        rows.append([workers, str(bundle.slots), str(choice.batches), *numbers, part])
    titles = ("A:F", "slots", "batches", "tokens", "TPOT", "KV tokens", "binds")
    time = "ms" if unit == "s" else ""
    below = ("", "", "", f"/{_one(unit)}/{_each(spec)}", time, "a worker", "")
    return columns(titles, rows, right=range(1, 6), below=below)


def _candidates(spec: BundleSpec, found: Provisioning, unit: str) -> Any:
    rows = []
    for candidate in found.candidates:
        mark = "best" if candidate is found.mean_field else ""
        numbers = (candidate.ratio, candidate.throughput)
        cells = ["-" if value is None else _number(value) for value in numbers]
        rows.append([_RULES[candidate.rule], *cells, mark])
    titles = ("candidate", "ratio", f"tokens/{_one(unit)}/{_each(spec)}", "")
    return listed(titles, rows, right=(1, 2))


def _best_rows(spec: BundleSpec, estimate: SlotLoadEstimate, found: Provisioning) -> Iterator[Row]:
    low, high = provision_interval(spec, estimate)
    share = f"{percent(estimate.confidence)} interval"
    ratio = found.mean_field.ratio
    yield "mean field", _number(ratio or 0.0), f"{share} {_range(low, high)}"
    for name, best, remark in (
        ("mean field, whole", found.mean_field_integer, "attention workers for an FFN worker"),
        ("Gaussian", found.gaussian, "with the barrier, many batches in flight"),
        ("in flight", found.in_flight, f"with the barrier, {spec.batches} batches in flight"),
    ):
        yield name, str(best.attention_workers), remark


def _bundles(spec: BundleSpec, found: Provisioning, unit: str) -> Any:
    best = {found.mean_field_integer, found.gaussian, found.in_flight}
    most = max(bundle.attention_workers for bundle in best)
    powers = {2**k for k in range(most.bit_length() + 1)}
    workers = sorted(powers | {bundle.attention_workers for bundle in best})
    rows = [_bundle_row(predict(spec, number), unit) for number in workers]
    each = f"/{_one(unit)}"
    titles = ("A:F", "cycle", "comm.", "cycle", "tokens", "cycle", "tokens", "TPOT", "idle", "idle")
    time = "ms" if unit == "s" else ""
    below = ("", f"mf {time}", time, f"G {time}", f"G {each}", time, each, time, "A", "F")
    return columns((*titles, "binds"), rows, right=range(1, 10), below=(*below, ""))


def _bundle_row(bundle: Prediction, unit: str) -> list[str]:
    scale = 1e3 if unit == "s" else 1.0
    parts = (bundle.cycle_mean_field, bundle.communication)
    times = (*parts, bundle.cycle_gaussian, bundle.cycle, bundle.tpot)
    mean_field, sent, gaussian, cycle, tpot = (_number(scale * time) for time in times)
    return [
        f"{bundle.attention_workers}:{bundle.ffn_workers}",
        mean_field,
        sent,
        gaussian,
        _number(bundle.throughput_gaussian),
        cycle,
        _number(bundle.throughput),
        tpot,
        percent(bundle.attention_idle),
        percent(bundle.ffn_idle),
        _PARTS[bundle.binds],
    ]


def _warned(told: Sequence[ResultWarning], tail: Tail | None) -> list[dict[str, Any]]:
    """Return the warnings of a bundle as plain data."""
    of_tail = [ResultWarning(kinds.HEAVY_TAIL, text) for text in _of_tail(tail)]
    return [each.data for each in (*told, *of_tail)]


def _of_tail(tail: Tail | None) -> Iterator[str]:
    if tail is None:
        yield "Too few requests to tell how heavy the tail of decode lengths is."
    elif tail.verdict != "finite":
        yield (
            f"Decode lengths have a heavy tail, with exponent {tail.alpha:.2f}. Unless a longest "
            "answer cuts it, the variance of a slot's load is finite above 3 only: longer traces "
            "would give a larger nu, and the intervals and the Gaussian cycle are too optimistic. "
            "Theta and the mean-field rule hold."
        )


def as_data(
    spec: BundleSpec,
    estimate: SlotLoadEstimate,
    tail: Tail | None,
    found: Provisioning,
    choices: Sequence[BundleChoice] = (),
    told: Sequence[ResultWarning] = (),
) -> dict[str, Any]:
    """Return everything that `show` prints, times in the unit of the coefficients."""
    low, high = provision_interval(spec, estimate)

    def bundle(prediction: Prediction) -> dict[str, Any]:
        return asdict(prediction) | {
            "throughput": prediction.throughput,
            "throughput_gaussian": prediction.throughput_gaussian,
            "binds": prediction.binds,
        }

    return {
        "coefficients": asdict(spec.coefficients),
        "slots": spec.slots,
        "batches": spec.batches,
        "ffn_weight": spec.ffn_weight,
        "load": asdict(estimate),
        "tail": None if tail is None else asdict(tail) | {"verdict": tail.verdict},
        "candidates": [asdict(candidate) for candidate in found.candidates],
        "mean_field": asdict(found.mean_field) | {"low": low, "high": high},
        "mean_field_integer": bundle(found.mean_field_integer),
        "gaussian": bundle(found.gaussian),
        "in_flight": bundle(found.in_flight),
        "best_bundles": [
            bundle(choice.prediction) | {"batches": choice.batches, "kv_tokens": choice.kv_tokens}
            for choice in choices[:SHOWN]
        ],
        "warnings": _warned(told, tail),
    }


def _each(spec: BundleSpec) -> str:
    """The divisor of throughput: FFN workers of several GPUs count as many."""
    return "worker" if spec.ffn_weight == 1 else "GPU"


def _one(unit: str) -> str:
    return "s" if unit == "s" else "cycle"


def _number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _range(low: float, high: float) -> str:
    return f"{_number(low)} to {_number(high)}"
