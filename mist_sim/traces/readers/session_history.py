"""Logs that say which requests are of one conversation, and not what their prompts share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Literal

from mist_sim.errors import ScenarioError
from mist_sim.traces.base import TraceRow
from mist_sim.traces.readers.opening import FileReader
from mist_sim.traces.workload import conversation_content


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionReader(FileReader):
    """A reader of one file, whose rows may have conversations without the content of prompts.

    session_history: what prompts of a conversation share. unknown: nothing is known, so that no
        prefix cache finds any of them. repeats: it is assumed that each begins with the prompt and
        the answer before it, if it is at least as long as these; a shorter one begins anew. Rows
        with content of their own keep that.
    """

    session_history: Literal["unknown", "repeats"] = "unknown"

    def rows(self) -> Iterator[TraceRow]:
        """Yield the rows, as `FileReader.rows`.

        Raises ScenarioError at the end if a history is asked for, and no row has a conversation.
        """
        rows = FileReader.rows(self)
        return rows if self.session_history == "unknown" else _repeating(rows, self.path)


def _repeating(rows: Iterable[TraceRow], path: str) -> Iterator[TraceRow]:
    """Yield rows whose prompts repeat the history of their conversation; as `SessionReader`."""
    numbers = count()
    histories: dict[int, tuple[int, int]] = {}  # number and tokens, by conversation
    is_met = False
    for row in rows:
        session = row.session_id
        if session is None:
            yield row
            continue
        is_met = True
        number, num_tokens = histories.get(session) or (next(numbers), 0)
        if row.num_prompt_tokens < num_tokens:
            number = next(numbers)
        num_tokens = row.num_prompt_tokens + row.num_output_tokens
        histories[session] = number, num_tokens
        content = row.content or conversation_content(number, num_tokens)
        yield row._replace(content=content)
    if not is_met:
        raise ScenarioError(
            f"trace {path}: session_history must be left out, since no row has a conversation"
        )
