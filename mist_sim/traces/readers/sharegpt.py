"""Reader of conversations in ShareGPT's JSON form, with lengths estimated from characters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mist_sim.errors import brief, did_you_mean
from mist_sim.traces.base import TRACE_READERS
from mist_sim.traces.readers.conversations import ASSISTANT, USER, Chat, ChatReader, Message
from mist_sim.traces.readers.json_stream import objects_in_list
from mist_sim.traces.readers.opening import At, open_trace

_CONTEXT = frozenset({"system", "tool", "observation", "function_call", "function_response"})
_KNOWN = sorted(USER | ASSISTANT | _CONTEXT)


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
    """Yield (role, characters) of every message, or raise TraceError."""
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
