"""Readers of Parquet files: chats of WildChat and LMSYS, and the requests of a run of ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.inputs import check_ordinary
from mist_sim.traces.base import TRACE_READERS, TraceRow
from mist_sim.traces.readers.conversations import Chat, ChatReader, Message
from mist_sim.traces.readers.opening import At, Clock, Faults, SessionReader

_BATCH = 1024  # rows in memory at a time


@TRACE_READERS.register("chat_parquet")
@dataclass(frozen=True, slots=True, kw_only=True)
class ChatParquetReader(ChatReader):
    """WildChat and LMSYS-Chat: Parquet with `conversation`, a list of {role, content}.

    Every answer of the assistant is one request, whose prompt is the whole conversation before it;
    `session_id` is the conversation's position in the file. Rows have no times: those of WildChat
    are of conversations, and in no order.

    chars_per_token: as of `sharegpt`.
    Source: WildChat (Zhao et al., ICLR 2024) and LMSYS-Chat-1M (Zheng et al., ICLR 2024).
    """

    def _chats(self) -> Iterator[tuple[At, Chat]]:
        for at, (chat,) in _records(self.path, ["conversation"]):
            yield at, (f"conversation {at.line - 1}", _messages(chat, at))


def _messages(conversation: Any, at: At) -> Iterator[Message]:
    if not isinstance(conversation, Sequence) or isinstance(conversation, str):
        problem = f"conversation must be a list, got {brief(conversation)}"
        raise at.error(f"{problem}; correct or remove the row")
    for message in conversation:
        role = message.get("role") if isinstance(message, Mapping) else None
        text = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(role, str) or not isinstance(text, str | None):
            raise at.error(
                f"a message needs role and content as text, got {brief(message)}; correct or "
                "remove the row"
            )
        yield role, len(text or "")


@TRACE_READERS.register("mist")
@dataclass(frozen=True, slots=True, kw_only=True)
class MistReader(SessionReader):
    """The requests of a run of ours: `requests.parquet`, as `mist run --out` writes it.

    Times, lengths, conversations and models are those of the run, so that a replay of a workload
    without shared prefixes gives the same records. The tables do not hold the prompts' content.
    Requests that other requests sent (`parent_id`) are left out.
    """

    @property
    def names_models(self) -> bool:
        """Whether rows name a model."""
        return any(row.model is not None for row in self._read(Faults(self.skip)))

    def models(self) -> Iterator[tuple[int, str]]:
        """Yield (row, model) where a model is named for the first time."""
        seen: set[str] = set()
        for line, row in enumerate(self.rows(), 1):
            if row.model is not None and row.model not in seen:
                seen.add(row.model)
                yield line, row.model

    def _read(self, faults: Faults) -> Iterator[TraceRow]:
        clock = Clock("arrival_time")

        def row(values: tuple[Any, ...], at: At) -> TraceRow:
            _, time, prompt, output, session, model = values
            return TraceRow(
                at.tokens(prompt, "num_prompt_tokens"),
                at.tokens(output, "num_output_tokens", answer=True),
                clock.seconds(at.time(time, "arrival_time", "s"), at),
                session,
                model=model or None,
            )

        records = (
            (at, values)
            for at, values in _records(self.path, _OWN)
            if values[0] is None  # not sent by another request
        )
        return faults.parsed(records, row)


_OWN = (
    "parent_id",
    "arrival_time",
    "num_prompt_tokens",
    "num_output_tokens",
    "session_id",
    "model",
)


def _records(path: str, columns: Sequence[str]) -> Iterator[tuple[At, tuple[Any, ...]]]:
    """Yield (place, values of columns), holding some thousand rows at a time.

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
    batches = file.iter_batches(_BATCH, columns=list(columns))
    number = count(1)
    while True:
        with _told(path, ArrowException):
            batch = next(batches, None)
            if batch is None:
                return
            rows = list(zip(*(batch.column(name).to_pylist() for name in columns), strict=True))
        for row in rows:
            yield At(path, next(number)), row


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
