"""Hits of a retrieval by level: expected shares, a draw, or stored content."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Literal, Protocol, get_args

from numpy.random import Generator as Rng
from simpy.events import Event

from mist_sim.clients.retrieval.contents import Contents
from mist_sim.clients.retrieval.level_links import LevelLink
from mist_sim.core.request import Request
from mist_sim.environment import Environment

Kind = Literal["expected", "drawn", "stored"]
KINDS: tuple[str, ...] = get_args(Kind)

Found = Sequence[float]
"""Tokens that come from each level, the nearest first; with expected hits a mean."""

Steps = Generator[Event, Any, None]


class Hits(Protocol):
    """Finds the tokens of each level, and reads a batch of them."""

    def find(self, request: Request, num_tokens: int) -> Found:
        """Return how many of the tokens that a request asks for come from each level."""

    def read(self, links: Sequence[LevelLink], asked: float, found: Found) -> Steps:
        """Wait until the bytes of a batch are there. asked: bytes in all. found: by level."""


class ExpectedHits:
    """Each retrieval takes the expected time, and the expected share of its tokens is found.

    shares: of each level.
    """

    def __init__(self, shares: Sequence[float]) -> None:
        self._shares = shares

    def find(self, request: Request, num_tokens: int) -> Found:
        """Return the expected tokens from each level."""
        return [share * num_tokens for share in self._shares]

    def read(self, links: Sequence[LevelLink], asked: float, found: Found) -> Steps:
        """Wait for the expected time of each level, one after the other, since they add up."""
        for link, share in zip(links, self._shares, strict=True):
            if share > 0:
                yield link.read(asked, share)


class _SideBySide:
    """Levels are read at the same time, since each has its own link."""

    def __init__(self, env: Environment) -> None:
        self._env = env

    def read(self, links: Sequence[LevelLink], asked: float, found: Found) -> Steps:
        """Wait for the level that takes longest."""
        ends = [link.read(part) for link, part in zip(links, found, strict=True) if part]
        if ends:
            yield self._env.all_of(ends)


class DrawnHits(_SideBySide):
    """One level, or none, has all tokens of a retrieval. shares: probability of each level."""

    def __init__(self, env: Environment, shares: Sequence[float], rng: Rng) -> None:
        super().__init__(env)
        self._shares = shares
        self._rng = rng

    def find(self, request: Request, num_tokens: int) -> Found:
        """Return all tokens from one level, drawn by the shares, or from none."""
        drawn, found = self._rng.random(), [0.0] * len(self._shares)
        for number, share in enumerate(self._shares):
            if drawn < share:
                found[number] = float(num_tokens)
                break
            drawn -= share
        return found


class StoredHits(_SideBySide):
    """Hits follow from the stored content."""

    def __init__(self, env: Environment, contents: Contents) -> None:
        super().__init__(env)
        self._contents = contents

    def find(self, request: Request, num_tokens: int) -> Found:
        """Return the tokens that lie in each level now."""
        return self._contents.find(request.content, num_tokens)
