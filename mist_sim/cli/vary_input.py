"""Variations on a command line: `--vary KEY=a,b,c` and `--case NAME:KEY=VALUE,...`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

import typer

from mist_sim.errors import ScenarioError, brief

Vary = Annotated[
    list[str],
    typer.Option(
        "--vary",
        metavar="KEY=A,B,...",
        help="Try each of these values, such as clients.0.count=1,2,4; repeatable: all "
        "combinations.",
        show_default=False,
    ),
]

_OPENING, _CLOSING, _QUOTES = "[{(", "]})", "'\""


def vary_of(
    options: list[str], settings: Collection[str] = (), named: str = "--vary "
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


def axes_of(options: list[str], settings: Collection[str] = ()) -> dict[str, list[Any]]:
    """Return the values of each key, given as KEY=A,B,... or as a range, KEY=FIRST:LAST:STEP.

    settings: keys that are set besides.
    Raises ScenarioError as `vary_of` does, and for ranges that have no end.
    """
    from mist_sim.search.spaces.space import spread

    found: dict[str, list[Any]] = {}
    for option in options:
        key, _, text = option.partition("=")
        is_range = ":" in text and not any(sign in text for sign in (",", *_OPENING, *_QUOTES))
        if not is_range or not key.strip():
            found |= _apart(vary_of([option], settings, named=""), found)
            continue
        if key.strip() in settings:
            raise ScenarioError(
                f"--set {key} has no effect, since the sweep sets it; leave one out"
            )
        found |= _apart({key.strip(): spread(key.strip(), text)}, found)
    return found


def _apart(new: dict[str, list[Any]], known: Collection[str]) -> dict[str, list[Any]]:
    """Return new keys. Raises ScenarioError for a duplicate."""
    for key in new:
        if key in known:
            raise ScenarioError(f"{key}: must be given once, with all values")
    return new


def cases_of(options: list[str]) -> dict[str, dict[str, Any]]:
    """Return the settings of each case by its name.

    Raises ScenarioError for text that is not NAME:KEY=VALUE,..., and for equal names.
    """
    from mist_sim.cli.settings import overrides_of

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
