"""Reader of Dynamo's request traces, with the hashes of prompts' blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mist_sim.core.content_ids import OF_BLOCK, content_id
from mist_sim.errors import TraceError, brief
from mist_sim.traces.base import TRACE_READERS
from mist_sim.traces.readers.faults import Faults
from mist_sim.traces.readers.opening import integers, json_lines, time_from_json, tokens_from_json
from mist_sim.traces.sessions.calls import Call, CallReader

_SCHEMA = "dynamo.request.trace.v1"
_MS = 1e-3


@TRACE_READERS.register("dynamo")
@dataclass(frozen=True, slots=True, kw_only=True)
class DynamoReader(CallReader):
    """Dynamo's request trace: JSON lines, of which those with event_type request_end are requests.

    `request` has request_received_ms, output_tokens, and in `replay` trace_block_size, input_length
    and input_sequence_hashes, a chain hash for each block; `agent_context.session_id` names the
    session. A record may lie in `event` of its line. The end of a request is event_time_unix_ms.
    The file is read whole and sorted by time.

    by_session: rows come session by session, without times, for users who go through them
        (`closed_loop` with `sessions`); False: in order of time, with the times recorded.
    Source: NVIDIA Dynamo, its description of request traces (dynamo.request.trace.v1).
    """

    def _calls(self, faults: Faults) -> Iterator[Call]:
        found = faults.parsed(json_lines(self.path, faults), self._call)
        return (call for call in found if call is not None)

    def _call(self, whole: Mapping[str, Any], line: int) -> Call | None:
        """Return the call of a line; None for a line of another event."""
        path, inside = self.path, whole.get("event")
        record = inside if isinstance(inside, dict) else whole
        if record.get("schema") != _SCHEMA:
            raise TraceError(
                path,
                line,
                f"schema must be {_SCHEMA}, got {brief(record.get('schema'))}; "
                "remove the row, or convert the file",
            )
        if record.get("event_type") != "request_end":
            return None
        request = _mapping(record, "request", path, line)
        output = tokens_from_json(
            request.get("output_tokens"), path, line, "output_tokens", answer=True
        )
        replay = _mapping(request, "replay", path, line)
        prompt = tokens_from_json(replay.get("input_length"), path, line, "input_length")
        size = tokens_from_json(replay.get("trace_block_size"), path, line, "trace_block_size")
        hashes = integers(replay, "input_sequence_hashes", path, line)
        if len(hashes) * size >= prompt + size:
            raise TraceError(
                path,
                line,
                f"input_sequence_hashes must have at most {-(-prompt // size)} hashes for {prompt} "
                f"tokens in blocks of {size}, got {len(hashes)}; correct the row",
            )
        content = [(content_id(OF_BLOCK, number), size) for number in hashes]
        if content:
            content[-1] = (content[-1][0], min(size, prompt - (len(hashes) - 1) * size))
        came, ended = (
            time_from_json(times.get(key), path, line, key, "ms") * _MS
            for times, key in ((request, "request_received_ms"), (record, "event_time_unix_ms"))
        )
        context = record.get("agent_context")
        session = context.get("session_id") if isinstance(context, dict) else None
        return Call(
            came,
            max(came, ended),
            prompt,
            output,
            session if isinstance(session, str) else None,
            tuple(content),
        )


def _mapping(record: Mapping[str, Any], key: str, path: str, line: int) -> Mapping[str, Any]:
    found = record.get(key)
    if isinstance(found, dict):
        return found
    raise TraceError(path, line, f"{key} must be an object, got {brief(found)}; correct the row")
