"""Input of `mist afd`: coefficients, limits, and lengths of a trace."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from mist_sim.bounds import NUMBER
from mist_sim.cli.bundles.hardware import HardwareOptions, quantity
from mist_sim.cli.lists import option_of
from mist_sim.core import result_warnings as kinds
from mist_sim.core.result_warnings import ResultWarning
from mist_sim.errors import ScenarioError, brief
from mist_sim.hardware.afd import PRESETS, AfdCoefficients, chosen_coefficients, named_coefficients
from mist_sim.inputs import is_there
from mist_sim.search import BundleChoice, BundleSpec, SlotLoad, best_bundles
from mist_sim.search.afd import kv_tokens_needed, most_slots
from mist_sim.traces import TraceReader, TraceRow
from mist_sim.units import DURATION

FirstToken = Literal["prefill", "decode"]
"""The client that emits an answer's first token; the other tokens are one decode step each."""

Tokens = NDArray[np.int64]


def slot_lengths(
    rows: Iterable[TraceRow], first_token: FirstToken = "prefill"
) -> tuple[Tokens, Tokens]:
    """Return (prompt tokens, decode steps) of every request, shape (n,) each."""
    lengths = [(row.num_prompt_tokens, row.num_output_tokens) for row in rows]
    prefill, output = np.array(lengths, dtype=np.int64).reshape(-1, 2).T
    return prefill, output - (first_token == "prefill")


Unit = Literal["s", "cycles"]
"""Units of coefficients and results."""


def read_coefficients(
    source: str | None,
    hardware: HardwareOptions,
    given: Mapping[str, float | None],
    cycle: str | None,
) -> tuple[AfdCoefficients, Unit]:
    """Return coefficients and their unit: of a name, a file of measured times, or hardware.

    Options override single coefficients. cycle: its length. Raises ScenarioError for missing, wrong
    or unreadable coefficients.
    """
    if hardware.said:
        for name, value in (("--coefficients", source), ("--cycle", cycle)):
            if value is not None:
                raise ScenarioError(
                    f"{name} must not be given with {hardware.said[0]}, which derives "
                    "coefficients in seconds"
                )
        return chosen_coefficients(hardware.derive(), given, option_of), "s"
    base = _named_or_fitted(source) if source is not None else None
    found = chosen_coefficients(base, given, option_of)
    if cycle is None:
        return found, "cycles"
    return found.times(_seconds_of(cycle)), "s"


def _named_or_fitted(source: str) -> AfdCoefficients:
    if source in PRESETS or not is_there(Path(source)):
        return named_coefficients(source)
    from mist_sim.calibration.afd_latency import fit_afd_coefficients

    return fit_afd_coefficients(Path(source)).coefficients


def _seconds_of(cycle: str) -> float:
    """Return a time in seconds. Raises ScenarioError unless it is one, above 0."""
    try:
        seconds = DURATION.parse(cycle)
    except ScenarioError as error:
        raise ScenarioError(f"--cycle: {error}") from error
    if seconds <= 0:
        raise ScenarioError(f"--cycle must be > 0 s, got {brief(cycle)}")
    return seconds


def longest_tpot(text: str | None, unit: Unit) -> float | None:
    """Return a limit on TPOT in the unit of the coefficients. Raises ScenarioError for others."""
    if text is None:
        return None
    if unit == "s":
        return quantity(text, DURATION, "--max-tpot")
    try:
        cycles = float(text)
    except ValueError:
        cycles = math.nan
    if not 0 < cycles <= NUMBER[1]:
        raise ScenarioError(
            f"--max-tpot must be a number of cycles above 0, got {brief(text)}; for a time, say "
            "with --cycle how long one is"
        )
    return cycles


def chosen(
    coefficients: AfdCoefficients,
    load: SlotLoad,
    slots: list[int],
    batches: list[int],
    ffn_weight: float,
    senders: int = 1,
    **limits: Any,
) -> tuple[BundleSpec, list[BundleChoice]]:
    """Return the input of provisioning, and the best bundles if there is a choice.

    ffn_weight: number of attention workers that an FFN worker counts as. senders: as in
    `BundleSpec`. limits: those of `best_bundles`.
    Raises ScenarioError if no bundle keeps the limits.
    """
    has_limits = any(limit is not None for limit in limits.values())
    if not has_limits and len(slots) == len(batches) == 1:
        return BundleSpec(coefficients, load, slots[0], batches[0], ffn_weight, senders), []
    choices = best_bundles(
        coefficients,
        load,
        slots=slots,
        batches=batches,
        ffn_weight=ffn_weight,
        senders=senders,
        **limits,
    )
    best = choices[0]
    spec = BundleSpec(coefficients, load, best.prediction.slots, best.batches, ffn_weight, senders)
    return spec, choices


@dataclass(frozen=True, slots=True)
class Room:
    """Memory of an attention worker for KV entries. tokens: that fit. title: whose, in words."""

    tokens: float
    title: str

    def check(
        self, load: SlotLoad, slots: list[int], batches: list[int]
    ) -> Iterator[ResultWarning]:
        """Yield which slots in how many batches do not fit.

        Raises ScenarioError where none do.
        """
        pairs = [(each, number) for each in slots for number in batches]
        out = [
            f"{each} slots in {number} batches ({need:,.0f} tokens)"
            for each, number in pairs
            if (need := kv_tokens_needed(load, each * number)) > self.tokens
        ]
        if not out:
            return
        fewest = min(batches)
        most = most_slots(load, self.tokens) // fewest
        text = (
            f"{', '.join(out)}: an attention worker holds KV entries of {self.tokens:,.0f} tokens "
            f"({self.title}), which are enough for {most} slots in {fewest} batches"
        )
        if len(out) == len(pairs):
            raise ScenarioError(f"no bundle fits: {text}; lower --slots")
        yield ResultWarning(kinds.BUNDLE_MEMORY, f"Left out, since they do not fit: {text}.")


def read_lengths(source: TraceReader, first_token: str) -> tuple[Tokens, Tokens]:
    """Return (prompt tokens, decode steps) of a trace's requests.

    Raises TraceError for a bad row.
    """
    for choice in get_args(FirstToken):
        if first_token == choice:
            return slot_lengths(source.rows(), choice)
    raise ScenarioError(f"--first-token must be prefill or decode, got {brief(first_token)}")
