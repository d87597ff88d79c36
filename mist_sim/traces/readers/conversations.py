"""Chats as text: each answer to a user is a request, with lengths estimated from characters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from mist_sim.checks import Positive
from mist_sim.errors import TraceError, brief, did_you_mean
from mist_sim.traces.base import TRACE_READERS, TraceRow
from mist_sim.traces.readers.json_stream import objects_in_list
from mist_sim.traces.readers.opening import At, Faults, FileReader, UnansweredError, open_trace
from mist_sim.traces.workload import conversation_content

_USER = frozenset({"human", "user"})
_ASSISTANT = frozenset({"gpt", "assistant", "chatgpt", "bing", "bard"})
_CONTEXT = frozenset({"system", "tool", "observation", "function_call", "function_response"})
_KNOWN = sorted(_USER | _ASSISTANT | _CONTEXT)

Message = tuple[str, int]
"""The role of its sender, and its characters."""

Chat = tuple[str, Iterator[Message]]
"""Its name in messages about it, and its messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReader(FileReader):
    """A reader of chats, with requests and lengths as `ShareGptReader` tells of them."""

    chars_per_token: Positive[float] = 3.94

    def _chats(self) -> Iterator[tuple[At, Chat]]:
        """Yield (place, name for messages about it and its messages) of every conversation."""
        raise NotImplementedError

    def _read(self, faults: Faults) -> Iterator[TraceRow]:
        def numbered() -> Iterator[tuple[At, tuple[int, Chat]]]:
            for session, (at, chat) in enumerate(self._chats()):
                yield at, (session, chat)

        def pairs(numbered: tuple[int, Chat], at: At) -> list[TraceRow]:
            session, (name, messages) = numbered
            found = ((at, pair) for pair in _pairs(messages))
            return list(faults.parsed(found, partial(self._row, session, name)))

        for rows in faults.parsed(numbered(), pairs):
            yield from rows

    def _row(
        self, session: int, name: str, numbered: tuple[int, tuple[int, int]], at: At
    ) -> TraceRow:
        """Return the row of a position and (characters so far, of the answer)."""
        position, pair = numbered
        if not all(pair):
            kind = TraceError if pair[1] else UnansweredError
            raise kind(
                *at,
                f"{name}, message {position}: question and answer must not be empty, got "
                f"{pair[0]} and {pair[1]} characters; remove the pair",
            )
        prompt, answer = (math.ceil(length / self.chars_per_token) for length in pair)
        return TraceRow(
            prompt, answer, None, session, conversation_content(session, prompt + answer)
        )


def _pairs(messages: Iterator[Message]) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield (position, (characters so far, of the answer)) for every user-assistant pair."""
    context, asked = 0, False
    for position, (role, length) in enumerate(messages):
        if role in _ASSISTANT:
            if asked:
                yield position, (context, length)
            asked = False
        elif role in _USER:
            asked = True
        context += length


@TRACE_READERS.register("sharegpt")
@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGptReader(ChatReader):
    """ShareGPT: a JSON list of {"id": ..., "conversations": [{"from": ..., "value": ...}]}.

    Every answer of the assistant to a user's message is one request. Its prompt is the whole
    conversation up to the answer, so later turns repeat the earlier ones, which a prefix cache
    finds; `session_id` is the conversation's position in the file. There are no arrival times.
    Messages of a system or a tool, and answers to them, are context only.

    chars_per_token: a text of n characters counts as ceil(n / chars_per_token) tokens; markup of
        a chat template is not counted. The default is the measured compression of Llama 3's
        tokenizer on English text (3.17 for Llama 2's). Source: The Llama 3 Herd of Models, §3.2.
    """

    def _chats(self) -> Iterator[tuple[At, Chat]]:
        with open_trace(self.path) as file:
            for at, chat in objects_in_list(file, self.path):
                name = f"conversation {brief(chat.get('id'))}"
                yield at, (name, _messages(chat, name, at))


def _messages(conversation: dict[str, Any], name: str, at: At) -> Iterator[Message]:
    messages = conversation.get("conversations")
    if type(messages) is not list:
        raise at.error(
            'a conversation must have a list "conversations"'
            f"{did_you_mean('conversations', conversation)} Correct the file"
        )
    for position, message in enumerate(messages):
        fields = message if type(message) is dict else {}
        role, value = fields.get("from"), fields.get("value")
        if type(role) is not str or type(value) is not str:
            raise at.error(
                f'{name}, message {position}: must have the strings "from" and "value"; correct it'
            )
        if role not in _KNOWN:
            raise at.error(
                f'{name}, message {position}: "from" must be one of {", ".join(_KNOWN)}, '
                f"got {brief(role)}{did_you_mean(role, _KNOWN)}"
            )
        yield role, len(value)
