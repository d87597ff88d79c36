"""Output of `mist afd`: tables, or the same as plain data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
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

SHOWN = 5  # of the best bundles

_PARTS = {"attention": "A", "ffn": "F", "communication": "comm.", "sum": "sum"}
_RULES = {
    "attention": "attention = the slower of FFN and communication",
    "communication": "best for communication alone",
    "ffn": "best for FFN alone",
    "crossing": "communication = FFN",
    "senders": "as many attention GPUs as FFN cards",
}


@dataclass(frozen=True)
class Found:
    """What was found. choices: the best bundles. told: warnings about the coefficients.

    unit: of times: "s" or "cycles".
    """

    spec: BundleSpec
    estimate: SlotLoadEstimate
    tail: Tail | None
    best: Provisioning
    choices: Sequence[BundleChoice]
    told: Sequence[ResultWarning]
    unit: str

    @property
    def scale(self) -> float:
        """By which times are multiplied: seconds are shown as milliseconds."""
        return 1e3 if self.unit == "s" else 1.0

    @property
    def ms(self) -> str:
        """The unit of times that are shown."""
        return "ms" if self.unit == "s" else ""

    @property
    def rate(self) -> str:
        """The unit of throughput."""
        return "/s" if self.unit == "s" else "/cycle"

    @property
    def rate_each(self) -> str:
        """The unit of throughput by worker; FFN workers of several GPUs count as many."""
        return f"{self.rate}/{'worker' if self.spec.ffn_weight == 1 else 'GPU'}"

    @property
    def interval(self) -> str:
        """What intervals are called."""
        return f"{percent(self.estimate.confidence)} interval"

    @property
    def warnings(self) -> list[dict[str, Any]]:
        """The warnings as plain data."""
        of_tail = [ResultWarning(kinds.HEAVY_TAIL, text) for text in _of_tail(self.tail)]
        return [each.data for each in (*self.told, *of_tail)]


def show(found: Found) -> None:
    """Print everything as tables."""
    spec = found.spec
    best = section("Best bundles", _choices(found)) if found.choices else ()
    parts = Group(
        *section("Load of a slot", pairs(_load_rows(found))),
        *best,
        *section(f"Mean-field rule, B = {spec.slots}", _candidates(found)),
        *section("Best ratios", pairs(_best_rows(found))),
        *section(f"Bundles with {spec.batches} batches in flight", _bundles(found)),
    )
    Terminal().print(Trimmed(with_warnings({"warnings": found.warnings}, parts)))


def _load_rows(found: Found) -> Iterator[Row]:
    estimate, tail, share = found.estimate, found.tail, found.interval
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


def _choices(found: Found) -> Any:
    rows = [
        [
            f"{bundle.attention_workers}:{bundle.ffn_workers}",
            str(bundle.slots),
            str(choice.batches),
            _number(bundle.throughput),
            _number(bundle.tpot * found.scale),
            count(round(choice.kv_tokens)),
            _PARTS[bundle.binds],
        ]
        for choice in found.choices[:SHOWN]
        for bundle in [choice.prediction]
    ]
    titles = ("A:F", "slots", "batches", "tokens", "TPOT", "KV tokens", "binds")
    below = ("", "", "", found.rate_each, found.ms, "a worker", "")
    return columns(titles, rows, right=range(1, 6), below=below)


def _candidates(found: Found) -> Any:
    rows = []
    for candidate in found.best.candidates:
        mark = "best" if candidate is found.best.mean_field else ""
        numbers = (candidate.ratio, candidate.throughput)
        cells = ["-" if value is None else _number(value) for value in numbers]
        rows.append([_RULES[candidate.rule], *cells, mark])
    return listed(("candidate", "ratio", f"tokens{found.rate_each}", ""), rows, right=(1, 2))


def _best_rows(found: Found) -> Iterator[Row]:
    low, high = provision_interval(found.spec, found.estimate)
    best = found.best
    ratio = best.mean_field.ratio or 0.0
    yield "mean field", _number(ratio), f"{found.interval} {_range(low, high)}"
    for name, bundle, remark in (
        ("mean field, whole", best.mean_field_integer, "attention workers for an FFN worker"),
        ("Gaussian", best.gaussian, "with the barrier, many batches in flight"),
        ("in flight", best.in_flight, f"with the barrier, {found.spec.batches} batches in flight"),
    ):
        yield name, str(bundle.attention_workers), remark


def _bundles(found: Found) -> Any:
    best = found.best
    chosen = {
        each.attention_workers for each in (best.mean_field_integer, best.gaussian, best.in_flight)
    }
    powers = {2**k for k in range(max(chosen).bit_length() + 1)}
    bundles = [predict(found.spec, workers) for workers in sorted(powers | chosen)]
    rows = [
        [
            f"{bundle.attention_workers}:{bundle.ffn_workers}",
            _number(found.scale * bundle.cycle_mean_field),
            _number(found.scale * bundle.communication),
            _number(found.scale * bundle.cycle_gaussian),
            _number(bundle.throughput_gaussian),
            _number(found.scale * bundle.cycle),
            _number(bundle.throughput),
            _number(found.scale * bundle.tpot),
            percent(bundle.attention_idle),
            percent(bundle.ffn_idle),
            _PARTS[bundle.binds],
        ]
        for bundle in bundles
    ]
    ms, rate = found.ms, found.rate
    titles = ("A:F", "cycle", "comm.", "cycle", "tokens", "cycle", "tokens", "TPOT", "idle", "idle")
    below = ("", f"mf {ms}", ms, f"G {ms}", f"G {rate}", ms, rate, ms, "A", "F", "")
    return columns((*titles, "binds"), rows, right=range(1, 10), below=below)


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


def as_data(found: Found) -> dict[str, Any]:
    """Return everything that `show` prints, times in the unit of the coefficients."""
    spec, best, tail = found.spec, found.best, found.tail
    low, high = provision_interval(spec, found.estimate)

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
        "load": asdict(found.estimate),
        "tail": None if tail is None else asdict(tail) | {"verdict": tail.verdict},
        "candidates": [asdict(candidate) for candidate in best.candidates],
        "mean_field": asdict(best.mean_field) | {"low": low, "high": high},
        "mean_field_integer": bundle(best.mean_field_integer),
        "gaussian": bundle(best.gaussian),
        "in_flight": bundle(best.in_flight),
        "best_bundles": [
            bundle(choice.prediction) | {"batches": choice.batches, "kv_tokens": choice.kv_tokens}
            for choice in found.choices[:SHOWN]
        ],
        "warnings": found.warnings,
    }


def _number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _range(low: float, high: float) -> str:
    return f"{_number(low)} to {_number(high)}"
