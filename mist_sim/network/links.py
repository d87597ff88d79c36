"""A link with a latency and a bandwidth, first come, first served."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from simpy.events import Event

from mist_sim.environment import MOVE, Environment
from mist_sim.units import BytesPerSecond, Seconds


@dataclass(kw_only=True)
class Link:
    """Carries one transfer after the other; the next one starts when the last byte has left.

    bandwidth: bytes a second (> 0). latency: seconds between leaving and arriving (>= 0).
    Raises ValueError for values outside these ranges.
    """

    bandwidth: BytesPerSecond
    latency: Seconds = 0.0
    _free_at: float = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.bandwidth < math.inf:
            raise ValueError(f"bandwidth must be finite and > 0 B/s, got {self.bandwidth}")
        if not 0 <= self.latency < math.inf:
            raise ValueError(f"latency must be finite and >= 0 s, got {self.latency}")

    def start(self, env: Environment) -> None:
        """Join a simulation: begin idle."""
        self._env = env
        self._free_at = 0.0

    def send(self, num_bytes: float) -> Event:
        """Send bytes behind those that wait; the event happens when the last one is there."""
        env = self._env
        self._free_at = max(env.now, self._free_at) + num_bytes / self.bandwidth
        return env.at(self._free_at + self.latency, MOVE)
