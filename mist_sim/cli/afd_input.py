"""What `mist afd` reads: coefficients by name, from a file or one by one; lengths of a trace."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from mist_sim.errors import ScenarioError
from mist_sim.hardware.afd import (
    PRESETS,
    AfdCoefficients,
    chosen_coefficients,
    named_coefficients,
)
from mist_sim.search.trace_lengths import FirstToken, Tokens, slot_lengths
from mist_sim.units import DURATION


def read_coefficients(source: str | None, given: Mapping[str, float | None]) -> AfdCoefficients:
    """Return coefficients of a name or a file of measured times, with those given in their place.

    Raises ScenarioError where some are missing, wrong or cannot be read.
    """
    base = _named_or_fitted(source) if source is not None else None
    return chosen_coefficients(base, given, lambda name: f"--{name.replace('_', '-')}")


def _named_or_fitted(source: str) -> AfdCoefficients:
    if source in PRESETS or not Path(source).exists():
        return named_coefficients(source)
    from mist_sim.calibration import fit_afd_coefficients

    return fit_afd_coefficients(Path(source)).coefficients


def seconds_of(cycle: str) -> float:
    """Return a time in seconds. Raises ScenarioError unless it is one, above 0."""
    try:
        seconds = DURATION.parse(cycle)
    except ScenarioError as error:
        raise ScenarioError(f"--cycle: {error}") from error
    if seconds <= 0:
        raise ScenarioError(f"--cycle must be > 0 s, got {cycle!r}")
    return seconds


def read_lengths(trace: str, form: str, first_token: str) -> tuple[Tokens, Tokens]:
    """Return (prompt tokens, decode steps) of a trace's requests.

    Raises ScenarioError for an unknown form, TraceError for a bad row.
    """
    from mist_sim.traces import TRACE_READERS

    TRACE_READERS.load_entry_points()
    for choice in get_args(FirstToken):
        if first_token == choice:
            return slot_lengths(TRACE_READERS[form](path=trace).rows(), choice)
    raise ScenarioError(f"--first-token must be prefill or decode, got {first_token!r}")
