"""Options of a group that is scaled."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mist_sim.lifecycle.autoscaling.base import Autoscaler
from mist_sim.units import Seconds, require_quantities


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaling:
    """A group of clients whose number a policy controls.

    clients: their names, or that of a group of copies; the first ones start first.
    policy: decides the number.
    min: least number of clients; with 0 the group may shrink to none, and the next request starts
        one.
    max: largest number; None: all.
    initial: number at the start of the run; None: `min`.
    interval: time between two looks.
    cool_down: time after any change in which no client is removed.

    Raises ValueError for an empty group, and for numbers and times out of range.
    """

    clients: tuple[str, ...]
    policy: Autoscaler
    min: int = 1
    max: int | None = None
    initial: int | None = None
    interval: Seconds = 10.0
    cool_down: Seconds = 60.0

    def __post_init__(self) -> None:
        require_quantities(self)
        if not self.clients:
            raise ValueError("clients must have at least one entry, got none")
        if self.min < 0:
            raise ValueError(f"min must be >= 0, got {self.min}")
        if self.max is not None and self.max < 1:
            raise ValueError(f"max must be >= 1, got {self.max}")
        if self.max is not None and self.min > self.max:
            raise ValueError(f"min must be <= max ({self.max}), got {self.min}")
        if self.initial is not None:
            most = math.inf if self.max is None else self.max
            if not self.min <= self.initial <= most:
                raise ValueError(
                    f"initial must be in [min, max] ([{self.min}, {most}]), got {self.initial}"
                )
        if not 0 < self.interval < math.inf:
            raise ValueError(f"interval must be finite and > 0 s, got {self.interval}")
        if not 0 <= self.cool_down < math.inf:
            raise ValueError(f"cool_down must be finite and >= 0 s, got {self.cool_down}")

    def problem(self, num_clients: int) -> str | None:
        """Return a problem of the numbers for a group of so many clients, or None."""
        for name in ("min", "max", "initial"):
            number = getattr(self, name)
            if number is not None and number > num_clients:
                return f"{name} must be <= {num_clients}, the clients of the group, got {number}"
        return None

    @property
    def num_at_first(self) -> int:
        """Clients that are up at the start of the run."""
        return self.min if self.initial is None else self.initial
