"""Texts of the command line as values: settings, lists, intervals, quantities, variations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mist_sim.bounds import COPIES
from mist_sim.cli.options import option_of
from mist_sim.errors import ScenarioError, brief, cut
from mist_sim.units import DURATION, Kind

if TYPE_CHECKING:
    from mist_sim.metrics.keeping import LimitOnShare

_OPENING, _CLOSING, _QUOTES = "[{(", "]})", "'\""


def given(**options: Any) -> dict[str, Any]:
    """Return the options that are set."""
    return {name: value for name, value in options.items() if value is not None}


def require(other: str, is_given: bool, **options: object) -> None:
    """Raise ScenarioError where options are set that have no effect without another."""
    for name, value in options.items():
        if not (is_given or value is None or value is False):
            raise ScenarioError(f"{option_of(name)} has no effect without {other}; give that too")


@dataclass(frozen=True, kw_only=True)
class Judging:
    """How rates are judged, as the command line has it; None: it does not say."""

    each_tolerance: float | None = None
    most_requests: int | None = None
    as_is: bool = False

    @property
    def said(self) -> dict[str, Any]:
        """What is given, by its name in `GoodputOptions` and `SearchOptions`."""
        found = given(tolerance=self.each_tolerance, most_requests=self.most_requests)
        return found | ({"as_is": True} if self.as_is else {})


def overrides_of(settings: Iterable[str], option: str = "--set") -> dict[str, Any]:
    """Return values by path; a value is read as YAML, as it would be in the file.

    option: option named in messages.
    Raises ScenarioError for text that is not KEY=VALUE, and for values that are not YAML.
    """
    from mist_sim.scenario.format import yaml_text

    overrides = {}
    for setting in settings:
        path, equals, value = setting.partition("=")
        if not equals:
            raise ScenarioError(
                f"{option} {cut(setting)}: must be KEY=VALUE, such as clients.0.count=8"
            )
        overrides[path.strip()] = yaml_text.parse(value, f"{option} {cut(path)}")
    return overrides


# ------------------------------------------------------------------ lists and numbers


def words(text: str | None, option: str) -> tuple[str, ...] | None:
    """Return the words of a list, None for None. Raises ScenarioError for an empty one."""
    if text is None:
        return None
    found = tuple(word.strip() for word in text.split(","))
    if not all(found):
        raise ScenarioError(f"{option} must be words with commas between them, got {brief(text)}")
    return found


def whole_numbers(
    text: str | None, option: str, least: int = 1, most: int = COPIES
) -> tuple[int, ...]:
    """Return the whole numbers of a list, none for None. Raises ScenarioError for other words."""
    found = []
    for word in text.split(",") if text is not None else ():
        if not (word.strip().isdecimal() and least <= int(word) <= most):
            raise ScenarioError(
                f"{option} must be whole numbers from {least} to {most}, separated by commas, "
                f"got {brief(word)}"
            )
        found.append(int(word))
    return tuple(found)


def quantity(text: str, kind: Kind, option: str) -> float:
    """Return a number with a unit in base units. Raises ScenarioError that names the option."""
    try:
        return kind.parse(text)
    except ScenarioError as error:
        raise ScenarioError(f"{option}: {error}") from None


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


def rates_of(text: str | None) -> tuple[float, float] | None:
    """Return the ends of `--rates`, per second; None for None."""
    return None if text is None else interval_of("--rates", text)


def times_of(option: str, text: str) -> tuple[float, float]:
    """Return the ends of an interval of times in seconds. Raises ScenarioError unless 0 < LOW."""
    low, high = interval_of(option, text, DURATION.parse, "'100 ms:2 s'")
    if not 0 < low < high:
        raise ScenarioError(f"{option} must be LOW:HIGH with 0 < LOW < HIGH, got {brief(text)}")
    return low, high


def percentiles_in(texts: Sequence[str]) -> tuple[LimitOnShare, ...]:
    """Return the percentiles of NAME=TIME. Raises ScenarioError for other texts."""
    from mist_sim.studies.verdicts.request_times import percentiles_of

    pairs = [text.partition("=") for text in texts]
    if not all(middle for _, middle, _ in pairs):
        raise ScenarioError(
            f"--percentile must be NAME=TIME, such as p50_ttft='2 s', got {brief(list(texts))}"
        )
    return percentiles_of({name: time for name, _, time in pairs}) if pairs else ()


# ------------------------------------------------------------------ variations


def vary_of(
    options: Iterable[str], settings: Collection[str] = (), named: str = "--vary "
) -> dict[str, list[Any]]:
    """Return the values of each key; each is read as YAML, as it would be in the file.

    settings: keys set by other options. named: the option's name, for messages.
    Raises ScenarioError for text that is not KEY=A,B,..., for a key that is repeated or set, and
    for values that are not YAML.
    """
    from mist_sim.scenario.format import yaml_text

    found: dict[str, list[Any]] = {}
    for option in options:
        key, equals, text = option.partition("=")
        key = key.strip()
        if not (equals and key and text.strip()):
            raise ScenarioError(f"{named}{option}: must be KEY=A,B,..., such as router=random,load")
        if key in found:
            raise ScenarioError(f"{named}{key}: must be given once, with all values")
        if key in settings:
            who = named or "the sweep "
            raise ScenarioError(f"--set {key} has no effect, since {who}sets it; leave one out")
        pieces = pieces_of(text, f"{named}{key}")
        values = [yaml_text.parse(piece, f"{named}{key}") for piece in pieces]
        if len(values) == 1 and isinstance(values[0], list):
            values = values[0]
        found[key] = values
    return found


def axes_of(options: Iterable[str], settings: Collection[str] = ()) -> dict[str, list[Any]]:
    """Return the values of each key, given as KEY=A,B,... or as a range, KEY=FIRST:LAST:STEP.

    settings: keys that are set besides.
    Raises ScenarioError as `vary_of` does, and for ranges that have no end.
    """
    from mist_sim.search.spaces.space import spread

    found: dict[str, list[Any]] = {}
    for option in options:
        key, _, text = option.partition("=")
        key = key.strip()
        is_range = ":" in text and not any(sign in text for sign in (",", *_OPENING, *_QUOTES))
        if is_range and key in settings:
            raise ScenarioError(
                f"--set {key} has no effect, since the sweep sets it; leave one out"
            )
        if is_range and key:
            new = {key: spread(key, text)}
        else:
            new = vary_of([option], settings, named="")
        for twice in new.keys() & found.keys():
            raise ScenarioError(f"{twice}: must be given once, with all values")
        found |= new
    return found


def cases_of(options: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the settings of each case by its name.

    Raises ScenarioError for text that is not NAME:KEY=VALUE,..., and for equal names.
    """
    found: dict[str, dict[str, Any]] = {}
    for option in options:
        name, colon, text = option.partition(":")
        name = name.strip()
        if not colon or not name or "=" in name:
            raise ScenarioError(
                f"--case {option}: must be NAME:KEY=VALUE,..., such as small:clients.0.count=2"
            )
        if name in found:
            raise ScenarioError(f"--case {name}: must be given once; each case needs its own name")
        pieces = pieces_of(text, f"--case {name}") if text.strip() else []
        found[name] = overrides_of(pieces, f"--case {name}")
    return found


def pieces_of(text: str, what: str) -> list[str]:
    """Return the parts of a text between commas, ignoring commas in quotes and brackets.

    what: for messages.
    Raises ScenarioError for an empty part, and for an open quote or bracket.
    """
    pieces, begin, depth, quote, before = [], 0, 0, "", ","
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in _QUOTES and before in ",=:[{(":  # it begins a value
            quote = letter
        elif letter in _OPENING:
            depth += 1
        elif letter in _CLOSING:
            depth -= 1
        elif letter == "," and depth == 0:
            pieces.append(text[begin:place].strip())
            begin = place + 1
        before = before if letter == " " else letter
    pieces.append(text[begin:].strip())
    if quote or depth:
        raise ScenarioError(f"{what}: a quote or bracket is not closed in {brief(text)}")
    if "" in pieces:
        raise ScenarioError(f"{what}: must have a value between commas, got {brief(text)}")
    return pieces
