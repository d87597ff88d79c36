"""The exceptions that mist-sim raises on purpose.

MistError
├── ScenarioError          bad input: a scenario file, an override, a spec, an output folder
│   ├── TraceError         a bad row in a workload trace (carries file and line)
│   └── UnknownPluginError a name that no plugin answers to
└── InvariantError         a bug: the simulation broke one of its own laws

The command line prints a `ScenarioError` as one message and exits with code 2. An
`InvariantError` is never the user's fault and always carries the simulated time.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_LONGEST_VALUE = 60  # characters


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


class InvariantError(MistError, AssertionError):
    """A law of the simulation was broken (conservation, causality, block counts)."""


def brief(value: object) -> str:
    """Return a value as Python writes it, cut to what a message can show."""
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the closest known name, or a full stop."""
    matches = get_close_matches(name, list(dict.fromkeys(known)), n=1, cutoff=0.6)
    return f"; did you mean {matches[0]!r}?" if matches else "."
