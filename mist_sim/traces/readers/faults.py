"""Rows of a trace that cannot be read: left out and counted by kind, or all told in one refusal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from mist_sim.errors import TraceError, cut, in_words

Skip = Literal["none", "cancelled", "bad"]

R = TypeVar("R")
V = TypeVar("V")

_MOST_KINDS = 8  # with a line each
_LONGEST_RULE = 120  # characters
_VALUES = re.compile(r"'[^']*'|\"[^\"]*\"|\d[\d.e+-]*")  # in which rows of one fault differ
_NO_ANSWER = "without an answer"


class UnansweredError(TraceError):
    """A row of a request that got no answer: cancelled by its user, failed or refused."""


@dataclass(slots=True)
class _Kind:
    first: TraceError
    number: int = 0

    @property
    def rule(self) -> str:
        if isinstance(self.first, UnansweredError):
            return _NO_ANSWER
        return cut(self.first.problem.partition(", got ")[0], _LONGEST_RULE)

    @property
    def told(self) -> str:
        also = "" if self.number == 1 else f" ({self.number:,} rows, this is the first)"
        return f"{self.first.problem}{also}"


class Faults:
    """What one reading of a file met beside the rows that it kept.

    skip: which rows are left out: `none`; `cancelled`, those without an answer; `bad`, all that
    cannot be read. num_kept: rows read so far.
    """

    def __init__(self, skip: Skip = "none") -> None:
        self._skip = skip
        self._kinds: dict[str, _Kind] = {}
        self.num_kept = 0

    def take(self, error: TraceError, rows: int = 1) -> None:
        """Count rows that cannot be read, or raise their error if such rows are not left out."""
        if not _leaves_out(self._skip, error):
            raise error
        self.note(error, rows)

    def note(self, error: TraceError, rows: int = 1) -> None:
        """Count rows that are left out whatever the options say."""
        rule = _VALUES.sub("#", error.problem.partition(", got ")[0])
        self._kinds.setdefault(f"{type(error).__name__} {rule}", _Kind(error)).number += rows

    def parsed(self, records: Iterable[tuple[int, R]], parse: Callable[[R, int], V]) -> Iterator[V]:
        """Yield `parse(record, line)` of each record, but of those that it raises TraceError of."""
        for line, record in records:
            try:
                found = parse(record, line)
            except TraceError as error:
                self.take(error)
            else:
                yield found

    @property
    def num_left_out(self) -> int:
        """Rows that were left out."""
        return sum(kind.number for kind in self._kinds.values())

    @property
    def data(self) -> list[dict[str, Any]]:
        """The kinds as plain data: why, rows, and the first of them."""
        return [
            {"why": kind.rule, "rows": kind.number, "first_line": kind.first.line}
            for kind in self._kinds.values()
        ]

    def sentence(self, path: str) -> str:
        """Return in one line what was left out of a file; empty if nothing was."""
        if not self._kinds:
            return ""
        rows = in_words(self.num_kept + self.num_left_out, "row")
        kinds = "; ".join(
            f"{each['rows']:,} {'' if each['why'] == _NO_ANSWER else 'since '}{each['why']} (first "
            f"in line {each['first_line']})"
            for each in self.data
        )
        return f"Left out of {path}: {self.num_left_out:,} of {rows}: {kinds}."

    def refusal(self, skip: Skip, end: TraceError | None) -> TraceError | None:
        """Return the error of a file: a line for each kind of fault, and what to do.

        These are the faults of a reading that left out all of them. skip: what the reader is told
        to leave out. end: what ended the reading before the end of the file. Returns None where
        neither names a row.
        """
        found = [each for each in self._kinds.values() if not _leaves_out(skip, each.first)]
        if not self.num_kept:
            found = list(self._kinds.values())
        if not found:
            return end
        first, others = found[0].first, found[1:_MOST_KINDS]
        lines = [
            found[0].told,
            *(f"{each.first.path}:{each.first.line}: {each.told}" for each in others),
        ]
        if more := len(found) - len(lines):
            lines.append(f"and {in_words(more, 'kind')} of fault more")
        remedy = str(end) if end else self._remedy(found)
        text = "\n".join([*lines, remedy]) if len(lines) > 1 or end else f"{lines[0]}; {remedy}"
        return TraceError(first.path, first.line, text)

    def _remedy(self, found: Iterable[_Kind]) -> str:
        """Return which rows `skip` would leave out of a file with these faults."""
        number = self.num_left_out
        if not self.num_kept:
            return "no row of the file can be read: has it another form?"
        rows = f"{number:,} of {in_words(self.num_kept + number, 'row')}"
        unanswered = [e for e in self._kinds.values() if isinstance(e.first, UnansweredError)]
        without = sum(each.number for each in unanswered)
        if without == number:
            return f"skip: cancelled leaves out {rows}, which have no answer"
        if not without:
            return f"skip: bad leaves out {rows}"
        if any(each in found for each in unanswered):
            return f"skip: bad leaves out {rows}; skip: cancelled the {without:,} without an answer"
        return f"skip: bad leaves out {rows}, the {without:,} without an answer among them"


def _leaves_out(skip: Skip, error: TraceError) -> bool:
    return skip == "bad" or (skip == "cancelled" and isinstance(error, UnansweredError))
