"""A physical card or processor that several clients run on: MIST's nodes, cut into clusters."""

from __future__ import annotations

from dataclasses import dataclass

import simpy

from mist_sim.clients.shared_parts import SharedParts
from mist_sim.environment import Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A card or processor by name: clients that name the same one have its slots together.

    Each service, or batch, takes one slot from its beginning to its end, in order of arrival
    whichever client asks. So a card runs one batch at a time, and a processor one service a core.

    name: of the device. slots: services at once: 1 for a card, the cores of a processor (>= 1).
    Raises ValueError for values outside these ranges.
    Source: MIST Fig. 1 (b) and footnote 3: one processor serves clusters of several clients.
    """

    name: str
    slots: int = 1

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name must not be empty")
        if self.slots < 1:
            raise ValueError(f"slots must be >= 1, got {self.slots}")

    @property
    def shared(self) -> dict[str, dict[str, object]]:
        """The description on which its clients must agree (`ClientTraits.shared_parts`)."""
        return {f"device {self.name}": {"slots": self.slots}}

    def shared_by(self, parts: SharedParts | None, env: Environment) -> simpy.Resource:
        """Return its slots in a simulation; all clients that name it get the same ones."""

        def make() -> simpy.Resource:
            return simpy.Resource(env, self.slots)

        return (parts or SharedParts()).part("device", self.name, make)
