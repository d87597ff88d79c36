"""Words of other tools, as `other_words.toml` has them, and the matching ones of a scenario."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path


@cache
def keys() -> Mapping[str, str]:
    """Return the path that keys have here, by the keys of others or of other places."""
    own = {key: f"{path}.{key}" for key, path in _words("misplaced").items()}
    return own | _words("keys")


def _words(table: str) -> dict[str, str]:
    """Return what is written in place of each word."""
    data = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    return {word: ours for ours, words in data[table].items() for word in words.split()}


def where(key: str) -> str:
    """Return a sentence with the key here for another tool's key; empty if there is none."""
    place = keys().get(_plain(key))
    return f"; here it is {place}." if place else ""


def instead(value: str, known: Iterable[str]) -> str:
    """Return a sentence with the value to write in place of another tool's; empty if unknown.

    known: what may be written there.
    """
    values = _words("values")
    text = values.get(_plain(value)) or values.get(value.lower(), "")
    return f"; here write {text}." if any(name in text for name in known) else ""


def _plain(word: str) -> str:
    return word.lower().lstrip("-").replace("-", "_")
