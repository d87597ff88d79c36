"""What `mist afd` finds: the load of a slot, the best ratios of workers, and what bundles do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mist_sim.core import result_warnings as kinds
from mist_sim.core.result_warnings import ResultWarning
from mist_sim.report.presenters import BUNDLES
from mist_sim.search.afd import (
    BundleChoice,
    BundleSpec,
    Prediction,
    Provisioning,
    SlotLoadEstimate,
    Tail,
    predict,
    provision_interval,
)
from mist_sim.studies.tabled import Tabled

_SHOWN = 5  # of the best bundles


@dataclass(frozen=True, repr=False)
class Bundles(Tabled):
    """Bundles of attention and FFN workers for a load.

    choices: those that keep the limits, the best first; empty if there is no choice. told: warnings
    about the coefficients. unit: of times: "s" or "cycles".
    """

    presenter = BUNDLES
    stem = "afd"

    spec: BundleSpec
    estimate: SlotLoadEstimate
    tail: Tail | None
    best: Provisioning
    choices: Sequence[BundleChoice]
    told: Sequence[ResultWarning]
    unit: str
    title: str = ""

    @property
    def shown(self) -> Sequence[BundleChoice]:
        """The first of the choices."""
        return self.choices[:_SHOWN]

    @property
    def mean_field_ends(self) -> tuple[float, float]:
        """The best mean-field ratios at the ends of the interval of the load."""
        return provision_interval(self.spec, self.estimate)

    @property
    def predicted(self) -> list[Prediction]:
        """Bundles of one FFN worker: the best ones, and powers of two up to beyond these."""
        best = self.best
        chosen = {each.attention_workers for each in (best.mean_field_integer, best.gaussian)}
        chosen |= {best.in_flight.attention_workers}
        powers = {2**k for k in range(max(chosen).bit_length() + 1)}
        return [predict(self.spec, workers) for workers in sorted(powers | chosen)]

    @property
    def warnings(self) -> tuple[ResultWarning, ...]:
        """Those about the coefficients, and a heavy tail of the lengths."""
        of_tail = [ResultWarning(kinds.HEAVY_TAIL, text) for text in _of_tail(self.tail)]
        return (*self.told, *of_tail)

    @property
    def cells(self) -> Iterator[dict[str, Any]]:
        """The best bundles, a row each."""
        for each in self.shown:
            yield _row(each.prediction) | {"batches": each.batches, "kv_tokens": each.kv_tokens}

    @property
    def data(self) -> dict[str, Any]:
        """Everything but the warnings as plain data, times in the unit of the coefficients."""
        spec, best, tail = self.spec, self.best, self.tail
        low, high = self.mean_field_ends
        return {
            "coefficients": asdict(spec.coefficients),
            "slots": spec.slots,
            "batches": spec.batches,
            "ffn_weight": spec.ffn_weight,
            "load": asdict(self.estimate),
            "tail": None if tail is None else asdict(tail) | {"verdict": tail.verdict},
            "candidates": [asdict(candidate) for candidate in best.candidates],
            "mean_field": asdict(best.mean_field) | {"low": low, "high": high},
            "mean_field_integer": _row(best.mean_field_integer),
            "gaussian": _row(best.gaussian),
            "in_flight": _row(best.in_flight),
            "best_bundles": list(self.cells),
        }

    def __repr__(self) -> str:
        return f"<Bundles: {self.best.in_flight.attention_workers} attention workers an FFN worker>"


def _row(found: Prediction) -> dict[str, Any]:
    named = ("throughput", "throughput_gaussian", "binds")
    return asdict(found) | {name: getattr(found, name) for name in named}


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
