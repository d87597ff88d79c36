"""Recorded calls of a service, in any order: put in order of time, or session by session."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from mist_sim.core.request import Content
from mist_sim.traces.base import TraceRow
from mist_sim.traces.readers.faults import Faults, Skip
from mist_sim.traces.readers.opening import FileReader


class Call(NamedTuple):
    """A call: its begin and end (seconds since any moment), lengths and session.

    session: its name; None if it has none.
    """

    start: float
    end: float
    num_prompt_tokens: int
    num_output_tokens: int
    session: str | None = None
    content: Content = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReader(FileReader):
    """A reader of calls that a service records as they end; they are sorted here.

    The file is read whole. Services record calls without an answer too, which are left out unless
    `skip` says otherwise. by_session: rows come session by session without times, each with the
    seconds between the end of the call before and its own start, for users who go through them
    (`closed_loop` with `sessions`); False: in order of time, with the times recorded.
    """

    skip: Skip = "cancelled"
    by_session: bool = False

    def _calls(self, faults: Faults) -> Iterator[Call]:
        """Yield the calls in the order of the file; those that cannot be read go to `faults`."""
        raise NotImplementedError

    def _read(self, faults: Faults) -> Iterator[TraceRow]:
        calls = sorted(self._calls(faults), key=lambda call: call.start)
        numbers: dict[str, int] = {}
        for call in calls:
            if call.session is not None:
                numbers.setdefault(call.session, len(numbers))
        if self.by_session:
            yield from _sessions(calls, numbers)
            return
        for call in calls:
            session = None if call.session is None else numbers[call.session]
            yield _row(call, session)._replace(arrival_time=call.start - calls[0].start)


def _sessions(calls: Iterable[Call], numbers: dict[str, int]) -> Iterator[TraceRow]:
    """Yield the calls of each session one after another; a call without one is its own session."""
    sessions: dict[int, list[Call]] = {}
    next_number = len(numbers)
    for call in calls:
        if call.session is None:
            sessions[next_number] = [call]
            next_number += 1
        else:
            sessions.setdefault(numbers[call.session], []).append(call)
    for number, turns in sessions.items():
        free_at = turns[0].start
        for call in turns:
            yield _row(call, number)._replace(think_time=max(0.0, call.start - free_at))
            free_at = max(free_at, call.end)


def _row(call: Call, session: int | None) -> TraceRow:
    return TraceRow(
        call.num_prompt_tokens,
        call.num_output_tokens,
        session_id=session,
        content=call.content,
    )
