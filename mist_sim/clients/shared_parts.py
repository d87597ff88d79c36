"""Parts shared by several clients of a run, which outlive each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from mist_sim.clients.kv_cache.tiers import SharedTiers

T = TypeVar("T")


class SharedParts:
    """Shared parts of one run, found by name: a card, a store, a link to it.

    tiers: contents of the KV-cache tiers that engines share.
    """

    def __init__(self) -> None:
        self.tiers = SharedTiers()
        self._parts: dict[tuple[str, str], Any] = {}

    def part(self, kind: str, name: str, make: Callable[[], T]) -> T:
        """Return a part, one object per name. make: called to create it the first time."""
        key = kind, name
        if key not in self._parts:
            self._parts[key] = make()
        found: T = self._parts[key]
        return found
