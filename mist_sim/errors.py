"""The exceptions that mist-sim raises on purpose.

MistError
├── ScenarioError          bad input: a scenario file, an override, a spec, an output folder
│   ├── TraceError         a bad row in a workload trace (carries file and line)
│   ├── UnknownPluginError a name that no plugin answers to
│   └── UnloadableError    a plugin of an installed package that cannot be imported
└── InvariantError         a bug: the simulation broke one of its own laws

The command line prints a `ScenarioError` as one message and exits with code 2. An
`InvariantError` is never the user's fault and always carries the simulated time.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from datetime import date
from difflib import get_close_matches
from itertools import islice

_LONGEST_VALUE = 60  # characters
_MOST_LISTED = 12
_LONGEST_NAME = 200  # characters of a name that may be a misspelt one
_MOST_NAMES = 2_000  # that it is compared with: a folder may hold a million files
_LONGEST_NUMBER = 10_000  # bits; Python refuses to write more digits than those of 14,000


_CLIENT = re.compile(r"^(override )?(clients\.\d+[.:] ?|(instance|prefill|decode): )")


class MistError(Exception):
    """Base of everything that mist-sim raises on purpose."""


class ScenarioError(MistError, ValueError):
    """The input cannot be simulated; the message names the field, the rule and the value."""


class TraceError(ScenarioError):
    """A row of a trace cannot be read; the message starts with `path:line:`."""

    def __init__(self, path: object, line: int, problem: str) -> None:
        super().__init__(path, line, problem)  # SimPy and pickle rebuild an error from its args
        self.path = str(path)
        self.line = line
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.problem}"


class UnknownPluginError(ScenarioError, KeyError):
    """No plugin of a family has the requested name."""

    __str__ = Exception.__str__  # a KeyError would put the message in quotes


class UnloadableError(ScenarioError):
    """A plugin that an installed package offers cannot be imported."""


class InvariantError(MistError, AssertionError):
    """A law of the simulation was broken (conservation, causality, block counts)."""


def brief(value: object, longest: int = _LONGEST_VALUE) -> str:
    """Return a value's `repr`, cut to the length of a message.

    longest: characters of it. No more than that is written of a large value either: a file of a
    few lines can hold more than memory does.
    """
    text = ""
    for piece in _pieces(value, longest):
        text += piece
        if len(text) > longest:
            return f"{text[:longest]}..."
    return text


def _pieces(value: object, longest: int) -> Iterator[str]:
    """Yield the parts of a value's text, one after another."""
    if isinstance(value, dict):
        yield "{"
        for position, (key, item) in enumerate(value.items()):
            yield ", " if position else ""
            yield from _pieces(key, longest)
            yield ": "
            yield from _pieces(item, longest)
        yield "}"
    elif isinstance(value, list | tuple):
        yield "[" if isinstance(value, list) else "("
        for position, item in enumerate(value):
            yield ", " if position else ""
            yield from _pieces(item, longest)
        yield "]" if isinstance(value, list) else ",)" if len(value) == 1 else ")"
    elif isinstance(value, str | bytes):
        yield repr(value[: longest + 1])
    elif isinstance(value, int) and value.bit_length() > _LONGEST_NUMBER:
        yield f"a number of {value.bit_length()} bits"
    else:
        yield str(value) if isinstance(value, date) else repr(value)


def listed(names: Iterable[object], between: str = ", ") -> str:
    """Return names as one text: the first of them where a file gives any number."""
    shown = [str(name) for name in islice(names, _MOST_LISTED + 1)]
    more = ["..."] if len(shown) > _MOST_LISTED else []
    return between.join([*map(cut, shown[:_MOST_LISTED]), *more])


def cut(text: str, longest: int = _LONGEST_VALUE) -> str:
    """Return a text without quotes, as far as a message can show it; see `printable`."""
    return printable(text if len(text) <= longest else f"{text[:longest]}...")


def printable(text: str) -> str:
    r"""Return a foreign text on one line, with Python's escapes for invisible characters.

    These are the characters that `str.isprintable` refuses: ends of lines, controls of a terminal
    and of the direction of writing, tags and other marks without a width, blanks but the plain one,
    and bytes of a file's name that are no UTF-8.
    """
    if text.isprintable():
        return text
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return "".join(escaped)


def in_words(number: int, thing: str) -> str:
    """Return "1 column", "3 columns"."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def first_problem(error: ScenarioError) -> str:
    """Return the first of an error's problems, without the client of the file that has it.

    For scenarios that a search makes of one client: all their clients are alike.
    """
    return _CLIENT.sub("", str(error).splitlines()[0])


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the closest known name, or a full stop."""
    if len(name) > _LONGEST_NAME:
        return "."
    matches = get_close_matches(name, list(dict.fromkeys(islice(known, _MOST_NAMES))), n=1)
    return f"; did you mean {brief(matches[0])}?" if matches else "."


def require_known(name: str, known: Collection[str], what: str, more: str | None = None) -> None:
    """Raise ScenarioError for a name that is none of those known.

    what: stands before it in the message, such as "there is no picture". more: stands behind the
        known name that is closest; None: all known names do.
    """
    if name not in known:
        told = f"Known: {', '.join(known)}" if more is None else more
        hint = did_you_mean(str(name), known)
        raise ScenarioError(f"{what} {brief(name)}{hint} {told}".rstrip())


def nearest(name: str, known: Iterable[str], number: int = 5) -> str:
    """Return "; did you mean 'x'? Near it: 'y', 'z'." for the closest known names, or a full stop.

    For lists too long for a message. number: most names that are shown.
    """
    if len(name) > _LONGEST_NAME:
        return "."
    names = list(dict.fromkeys(islice(known, _MOST_NAMES)))
    first, *others = [*get_close_matches(name, names, n=number), ""]
    near = f" Near it: {', '.join(others[:-1])}." if others[:-1] else ""
    return f"; did you mean {brief(first)}?{near}" if first else "."
