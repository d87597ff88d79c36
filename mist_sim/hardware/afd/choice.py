"""Coefficients by name, one by one, or some of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mist_sim.bounds import NUMBER
from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.hardware.afd.bundle_coefficients import PRESETS, AfdCoefficients


def named_coefficients(name: str) -> AfdCoefficients:
    """Return published coefficients. Raises ScenarioError for an unknown name."""
    if name not in PRESETS:
        raise ScenarioError(
            f"no coefficients named {brief(name)}{did_you_mean(name, PRESETS)} "
            f"Known: {', '.join(PRESETS)}"
        )
    return PRESETS[name]


def chosen_coefficients(
    base: AfdCoefficients | None,
    given: Mapping[str, float | None],
    written: Callable[[str], str] = str,
) -> AfdCoefficients:
    """Return the given coefficients, with those of `base` for the others.

    given: all six by name. written: how the user writes a name.
    Raises ScenarioError where some are missing or out of range.
    """
    named = {name: value for name, value in given.items() if value is not None}
    if base is not None:
        named = {name: getattr(base, name) for name in given} | named
    if missing := [written(name) for name in given if name not in named]:
        raise ScenarioError(
            f"coefficients are missing: {', '.join(missing)}; give all six, or "
            f"{written('coefficients')} with a name ({', '.join(PRESETS)})"
        )
    for name, value in named.items():
        if value > NUMBER[1]:
            raise ScenarioError(f"coefficients: {name} must be <= {NUMBER[1]:g}, got {value:g}")
    try:
        return AfdCoefficients(**named)
    except ValueError as error:
        raise ScenarioError(f"coefficients: {error}") from error
