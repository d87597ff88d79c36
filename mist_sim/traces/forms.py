"""Forms of trace files, recognised by what their first line says."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from mist_sim.errors import ScenarioError
from mist_sim.traces.base import TRACE_READERS, TraceReader
from mist_sim.traces.files import open_trace

_HEADERS = {
    "azure": {"TIMESTAMP", "ContextTokens", "GeneratedTokens"},
    "burstgpt": {"Timestamp", "Request tokens", "Response tokens"},
    "vidur": {"arrived_at", "num_prefill_tokens", "num_decode_tokens"},
    "splitwise": {"arrival_timestamp", "prompt_size", "token_size"},
    "lengths_csv": {"num_prefill_tokens", "num_decode_tokens"},
}
_KEYS = {
    "llmservingsim": ({"input_toks", "output_toks"}, {"sub_requests"}),
    "agentic": ({"block_size", "requests"},),
    "mooncake": ({"timestamp", "input_length", "output_length", "hash_ids"},),
}
_COLUMNS = {
    "chat_parquet": {"conversation"},
    "mist": {"arrival_time", "num_prompt_tokens", "num_output_tokens"},
}
_FIRST = 1 << 16  # characters of the first line that are enough to know a CSV file


def form_of(path: str) -> str:
    """Return the name of the reader for a file, by its first line or its columns.

    Raises ScenarioError for a file that is missing, and for one of no known form.
    """
    found = _of_parquet(path) if path.endswith(".parquet") else _of_text(path)
    if found is None:
        raise ScenarioError(
            f"trace {path}: has no form that is known by its first line; say which it is with "
            f"--format: {', '.join(TRACE_READERS)}"
        )
    return found


def reader_of(path: str, form: str | None = None, num_requests: int | None = None) -> TraceReader:
    """Return the reader of a file. form: its name; None: by the file's first line.

    Raises ScenarioError as `form_of`, and UnknownPluginError for a form that there is not.
    """
    made: Any = TRACE_READERS[form or form_of(path)]
    reader: TraceReader = made(path=path, num_requests=num_requests)
    return reader


def _of_parquet(path: str) -> str | None:
    from pyarrow import ArrowException, parquet

    if not Path(path).is_file():
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
            return _of_object(first + file.readline())
    try:
        header = {name.strip() for name in next(csv.reader([first]), [])}
    except csv.Error:
        return None
    return next((form for form, needed in _HEADERS.items() if needed <= header), None)


def _of_object(text: str) -> str | None:
    try:
        record: Any = json.JSONDecoder().raw_decode(text.lstrip())[0]
    except (ValueError, RecursionError):
        record = {}
    keys = set(record) if isinstance(record, dict) else set()
    if isinstance(record, dict) and isinstance(record.get("hash_ids"), dict):
        return "ragpulse"
    for form, either in _KEYS.items():
        if any(needed <= keys for needed in either):
            return form
    return None
