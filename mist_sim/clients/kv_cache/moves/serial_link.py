"""A way that copies take one after the other."""

from __future__ import annotations


class SerialLink:
    """The way between the GPUs of an engine and memory below them, in one direction."""

    def __init__(self) -> None:
        self._free_at = 0.0

    def send(self, seconds: float, now: float) -> float:
        """Queue a copy behind those under way; return the time of its end (seconds)."""
        self._free_at = max(now, self._free_at) + seconds
        return self._free_at
