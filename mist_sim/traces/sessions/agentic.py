"""Reader of sessions of coding agents, with tool times and shared blocks."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

from mist_sim.bounds import TRACE_TIME
from mist_sim.core.content_ids import OF_PATH, content_id
from mist_sim.core.request import Content
from mist_sim.errors import TraceError, brief
from mist_sim.traces.base import TRACE_READERS, TraceRow
from mist_sim.traces.readers.faults import Faults
from mist_sim.traces.readers.json_stream import objects_in_turn
from mist_sim.traces.readers.opening import (
    FileReader,
    bad_tokens,
    integers,
    open_trace,
    tokens_from_json,
)
from mist_sim.units import Seconds

_MOST_BLOCKS = 2**32  # of a session
_NEEDED = ("t", "in", "out")
_IDS = {"hash_runs", "hash_ids"}
_LONGEST = 2**24  # characters of a session: with a list of ids for each of a thousand requests


@TRACE_READERS.register("agentic")
@dataclass(frozen=True, slots=True, kw_only=True)
class AgenticReader(FileReader):
    """Sessions of coding agents: one JSON object a line, with the requests of a session.

    Each has `block_size` and `requests`; each request `t` (seconds from the session's start), `in`
    and `out` (tokens), the ids of its prompt's blocks, which name paths as chain hashes do, and
    perhaps `think_time` (seconds that a tool or a person took before) and `api_time`. Ids are
    `hash_ids` (a list, as in Weka's files) or `hash_runs` (runs [first, number]). A file may also
    hold one session over many lines, as Weka's do. A request with `requests` is a sub-agent.
    The main agent and each sub-agent are a session of the rows; they share the ids of blocks. An
    answer without tokens counts as one token.

    start_every: sessions begin one after another, so long apart, and rows are in order of time;
        None: rows have no times, and come session by session, for users who go through them
        (`closed_loop` with `sessions`).
    absolute_times: whether `t` of a sub-agent's requests counts from the session's start, as in the
        files that SemiAnalysis publishes, and not from that of the sub-agent.
    Source: kv-cache-tester traces (Apache-2.0), with the ids of blocks as runs.
    """

    start_every: Seconds | None = None
    absolute_times: bool = False

    def __post_init__(self) -> None:
        FileReader.__post_init__(self)
        every = self.start_every
        if every is not None and not 0 <= every <= TRACE_TIME:
            raise ValueError(f"start_every must be from 0 s to {TRACE_TIME:g} s, got {every}")

    def _read(self, faults: Faults) -> Iterator[TraceRow]:
        if self.start_every is None:
            return self._by_session(faults)
        return self._by_time(self.start_every, faults)

    def _by_session(self, faults: Faults) -> Iterator[TraceRow]:
        number = count()
        for _, agents in self._sessions(faults):
            for agent in agents:
                session_id = next(number)
                for turn in agent:
                    yield turn.row(None, session_id)

    def _by_time(self, every: float, faults: Faults) -> Iterator[TraceRow]:
        """Merge sessions; at most those that have begun and not ended are in memory."""
        number, ties = count(), count()
        open_turns: list[tuple[float, int, _Turn, int]] = []
        for session, agents in self._sessions(faults):
            start = session * every
            while open_turns and open_turns[0][0] < start:
                time, _, turn, session_id = heapq.heappop(open_turns)
                yield turn.row(time, session_id)
            for agent in agents:
                session_id = next(number)
                for turn in agent:
                    heapq.heappush(open_turns, (start + turn.time, next(ties), turn, session_id))
        while open_turns:
            time, _, turn, session_id = heapq.heappop(open_turns)
            yield turn.row(time, session_id)

    def _sessions(self, faults: Faults) -> Iterator[tuple[int, list[list[_Turn]]]]:
        """Yield (number, agents) of each session, the main one first; an agent is its turns."""
        number = count()

        def read(session: dict[str, Any], line: int) -> _Session:
            return _Session(session, self.path, line, next(number), self.absolute_times)

        with open_trace(self.path) as file:
            sessions = objects_in_turn(file, self.path, _LONGEST)
            for position, found in enumerate(faults.parsed(sessions, read)):
                yield position, found.agents


class _Turn(NamedTuple):
    """A request of a session: its time, the wait before it, and its content."""

    time: float
    think_time: float
    num_prompt_tokens: int
    num_output_tokens: int
    content: Content

    def row(self, time: float | None, session_id: int) -> TraceRow:
        """Return the turn as a row of a trace."""
        prompt, output = self.num_prompt_tokens, self.num_output_tokens
        return TraceRow(prompt, output, time, session_id, self.content, None, self.think_time)


class _Session:
    """The session of a line. agents: the turns of the main agent, and of each sub-agent."""

    def __init__(
        self, session: dict[str, Any], path: str, line: int, number: int, absolute_times: bool
    ) -> None:
        self._path, self._line, self._number = path, line, number
        self._absolute_times = absolute_times
        self._before: dict[int, int] = {}  # the block before each one that begins a run
        self._lengths: dict[int, int] = {}  # the longest run from it
        self._starts: list[int] = []
        if type(session.get("requests")) is not list:
            raise self._error("a session must be a JSON object with a list of requests")
        self._block_size = tokens_from_json(session.get("block_size"), path, line, "block_size")
        self.agents: list[list[_Turn]] = []
        self._read(session["requests"], 0.0, is_main=True)

    def _error(self, problem: str) -> TraceError:
        return TraceError(self._path, self._line, problem)

    def _read(self, requests: list[Any], start: float, *, is_main: bool) -> None:
        """Add an agent, and behind it its sub-agents."""
        turns: list[_Turn] = []
        self.agents.append(turns)
        last, free_at = start, start
        for request in requests:
            if type(request) is not dict:
                raise self._error(f"a request must be a JSON object, got {brief(request)}")
            time = start + self._seconds(request, "t")
            if type(request.get("requests")) is list:
                if not is_main:
                    raise self._error("a sub-agent must not have sub-agents")
                start_of_agent = start if self._absolute_times else time
                self._read(request["requests"], start_of_agent, is_main=False)
                continue
            missing = [key for key in _NEEDED if key not in request]
            if not missing and not _IDS & request.keys():
                missing = ["hash_runs (or hash_ids; [] where they are not known)"]
            if missing:
                raise self._error(
                    f"a request needs {', '.join(_NEEDED)}, hash_runs; missing: {missing[0]}"
                )
            if time < last:
                raise self._error(f"t must not go backwards, got {time} s after {last} s")
            think = max(0.0, time - free_at)
            if request.get("think_time") is not None:
                think = self._seconds(request, "think_time")
            turns.append(self._turn(request, time, think if turns else 0.0))
            last = time
            api_time = request.get("api_time")
            free_at = time + (self._seconds(request, "api_time") if api_time is not None else 0.0)

    def _seconds(self, request: dict[str, Any], key: str) -> float:
        value = request.get(key)
        if type(value) not in (int, float) or not 0 <= value <= TRACE_TIME:  # type: ignore[operator]
            raise self._error(
                f"{key} must be seconds from 0 to {TRACE_TIME:g}, got {brief(value)}; correct it"
            )
        return float(value)  # type: ignore[arg-type]

    def _turn(self, request: dict[str, Any], time: float, think_time: float) -> _Turn:
        prompt = tokens_from_json(request["in"], self._path, self._line, "in")
        output = request["out"]
        if type(output) is not int or output < 0:
            raise bad_tokens(output, self._path, self._line, "out")
        return _Turn(time, think_time, prompt, max(1, output), self._content(request, prompt))

    def _content(self, request: dict[str, Any], num_tokens: int) -> Content:
        """Return a span for each run: its blocks are a path, which its first block names."""
        spans, num_blocks, before = [], 0, -1
        for run in self._runs(request):
            if type(run) is not list or len(run) != 2 or set(map(type, run)) != {int}:
                raise self._error(f"hash_runs must be pairs [first, number], got {brief(run)}")
            first, number = run
            if not (0 <= first < _MOST_BLOCKS and 1 <= number <= _MOST_BLOCKS):
                raise self._error(f"a run must have ids from 0 and a number >= 1, got {brief(run)}")
            self._check_path(first, number, before)
            before, num_blocks = first + number - 1, num_blocks + number
            span = content_id(OF_PATH, self._number * _MOST_BLOCKS + first)
            spans.append((span, number * self._block_size))
        full, rest = divmod(num_tokens, self._block_size)
        if num_blocks == full + 1 and rest:
            spans[-1] = (spans[-1][0], spans[-1][1] - self._block_size + rest)
        elif spans and num_blocks != full:
            raise self._error(
                f"hash_runs must have {full} blocks of {self._block_size} for {num_tokens} tokens, "
                f"got {num_blocks}"
            )
        return tuple(spans)

    def _runs(self, request: dict[str, Any]) -> list[Any]:
        """Return the runs of ids of a prompt's blocks; those of a list are found."""
        runs = request.get("hash_runs")
        if "hash_runs" in request:
            return runs if type(runs) is list else [runs]
        found: list[list[int]] = []
        for number in integers(request, "hash_ids", self._path, self._line):
            if found and number == sum(found[-1]):
                found[-1][1] += 1
            else:
                found.append([number, 1])
        return found

    def _check_path(self, first: int, number: int, before: int) -> None:
        """Raise TraceError if a block follows other blocks than it did elsewhere."""
        starts, lengths = self._starts, self._lengths
        place = bisect_left(starts, first)
        is_known = first in lengths
        is_inside = place > 0 and starts[place - 1] + lengths[starts[place - 1]] > first
        above = starts[place + is_known : place + is_known + 1]
        has_others = bool(above) and above[0] < first + number
        if self._before.setdefault(first, before) != before or is_inside or has_others:
            raise self._error(
                f"blocks from {first} on must always follow the same ones, as ids of paths do; "
                f"here they follow {before}"
            )
        if not is_known:
            starts.insert(place, first)
        lengths[first] = max(number, lengths.get(first, 0))
