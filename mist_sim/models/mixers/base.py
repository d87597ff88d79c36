"""Mixer: sizes of the part that connects tokens, in models with layers of different kinds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mist_sim.models.quantization import Part


class Held(NamedTuple):
    """Parameters of a mixer on one rank: of its matrices by part, and of norms, biases, gates."""

    matrices: Mapping[Part, int]
    plain: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixer(ABC):
    """Attention, or a state that takes its place, in one layer.

    `ranks` are tensor-parallel; with one rank every method tells of the whole layer.
    """

    @abstractmethod
    def held(self, hidden_size: int, ranks: int) -> Held:
        """Return the parameters on a rank."""

    @abstractmethod
    def problem(self, ranks: int) -> str:
        """Return how it cannot be split over so many ranks ("divide ..."); empty: it can."""

    @abstractmethod
    def token_bytes(self, ranks: int, entry_bytes: int) -> float:
        """Return the bytes that each token of a context adds to the cache of a rank.

        entry_bytes: of one cached value. With a window, as long as the window holds the token.
        """

    def state_bytes(self, ranks: int, entry_bytes: int) -> int:
        """Return the bytes of a rank for a sequence, however long it is."""
        return 0

    @property
    @abstractmethod
    def most_ranks(self) -> int:
        """Ranks that it can be split over at most: its heads."""

    @property
    def block_alignment(self) -> int:
        """Tokens of which its kernels take multiples as blocks (vLLM, `platforms/interface.py`)."""
        return 16

    @property
    def window(self) -> int | None:
        """Largest number of tokens with entries in the cache; None: all of them."""
        return None
