"""Writers of traces in the forms of other tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count

from mist_sim.core.content_ids import OF_BLOCK, OF_CONVERSATION, origin_of
from mist_sim.errors import ScenarioError
from mist_sim.traces.base import TraceRow
from mist_sim.traces.readers.opening import A_SECOND

_AZURE_START = datetime(2024, 1, 1, tzinfo=UTC)  # any; readers count from the first row
_TICKS = 10_000_000  # of 100 ns a second, as Azure's files have


def azure_lines(rows: Iterable[TraceRow]) -> Iterator[str]:
    """Yield an Azure CSV file; times are rounded to 100 ns. Raises ScenarioError without times."""
    yield "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    for row in rows:
        seconds, ticks = divmod(round(_time(row) * _TICKS), _TICKS)
        stamp = _AZURE_START + timedelta(seconds=seconds)
        lengths = f"{row.num_prompt_tokens},{row.num_output_tokens}"
        yield f"{stamp:%Y-%m-%d %H:%M:%S}.{ticks:07d},{lengths}\n"


def timed_csv_lines(rows: Iterable[TraceRow], header: str) -> Iterator[str]:
    """Yield a CSV file with seconds, prompt and answer, under these names.

    Raises ScenarioError without times.
    """
    yield f"{header}\n"
    for row in rows:
        yield f"{_time(row)!r},{row.num_prompt_tokens},{row.num_output_tokens}\n"


def serving_sim_lines(rows: Iterable[TraceRow]) -> Iterator[str]:
    """Yield LLMServingSim's JSON lines of requests; times are rounded to nanoseconds.

    Shared prefixes are left out: its files have ids of tokens. Raises ScenarioError without times.
    """
    for row in rows:
        record = {
            "input_toks": row.num_prompt_tokens,
            "output_toks": row.num_output_tokens,
            "arrival_time_ns": round(_time(row) * A_SECOND["ns"]),
        }
        yield json.dumps(record) + "\n"


def mooncake_lines(
    rows: Iterable[TraceRow], a_second: float = 1e3, block_size: int = 512
) -> Iterator[str]:
    """Yield Mooncake's JSON lines, with ids of blocks if the rows have any.

    Conversations become blocks of `block_size` tokens, which the answers have too. a_second: of the
    unit of times, by default in milliseconds; they are floats. Raises ScenarioError without times,
    and for content that is neither of blocks of one size nor of conversations.
    """
    blocks = _Blocks(block_size)
    for row in rows:
        record = {
            "timestamp": _time(row) * a_second,
            "input_length": row.num_prompt_tokens,
            "output_length": row.num_output_tokens,
            **blocks.of(row),
        }
        yield json.dumps(record) + "\n"


def timed_trace_lines(rows: Iterable[TraceRow]) -> Iterator[str]:
    """Yield the lines of vLLM's `timed_trace`: Mooncake's with seconds, and shorter blocks."""
    return mooncake_lines(rows, 1.0, 16)


WRITERS: dict[str, Callable[[Iterable[TraceRow]], Iterator[str]]] = {
    "azure": azure_lines,
    "vidur": partial(timed_csv_lines, header="arrived_at,num_prefill_tokens,num_decode_tokens"),
    "splitwise": partial(timed_csv_lines, header="arrival_timestamp,prompt_size,token_size"),
    "burstgpt": partial(timed_csv_lines, header="Timestamp,Request tokens,Response tokens"),
    "llmservingsim": serving_sim_lines,
    "mooncake": mooncake_lines,
    "timed_trace": timed_trace_lines,
}
"""By the name of the reader that reads what they write."""


def _time(row: TraceRow) -> float:
    if row.arrival_time is None:
        raise ScenarioError(
            "the trace has no times, which the form needs; give --rate, which draws Poisson "
            "arrivals"
        )
    return row.arrival_time


class _Blocks:
    """The ids of the blocks of rows; those of conversations, of so many tokens, are made here."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._numbers = count()
        self._of_conversation: dict[int, list[int]] = {}
        self._origins: set[int] = set()

    def of(self, row: TraceRow) -> dict[str, list[int]]:
        """Return the ids of the blocks of a prompt, and of those that its answer completes."""
        found = [(*origin_of(span), length) for span, length in row.content]
        self._origins.update(origin for origin, _, _ in found)
        if not self._origins <= {OF_BLOCK} and (
            len(found) > 1 or self._origins != {OF_CONVERSATION}
        ):
            raise ScenarioError(
                "prompts share parts, or blocks and conversations, which hash_ids of blocks cannot "
                "express; --without-prefixes leaves them out"
            )
        if found and self._origins == {OF_CONVERSATION}:
            return self._of_turn(row, *found[0][1:])
        ids, tokens = [], 0
        for _, number, length in found:
            if tokens >= row.num_prompt_tokens:
                break
            ids.append(number)
            tokens += length
        return {"hash_ids": ids}

    def _of_turn(self, row: TraceRow, conversation: int, num_tokens: int) -> dict[str, list[int]]:
        ids = self._of_conversation.setdefault(conversation, [])
        full, last = row.num_prompt_tokens // self._block_size, num_tokens // self._block_size
        ids += [next(self._numbers) for _ in range(last - len(ids))]
        return {"hash_ids": ids[:full], "output_hash_ids": ids[full:last]}
