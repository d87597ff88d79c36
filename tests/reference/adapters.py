"""LoRA adapters, step by step: who may be admitted, and what a step waits for."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True)
class Adapters:
    """Adapters of an engine.

    - Who waits may come in when it has no adapter, or one that somebody has who runs and goes on,
      or when fewer than `most` adapters are had by these. The first in the queue that may comes in.
    - GPUs hold `most` adapters, the host `most_in_host`. A step waits until those of its members
      are there, in the order of admission; the one that no step used for longest makes room.
    """

    most: int
    most_in_host: int
    copy: float
    read: float
    on_gpu: list[str] = field(default_factory=list, init=False)
    in_host: list[str] = field(default_factory=list, init=False)

    def may_come(self, queue: Sequence[Any], running: Sequence[Any]) -> list[Any]:
        had = {live.job.adapter for live in running} - {None}
        free = len(had) < self.most
        return [live for live in queue if live.job.adapter in {None, *had} or free]

    def first(self, queue: Sequence[Any], running: Sequence[Any]) -> Any:
        return (self.may_come(queue, running) or queue)[0]

    def stops(self, queue: Sequence[Any], running: Sequence[Any]) -> bool:
        return bool(queue) and not self.may_come(queue, running)

    def bring(self, adapters: Sequence[str | None]) -> float:
        """Use adapters in a step; return the seconds that it waits for them."""
        seconds = 0.0
        for adapter in adapters:
            if adapter is None:
                continue
            if adapter not in self.in_host:
                seconds += self.read
                self.in_host = self.in_host[len(self.in_host) == self.most_in_host :]
            else:
                self.in_host.remove(adapter)
            if adapter not in self.on_gpu:
                seconds += self.copy
                self.on_gpu = self.on_gpu[len(self.on_gpu) == self.most :]
            else:
                self.on_gpu.remove(adapter)
            self.in_host.append(adapter)
            self.on_gpu.append(adapter)
        return seconds
