"""Reader of conversations in ShareGPT's JSON form, with lengths estimated from characters."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TextIO

from mist_sim.bounds import LINE_LENGTH
from mist_sim.durations import require_positive
from mist_sim.errors import TraceError, brief, did_you_mean
from mist_sim.traces.base import TRACE_READERS, TraceRow
from mist_sim.traces.content import conversation_content
from mist_sim.traces.files import first_rows, open_trace, require_num_requests

_USER = frozenset({"human", "user"})
_ASSISTANT = frozenset({"gpt", "assistant", "chatgpt", "bing", "bard"})
_CONTEXT = frozenset({"system", "tool", "observation", "function_call", "function_response"})
_CHUNK = 1 << 20  # characters read at once


@TRACE_READERS.register("sharegpt")
@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGptReader:
    """ShareGPT: a JSON list of {"id": ..., "conversations": [{"from": ..., "value": ...}]}.

    Every answer of the assistant to a user's message is one request. Its prompt is the whole
    conversation up to the answer, so later turns repeat the earlier ones, which a prefix cache
    finds; `session_id` is the conversation's position in the file. There are no arrival times.
    Messages of a system or a tool, and answers to them, are context only.

    path: the file. num_requests: read the first so many requests; None reads all.
    chars_per_token: a text of n characters counts as ceil(n / chars_per_token) tokens; markup of
        a chat template is not counted. The default is the measured compression of Llama 3's
        tokenizer on English text (3.17 for Llama 2's). Source: The Llama 3 Herd of Models, §3.2.
    skip_empty: leave out pairs whose prompt or answer is empty instead of refusing the file.
    """

    path: str
    num_requests: int | None = None
    chars_per_token: float = 3.94
    skip_empty: bool = False

    def __post_init__(self) -> None:
        require_num_requests(self.num_requests)
        require_positive("chars_per_token", self.chars_per_token)

    def rows(self) -> Iterator[TraceRow]:
        """Yield a row per answer, in file order; raises as `TraceReader.rows` says."""
        return first_rows(self._read(), self.num_requests, self.path)

    def _read(self) -> Iterator[TraceRow]:
        with open_trace(self.path) as file:
            for session, (line, conversation) in enumerate(_json_objects(file, self.path)):
                for prompt_chars, answer_chars in self._pairs(conversation, line):
                    prompt = math.ceil(prompt_chars / self.chars_per_token)
                    answer = math.ceil(answer_chars / self.chars_per_token)
                    content = conversation_content(session, prompt + answer)
                    yield TraceRow(prompt, answer, None, session, content)

    def _pairs(self, conversation: dict[str, Any], line: int) -> Iterator[tuple[int, int]]:
        """Yield (characters so far, characters of the answer) for every user-assistant pair."""
        context, asked = 0, False
        for position, (role, length) in enumerate(_messages(conversation, self.path, line)):
            if role in _ASSISTANT:
                if asked and context and length:
                    yield context, length
                elif asked and not self.skip_empty:
                    raise TraceError(
                        self.path,
                        line,
                        f"{_place(conversation, position)}: "
                        f"question and answer must not be empty, got {context} and {length} "
                        "characters; remove the pair or set skip_empty",
                    )
                asked = False
            elif role in _USER:
                asked = True
            context += length


def _messages(conversation: dict[str, Any], path: str, line: int) -> Iterator[tuple[str, int]]:
    """Yield (role, characters) of every message, or raise TraceError."""
    messages = conversation.get("conversations")
    if type(messages) is not list:
        raise TraceError(
            path,
            line,
            'a conversation must have a list "conversations"'
            f"{did_you_mean('conversations', conversation)} Correct the file",
        )
    for position, message in enumerate(messages):
        fields = message if type(message) is dict else {}
        role, value = fields.get("from"), fields.get("value")
        if type(role) is not str or type(value) is not str:
            where = _place(conversation, position)
            raise TraceError(
                path, line, f'{where}: must have the strings "from" and "value"; correct it'
            )
        if role not in _USER and role not in _ASSISTANT and role not in _CONTEXT:
            known, where = sorted(_USER | _ASSISTANT | _CONTEXT), _place(conversation, position)
            raise TraceError(
                path,
                line,
                f'{where}: "from" must be one of {", ".join(known)}, '
                f"got {brief(role)}{did_you_mean(role, known)}",
            )
        yield role, len(value)


def _place(conversation: dict[str, Any], position: int) -> str:
    return f"conversation {brief(conversation.get('id'))}, message {position}"


def _json_objects(file: TextIO, path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line, object) for the objects of one JSON list, holding one of them at a time."""
    cursor = _Cursor(file, path)
    cursor.expect("[", "the file must be a JSON list of conversations")
    if cursor.peek() != "]":
        while True:
            if cursor.peek() != "{":
                raise cursor.error("a conversation must be a JSON object")
            yield cursor.line, cursor.take_object()
            if cursor.peek() == "]":
                break
            cursor.expect(",", "conversations must be separated by a comma")
    cursor.expect("]", "the list must be closed")
    if cursor.peek():
        raise cursor.error("nothing may follow the list")


class _Cursor:
    """A position in a JSON text that is read piece by piece."""

    def __init__(self, file: TextIO, path: str) -> None:
        self.line = 1
        self._file = file
        self._path = path
        self._text = ""
        self._position = 0
        self._decoder = json.JSONDecoder()

    def error(self, rule: str) -> TraceError:
        """Return the error of the character that stands here; a text may be that of any file."""
        found = self._text[self._position : self._position + 1] or "the end of the file"
        return TraceError(self._path, self.line, f"{rule}, got {brief(found)}; correct the file")

    def peek(self) -> str:
        """Skip white space and return the next character; empty at the end of the file."""
        while True:
            text, start = self._text, self._position
            end = start
            while end < len(text) and text[end] in " \t\r\n":
                end += 1
            self.line += text.count("\n", start, end)
            self._position = end
            if end < len(text):
                return text[end]
            if not self._read_more():
                return ""

    def expect(self, character: str, rule: str) -> None:
        """Step over one character, or raise TraceError with the rule it breaks."""
        if self.peek() != character:
            raise self.error(rule)
        self._position += 1

    def take_object(self) -> dict[str, Any]:
        """Step over the object that starts here and return it, or raise TraceError."""
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._position)
            except RecursionError as error:
                raise TraceError(self._path, self.line, "nested too deeply") from error
            except json.JSONDecodeError as error:
                # Near the end of what was read, or inside a string, more text may repair it.
                cut = error.pos + 16 > len(self._text) or error.msg.startswith("Unterminated")
                if cut and self._read_more():
                    continue
                line = self.line + self._text.count("\n", self._position, error.pos)
                raise self._not_json(line, error.msg) from error
            except ValueError as error:  # a number of too many digits
                raise self._not_json(self.line, str(error)) from error
            self.line += self._text.count("\n", self._position, end)
            self._position = end
            result: dict[str, Any] = value
            return result

    def _not_json(self, line: int, problem: str) -> TraceError:
        return TraceError(self._path, line, f"not valid JSON ({problem}); correct the file")

    def _read_more(self) -> bool:
        """Append text, at least as much as is unread; False at the end of the file.

        Raises TraceError where more is unread than a conversation may have.
        """
        rest = self._text[self._position :]
        if len(rest) > LINE_LENGTH:
            raise TraceError(
                self._path,
                self.line,
                f"a conversation must have <= {LINE_LENGTH} characters; is a quote or a bracket "
                "missing?",
            )
        more = self._file.read(max(_CHUNK, len(rest)))
        self._text, self._position = rest + more, 0
        return bool(more)
