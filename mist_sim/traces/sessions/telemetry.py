"""Reader of OpenTelemetry spans of calls to language models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mist_sim.errors import TraceError, brief
from mist_sim.traces.base import TRACE_READERS
from mist_sim.traces.readers.faults import Faults
from mist_sim.traces.readers.json_stream import objects_in_turn
from mist_sim.traces.readers.opening import A_SECOND, open_trace, time_from_json, tokens_from_json
from mist_sim.traces.sessions.calls import Call, CallReader

_CALLS = {"chat", "text_completion", "generate_content"}
_PROMPT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_OPERATION, _CONVERSATION = "gen_ai.operation.name", "gen_ai.conversation.id"
_LONGEST = 2**24  # characters of an export
_MOST_DIGITS = 25  # of a whole number written as text


@TRACE_READERS.register("otel")
@dataclass(frozen=True, slots=True, kw_only=True)
class OtelReader(CallReader):
    """OpenTelemetry spans of GenAI calls: exports in OTLP's JSON, one object behind the other.

    Spans count whose gen_ai.operation.name is chat, text_completion or generate_content, and those
    without a name of an operation that say both numbers of tokens: gen_ai.usage.input_tokens and
    gen_ai.usage.output_tokens, by their older names prompt_tokens and completion_tokens, too.
    Others, such as of tools and agents, are the waits between them. A session is a
    gen_ai.conversation.id, or else a trace. Calls without an answer have no
    or 0 output tokens. Spans do not tell shared prefixes. The file is read whole and sorted.

    by_session: rows come session by session, without times, for users who go through them
        (`closed_loop` with `sessions`); False: in order of time, with the times recorded.
    Source: OpenTelemetry semantic conventions for generative AI; OTLP 1 (JSON).
    """

    def _calls(self, faults: Faults) -> Iterator[Call]:
        with open_trace(self.path) as file:
            exports = objects_in_turn(file, self.path, _LONGEST)
            for spans in faults.parsed(exports, self._spans):
                yield from (each for each in faults.parsed(spans, self._call) if each is not None)

    def _spans(self, export: Mapping[str, Any], line: int) -> list[tuple[int, Mapping[str, Any]]]:
        """Return the spans of an export, each with its line."""
        return [
            (line, span)
            for resource in self._list(export, "resourceSpans", line)
            for scope in self._list(resource, "scopeSpans", line)
            for span in self._list(scope, "spans", line)
        ]

    def _list(self, record: Mapping[str, Any], key: str, line: int) -> list[dict[str, Any]]:
        found = record.get(key)
        if type(found) is list and all(type(each) is dict for each in found):
            return found
        raise TraceError(
            self.path, line, f"{key} must be a list of objects, got {brief(found)}; correct it"
        )

    def _attributes(self, span: Mapping[str, Any], line: int) -> dict[str, Any]:
        """Return the attributes by key; of a value, what stands behind its type."""
        found = {}
        for each in self._list({"attributes": [], **span}, "attributes", line):
            value = each.get("value")
            if type(value) is dict and len(value) == 1 and isinstance(each.get("key"), str):
                found[each["key"]] = next(iter(value.values()))
        return found

    def _call(self, span: Mapping[str, Any], line: int) -> Call | None:
        """Return the call of a span; None for a span of another operation."""
        attributes = self._attributes(span, line)
        if not _is_call(attributes):
            return None
        prompt, output = (self._tokens(attributes, keys, line) for keys in (_PROMPT, _OUTPUT))
        start, end = (self._time(span, key, line) for key in _TIMES)
        session = attributes.get(_CONVERSATION, span.get("traceId"))
        return Call(
            start,
            max(start, end),
            prompt,
            output,
            session if isinstance(session, str) else None,
        )

    def _time(self, span: Mapping[str, Any], key: str, line: int) -> float:
        value = _whole(span.get(key))
        return time_from_json(value, self.path, line, key, "ns") / A_SECOND["ns"]

    def _tokens(self, attributes: Mapping[str, Any], keys: tuple[str, ...], line: int) -> int:
        key = next((key for key in keys if key in attributes), keys[0])
        value = _whole(attributes.get(key))
        return tokens_from_json(value, self.path, line, key, answer=keys is _OUTPUT)


_TIMES = ("startTimeUnixNano", "endTimeUnixNano")


def _is_call(attributes: Mapping[str, Any]) -> bool:
    """Tell whether a span is a call, answered or not."""
    operation = attributes.get(_OPERATION)
    if operation is None:
        return all(any(key in attributes for key in keys) for keys in (_PROMPT, _OUTPUT))
    return operation in _CALLS


def _whole(value: object) -> object:
    """Return a whole number that is text in JSON, as 64-bit numbers are."""
    if isinstance(value, str) and value.isdecimal() and len(value) <= _MOST_DIGITS:
        return int(value)
    return value
