"""Images of a request, as a model sees them."""

from __future__ import annotations

from typing import NamedTuple


class Image(NamedTuple):
    """An image.

    patches: of each of its parts, within which a vision tower attends. tokens: of the prompt.
    parts: 1, or its tiles.
    """

    patches: int
    tokens: int
    parts: int = 1


class Images(NamedTuple):
    """Equal images, with which a prompt begins. number: of them (>= 1)."""

    number: int
    each: Image

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt that are theirs."""
        return self.number * self.each.tokens

    def reached(self, first: int, last: int) -> int:
        """Return how many begin among the tokens [first, last) of the prompt."""
        size = self.each.tokens
        return min(self.number, -(-last // size)) - min(self.number, -(-first // size))
