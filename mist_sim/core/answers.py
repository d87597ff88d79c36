"""Expected lengths of answers, estimated from the answers that have ended."""

from __future__ import annotations

from collections import defaultdict


class AnswerLengths:
    """Running means of the tokens of answers.

    by_bits: the mean for prompts of so many binary digits, so of about as many tokens.
    overall: the mean of all; 0 before any.
    """

    def __init__(self) -> None:
        self.by_bits: dict[int, float] = {}
        self.overall = 0.0
        self._counts: defaultdict[int | None, int] = defaultdict(int)
        self._sums: defaultdict[int | None, int] = defaultdict(int)

    def add(self, num_prompt_tokens: int, num_tokens: int) -> None:
        """Learn from one more answer to a prompt."""
        bits = num_prompt_tokens.bit_length()
        for key in (bits, None):
            self._counts[key] += 1
            self._sums[key] += num_tokens
        self.by_bits[bits] = self._sums[bits] / self._counts[bits]
        self.overall = self._sums[None] / self._counts[None]

    def expected(self, num_prompt_tokens: int) -> float:
        """Return the expected tokens of the answer to a prompt; 0 before any has ended."""
        return self.by_bits.get(num_prompt_tokens.bit_length(), self.overall)
