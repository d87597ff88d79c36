"""What several clients of one run have together, and what outlives each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from mist_sim.clients.kv_cache.tiers.shared import SharedTiers

T = TypeVar("T")


class SharedParts:
    """Parts of one run that clients find by a name: a card, a store, a link to it.

    tiers: what the tiers of KV caches hold that engines share.
    """

    def __init__(self) -> None:
        self.tiers = SharedTiers()
        self._parts: dict[tuple[str, str], Any] = {}

    def part(self, kind: str, name: str, make: Callable[[], T]) -> T:
        """Return a part, the same for all who name it. make: is called for the first of them."""
        key = kind, name
        if key not in self._parts:
            self._parts[key] = make()
        found: T = self._parts[key]
        return found
