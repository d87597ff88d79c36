"""The program around the models: it sends branches, reads answers, calls tools, and chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from simpy.events import Event

from mist_sim.checks import check_fields
from mist_sim.clients.base import Client
from mist_sim.clients.registry import CLIENTS
from mist_sim.clients.workers.base import check_time, drawn
from mist_sim.clients.workers.growing import let_grow
from mist_sim.core.recorder import Recorder
from mist_sim.core.request import Stage
from mist_sim.core.visit import Visit
from mist_sim.durations import SecondsOrLaw
from mist_sim.environment import Environment
from mist_sim.stages import STAGES, Growing


@CLIENTS.register("application")
@dataclass(eq=False)
class ApplicationClient(Client):
    """Serves all stages that decide what follows them, such as best_of_n and tool_loop.

    It serves any number at once: the work of a gateway or an agent is small compared with a
    model's.

    name: unique in the simulation.
    base_time: time of each stage (>= 0 s), or a law of it.
    Raises ValueError for a time out of range.
    """

    name: str
    _: KW_ONLY
    base_time: SecondsOrLaw = 0.0

    def __post_init__(self) -> None:
        stages = STAGES.usable().values()
        growing = [cls for cls in stages if issubclass(cls, Growing) and not cls.is_work]
        super().__init__(self.name, [cls.kind for cls in growing])
        check_time("base_time", self.base_time)
        check_fields(self)

    def start(self, env: Environment, client_id: int, recorder: Recorder) -> None:
        """Start with fresh random streams for service times and growth."""
        super().start(env, client_id, recorder)
        self._growth = self.streams.generator(f"{self.name}: growth")
        self._times = drawn(f"{self.name}: base_time", self.streams, self.base_time)

    def restart(self) -> None:
        """Come back with no visit; random draws continue."""
        growth, times = self._growth, self._times
        super().restart()
        self._growth, self._times = growth, times

    def takes(self, stages: Sequence[Stage]) -> int:
        """Return 1 if it serves the next stage: later stages are not known before."""
        return min(1, super().takes(stages))

    def accept(self, visit: Visit) -> None:
        """Serve a visit at once, or after its drawn time."""
        self.begin(visit)
        seconds = next(self._times)
        if seconds:
            end = self.env.at(self.env.now + seconds)
            end.callbacks.append(lambda _: self._serve(visit))
        else:
            self._serve(visit)

    def _serve(self, visit: Visit, _: Event | None = None) -> None:
        if visit.is_over:
            return  # it was given up
        let_grow(self.name, visit, self._growth, self.env.now)
        self.finish(visit)

    def abort(self, visit: Visit) -> None:
        """A visit that is given up ends at once."""
        self.finish(visit)
