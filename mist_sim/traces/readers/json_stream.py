"""Reads the JSON objects of a text of any length, one at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TextIO

from mist_sim.bounds import LINE_LENGTH
from mist_sim.errors import TraceError, brief
from mist_sim.traces.readers.opening import At

_CHUNK = 1 << 20  # characters read at once


def objects_in_list(file: TextIO, path: str) -> Iterator[tuple[At, dict[str, Any]]]:
    """Yield (place, object) for the objects of one JSON list, one at a time."""
    cursor = _Cursor(file, path)
    cursor.expect("[", "the file must be a JSON list of conversations")
    if cursor.peek() != "]":
        while True:
            if cursor.peek() != "{":
                raise cursor.error("a conversation must be a JSON object")
            yield At(path, cursor.line), cursor.take_object()
            if cursor.peek() == "]":
                break
            cursor.expect(",", "conversations must be separated by a comma")
    cursor.expect("]", "the list must be closed")
    if cursor.peek():
        raise cursor.error("nothing may follow the list")


def objects_in_turn(file: TextIO, path: str, longest: int) -> Iterator[tuple[At, dict[str, Any]]]:
    """Yield (place, object) of JSON objects one behind the other, each on one line or on many.

    longest: characters of an object. Raises TraceError for anything else.
    """
    cursor = _Cursor(file, path, longest)
    while cursor.peek():
        if cursor.peek() != "{":
            raise cursor.error("a session must be a JSON object")
        yield At(path, cursor.line), cursor.take_object()


class _Cursor:
    """A position in a JSON text that is read piece by piece."""

    def __init__(self, file: TextIO, path: str, longest: int = LINE_LENGTH) -> None:
        self._longest = longest
        self.line = 1
        self._file = file
        self._path = path
        self._text = ""
        self._position = 0
        self._decoder = json.JSONDecoder()

    def error(self, rule: str) -> TraceError:
        """Return the error for the character here, without showing text of the file."""
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
                # An error near the end of the text read so far, or inside a string, may vanish with
                # more text.
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
        if len(rest) > self._longest:
            raise TraceError(
                self._path,
                self.line,
                f"a conversation must have <= {self._longest} characters; is a quote or a bracket "
                "missing?",
            )
        more = self._file.read(max(_CHUNK, len(rest)))
        self._text, self._position = rest + more, 0
        return bool(more)
