"""Chats as text: each answer to a user is a request, with lengths estimated from characters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from mist_sim.durations import require_positive
from mist_sim.errors import TraceError
from mist_sim.traces.base import TraceRow
from mist_sim.traces.content import conversation_content
from mist_sim.traces.readers.opening import FileReader

USER = frozenset({"human", "user"})
ASSISTANT = frozenset({"gpt", "assistant", "chatgpt", "bing", "bard"})

Message = tuple[str, int]
"""The role of its sender, and its characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReader(FileReader):
    """A reader of chats.

    Every answer of the assistant to a user's message is one request. Its prompt is the whole
    conversation up to the answer, so later turns repeat the earlier ones, which a prefix cache
    finds; `session_id` is the conversation's position in the file. There are no arrival times.
    Messages of a system or a tool, and answers to them, are context only.

    chars_per_token: a text of n characters counts as ceil(n / chars_per_token) tokens; markup of
        a chat template is not counted. The default is the measured compression of Llama 3's
        tokenizer on English text (3.17 for Llama 2's). Source: The Llama 3 Herd of Models, §3.2.
    skip_empty: leave out pairs whose prompt or answer is empty instead of refusing the file.
    """

    chars_per_token: float = 3.94
    skip_empty: bool = False

    def __post_init__(self) -> None:
        FileReader.__post_init__(self)
        require_positive("chars_per_token", self.chars_per_token)

    def _chats(self) -> Iterator[tuple[int, str, Iterator[Message]]]:
        """Yield (line, name for messages about it, messages) of every conversation."""
        raise NotImplementedError

    def _read(self) -> Iterator[TraceRow]:
        for session, (line, name, messages) in enumerate(self._chats()):
            for prompt_chars, answer_chars in self._pairs(messages, name, line):
                prompt = math.ceil(prompt_chars / self.chars_per_token)
                answer = math.ceil(answer_chars / self.chars_per_token)
                content = conversation_content(session, prompt + answer)
                yield TraceRow(prompt, answer, None, session, content)

    def _pairs(
        self, messages: Iterator[Message], name: str, line: int
    ) -> Iterator[tuple[int, int]]:
        """Yield (characters so far, characters of the answer) for every user-assistant pair."""
        context, asked = 0, False
        for position, (role, length) in enumerate(messages):
            if role in ASSISTANT:
                if asked and context and length:
                    yield context, length
                elif asked and not self.skip_empty:
                    raise TraceError(
                        self.path,
                        line,
                        f"{name}, message {position}: "
                        f"question and answer must not be empty, got {context} and {length} "
                        "characters; remove the pair or set skip_empty",
                    )
                asked = False
            elif role in USER:
                asked = True
            context += length
