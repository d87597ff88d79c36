"""Readers of Parquet files: chats of WildChat and LMSYS, and the requests of a run of ours."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mist_sim.bounds import COUNT, TRACE_TIME
from mist_sim.durations import require_positive
from mist_sim.errors import ScenarioError, TraceError, brief, did_you_mean
from mist_sim.inputs.files import check_ordinary
from mist_sim.traces.base import TRACE_READERS, TraceRow
from mist_sim.traces.content import conversation_content
from mist_sim.traces.files import backwards, first_rows, require_num_requests

_BATCH = 1024  # rows in memory at a time


@TRACE_READERS.register("chat_parquet")
@dataclass(frozen=True, slots=True, kw_only=True)
class ChatParquetReader:
    """WildChat and LMSYS-Chat: Parquet with `conversation`, a list of {role, content}.

    Every answer of the assistant is one request, whose prompt is the whole conversation before it;
    `session_id` is the conversation's position in the file. Rows have no times: those of WildChat
    are of conversations, and in no order.

    path: the file. num_requests: read the first so many requests; None reads all.
    chars_per_token: as of `sharegpt`. skip_empty: leave out pairs whose prompt or answer is empty
        instead of refusing the file.
    Source: WildChat (Zhao et al., ICLR 2024) and LMSYS-Chat-1M (Zheng et al., ICLR 2024).
    """

    path: str
    num_requests: int | None = None
    chars_per_token: float = 3.94
    skip_empty: bool = False

    def __post_init__(self) -> None:
        require_num_requests(self.num_requests)
        require_positive("chars_per_token", self.chars_per_token)

    def rows(self) -> Iterator[TraceRow]:
        """Yield a row an answer, in file order; raises as `TraceReader.rows` says."""
        return first_rows(self._read(), self.num_requests, self.path)

    def _read(self) -> Iterator[TraceRow]:
        for number, (conversation,) in _records(self.path, ["conversation"]):
            for asked, answered in self._pairs(conversation, number):
                prompt, answer = (math.ceil(n / self.chars_per_token) for n in (asked, answered))
                content = conversation_content(number, prompt + answer)
                yield TraceRow(prompt, answer, None, number, content)

    def _pairs(self, conversation: Any, number: int) -> Iterator[tuple[int, int]]:
        """Yield (characters so far, characters of the answer) for every answer to a user."""
        so_far, asked = 0, False
        for role, length in self._messages(conversation, number):
            if role == "assistant":
                if asked and so_far and length:
                    yield so_far, length
                elif asked and not self.skip_empty:
                    raise self._error(number, "a question or an answer is empty; set skip_empty")
                asked = False
            elif role == "user":
                asked = True
            so_far += length

    def _messages(self, conversation: Any, number: int) -> Iterator[tuple[str, int]]:
        if not isinstance(conversation, Sequence) or isinstance(conversation, str):
            raise self._error(number, f"conversation must be a list, got {brief(conversation)}")
        for message in conversation:
            role = message.get("role") if isinstance(message, Mapping) else None
            text = message.get("content") if isinstance(message, Mapping) else None
            if not isinstance(role, str) or not isinstance(text, str | None):
                raise self._error(
                    number, f"a message needs role and content as text, got {brief(message)}"
                )
            yield role, len(text or "")

    def _error(self, number: int, problem: str) -> TraceError:
        return TraceError(self.path, number + 1, problem)


@TRACE_READERS.register("mist")
@dataclass(frozen=True, slots=True, kw_only=True)
class MistReader:
    """The requests of a run of ours: `requests.parquet`, as `mist run --out` writes it.

    Times, lengths, conversations and models are those of the run, so that a replay of a workload
    without prefixes in common gives the same records. The tables do not hold what prompts begin
    with. Requests that other requests sent (`parent_id`) are left out.

    path: the file. num_requests: read the first so many requests; None reads all.
    """

    path: str
    num_requests: int | None = None

    def __post_init__(self) -> None:
        require_num_requests(self.num_requests)

    @property
    def names_models(self) -> bool:
        """Whether rows name a model."""
        return any(row.model is not None for row in self._read())

    def models(self) -> Iterator[tuple[int, str]]:
        """Yield (row, model) where a model is named for the first time."""
        seen: set[str] = set()
        for line, row in enumerate(self.rows(), 1):
            if row.model is not None and row.model not in seen:
                seen.add(row.model)
                yield line, row.model

    def rows(self) -> Iterator[TraceRow]:
        """Yield the rows in order of arrival; raises as `TraceReader.rows` says."""
        return first_rows(self._read(), self.num_requests, self.path)

    def _read(self) -> Iterator[TraceRow]:
        start, last = math.nan, -math.inf
        for number, values in _records(self.path, list(_OWN)):
            parent, time, prompt, output, session, model = values
            if parent is not None:
                continue
            time = self._checked(time, number)
            start = time if math.isnan(start) else start
            if time < last:
                raise backwards(self.path, number + 1, "arrival_time", last - time)
            last = time
            yield TraceRow(
                self._tokens(prompt, "num_prompt_tokens", number),
                self._tokens(output, "num_output_tokens", number),
                time - start,
                session,
                model=model or None,
            )

    def _checked(self, value: Any, number: int) -> float:
        if isinstance(value, float) and 0 <= value <= TRACE_TIME:
            return value
        raise TraceError(
            self.path,
            number + 1,
            f"arrival_time must be seconds from 0 to {TRACE_TIME:g}, got {brief(value)}",
        )

    def _tokens(self, value: Any, name: str, number: int) -> int:
        if type(value) is int and 0 < value <= COUNT:
            return value
        raise TraceError(
            self.path,
            number + 1,
            f"{name} must be a whole number of tokens from 1 to {COUNT}, got {brief(value)}; "
            "leave out requests that failed before their answer",
        )


_OWN = (
    "parent_id",
    "arrival_time",
    "num_prompt_tokens",
    "num_output_tokens",
    "session_id",
    "model",
)


def _records(path: str, columns: list[str]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yield (row from 0, values of columns), holding some thousand rows at a time.

    Raises ScenarioError for a file that is missing, no Parquet, or lacks a column.
    """
    from pyarrow import ArrowException, parquet

    with _told(path, ArrowException):
        check_ordinary(Path(path))
        file = parquet.ParquetFile(path)
    for name in columns:
        if name not in file.schema_arrow.names:
            known = file.schema_arrow.names
            raise ScenarioError(f"trace {path}: has no column {name}{did_you_mean(name, known)}")
    batches = file.iter_batches(_BATCH, columns=columns)
    number = 0
    while True:
        with _told(path, ArrowException):
            batch = next(batches, None)
            if batch is None:
                return
            rows = list(zip(*(batch.column(name).to_pylist() for name in columns), strict=True))
        for row in rows:
            yield number, row
            number += 1


@contextmanager
def _told(path: str, kind: type[Exception]) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise ScenarioError(f"trace {path}: no such file") from None
    except (OSError, UnicodeDecodeError, kind) as error:
        if isinstance(error, ScenarioError):
            raise
        problem = brief(str(error), 200)
        raise ScenarioError(f"trace {path}: cannot be read as Parquet: {problem}") from None
