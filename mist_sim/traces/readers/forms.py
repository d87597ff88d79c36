"""Forms of trace files, recognised by their first line."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from mist_sim.bounds import LINE_LENGTH
from mist_sim.errors import ScenarioError
from mist_sim.traces.base import TRACE_READERS, TraceReader
from mist_sim.traces.readers.opening import open_trace

_HEADERS = {
    "azure": {"TIMESTAMP", "ContextTokens", "GeneratedTokens"},
    "burstgpt": {"Timestamp", "Request tokens", "Response tokens"},
    "vidur": {"arrived_at", "num_prefill_tokens", "num_decode_tokens"},
    "splitwise": {"arrival_timestamp", "prompt_size", "token_size"},
    "servegen": {"workload", "client", "window_start_s", "rate_req_s"},
    "lengths_csv": {"num_prefill_tokens", "num_decode_tokens"},
    "csv": {"timestamp", "prompt_tokens", "output_tokens"},
}
_KEYS = {
    "llmservingsim": ({"input_toks", "output_toks"}, {"sub_requests"}),
    "agentic": ({"block_size", "requests"},),
    "otel": ({"resourceSpans"},),
    "dynamo": ({"schema", "event_type"}, {"event"}),
    "agentic_mooncake": (
        {"input_length", "output_length", "wait_for"},
        {"input_length", "output_length", "delay"},
        {"input_length", "output_length", "session_id", "request_id"},
    ),
    "mooncake": ({"timestamp", "input_length", "output_length", "hash_ids"},),
}
_COLUMNS = {
    "chat_parquet": {"conversation"},
    "mist": {"arrival_time", "num_prompt_tokens", "num_output_tokens"},
}
_TOLD_APART = 16  # tokens: shorter prompts are one block in both forms
_FIRST = 1 << 16  # characters of the first line that are enough to know a CSV file


def form_of(path: str) -> str:
    """Return the name of the reader for a file, by its first line or its columns.

    Raises ScenarioError for a file that is missing, and for one of no known form.
    """
    found = _of_parquet(path) if path.endswith(".parquet") else _of_text(path)
    if found is None:
        raise ScenarioError(
            f"trace {path}: has no form that is known by its first line; say which it is with "
            f"--format: {', '.join(TRACE_READERS)}. A CSV of your own: --format csv --set "
            "time_column=NAME --set prompt_column=NAME --set output_column=NAME; in a scenario, "
            "the same keys under trace: {type: csv, path: FILE}"
        )
    return found


def reader_of(path: str, form: str | None = None, num_requests: int | None = None) -> TraceReader:
    """Return the reader of a file. form: its name; None: by the file's first line.

    Raises ScenarioError as `form_of` does, and UnknownPluginError for an unknown form.
    """
    made: Any = TRACE_READERS[form or form_of(path)]
    reader: TraceReader = made(path=path, num_requests=num_requests)
    return reader


def _of_parquet(path: str) -> str | None:
    from pyarrow import ArrowException, parquet

    if not Path(path).exists():
        raise ScenarioError(f"trace {path}: no such file")
    try:
        names = set(parquet.read_schema(path).names)
    except (OSError, ArrowException) as error:
        raise ScenarioError(f"trace {path}: cannot be read as Parquet: {error}") from None
    return next((form for form, needed in _COLUMNS.items() if needed <= names), None)


def _of_text(path: str) -> str | None:
    with open_trace(path) as file:
        first = ""
        while first == "" or first.isspace():
            line = file.readline(_FIRST)
            if not line:
                break
            first = line
        if first.lstrip().startswith("["):
            return "sharegpt"
        if first.lstrip().startswith("{"):
            line = first if first.endswith("\n") else first + file.readline(LINE_LENGTH)
            return _of_object(line, line + file.read(_FIRST))
    try:
        header = {name.strip() for name in next(csv.reader([first]), [])}
    except csv.Error:
        return None
    return next((form for form, needed in _HEADERS.items() if needed <= header), None)


def _of_object(line: str, text: str) -> str | None:
    """Return the form of a first object. line: the first line. text: that and more."""
    try:
        record: Any = json.JSONDecoder().raw_decode(line.lstrip())[0]
    except (ValueError, RecursionError):
        record = {}
    keys = set(record) if isinstance(record, dict) else set()
    if isinstance(record, dict) and isinstance(record.get("hash_ids"), dict):
        return "ragpulse"
    for form, either in _KEYS.items():
        if any(needed <= keys for needed in either):
            return "timed_trace" if form == "mooncake" and _has_blocks_of_16(record) else form
    return _of_cut_object(text)


def _has_blocks_of_16(record: dict[str, Any]) -> bool:
    """Tell whether a row of Mooncake's keys has as many ids as blocks of vLLM's timed_trace."""
    ids, tokens = record["hash_ids"], record["input_length"]
    is_count = type(ids) is list and type(tokens) is int and tokens > _TOLD_APART
    return is_count and len(ids) in (tokens // 16, -(-tokens // 16))


def _of_cut_object(text: str) -> str | None:
    """Return the form of an object over many lines, by the keys at its beginning."""
    for form in ("otel", "agentic"):
        if any(all(f'"{key}"' in text for key in needed) for needed in _KEYS[form]):
            return form
    return None
