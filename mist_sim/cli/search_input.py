"""Options of searches on a command line, and intervals given as LOW:HIGH."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mist_sim.errors import ScenarioError, brief
from mist_sim.units import DURATION

if TYPE_CHECKING:
    from mist_sim.metrics.keeping import LimitOnShare
    from mist_sim.search.goodput import GoodputOptions


def goodput_options(**given: Any) -> GoodputOptions:
    """Return the options of a goodput search; None takes the default."""
    from mist_sim.search.goodput import GoodputOptions

    return GoodputOptions(**{name: value for name, value in given.items() if value is not None})


def percentiles_in(given: Sequence[str]) -> tuple[LimitOnShare, ...]:
    """Return the percentiles of NAME=TIME. Raises ScenarioError for other texts."""
    from mist_sim.search.verdicts.request_times import percentiles_of

    pairs = [text.partition("=") for text in given]
    if not all(middle for _, middle, _ in pairs):
        raise ScenarioError(
            f"--percentile must be NAME=TIME, such as p50_ttft='2 s', got {brief(list(given))}"
        )
    return percentiles_of({name: time for name, _, time in pairs}) if pairs else ()


def interval_of(
    option: str, text: str, number: Callable[[str], float] = float, example: str = "5:50"
) -> tuple[float, float]:
    """Return the two ends of an interval.

    option: its name, for messages. number: reads an end.
    Raises ScenarioError for other texts.
    """
    low, colon, high = text.partition(":")
    try:
        if not colon:
            raise ValueError(text)
        return number(low), number(high)
    except ValueError as error:
        told = f": {error}" if isinstance(error, ScenarioError) else ""
        raise ScenarioError(
            f"{option} must be LOW:HIGH, such as {example}, got {brief(text)}{told}"
        ) from None


def times_of(option: str, text: str) -> tuple[float, float]:
    """Return the ends of an interval of times in seconds. Raises ScenarioError unless 0 < LOW."""
    low, high = interval_of(option, text, DURATION.parse, "'100 ms:2 s'")
    if not 0 < low < high:
        raise ScenarioError(f"{option} must be LOW:HIGH with 0 < LOW < HIGH, got {brief(text)}")
    return low, high
