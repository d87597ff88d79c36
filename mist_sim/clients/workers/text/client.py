"""A client of cores that work on texts before and after the model (MIST §IV-A4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

from mist_sim.clients.registry import CLIENTS
from mist_sim.clients.workers.base import Workers
from mist_sim.clients.workers.devices import Device
from mist_sim.clients.workers.processing import worker_traits
from mist_sim.clients.workers.text.times import load_times
from mist_sim.core.request import Stage
from mist_sim.stages import Augment, Postprocess, Preprocess


@CLIENTS.register("text")
@dataclass(eq=False)
class TextClient(Workers):
    """Cores that normalise, tokenise, augment, detokenise, validate and enhance texts.

    Each takes one visit, in order of arrival (MIST's scheduler "Sequential"). A stage names its
    `task`; its time is linear in the stage's tokens. The package's times were measured on one core,
    with Python's own functions and a tokenizer of the `tokenizers` package.

    num_workers: cores (>= 1). speed: of a core, as a multiple of the one measured (> 0).
    device: the processor shared with other clients; a visit takes one of its slots.
    path: a file with times of the user's machine, as `mist calibrate text` writes it; None: the
        package's.
    Raises ValueError for values out of range, and ScenarioError for a file that holds no times.
    """

    name: str
    _: KW_ONLY
    num_workers: int = 1
    speed: float = 1.0
    path: str | None = None
    device: Device | None = None

    def __post_init__(self) -> None:
        kinds = [cls.kind for cls in (Preprocess, Augment, Postprocess)]
        super().__init__(self.name, worker_traits(kinds, fetches=False, device=self.device))
        if self.num_workers < 1:
            raise ValueError(f"num_workers must be >= 1, got {self.num_workers}")
        if not 0 < self.speed < float("inf"):
            raise ValueError(f"speed must be finite and > 0, got {self.speed}")
        self._times = load_times(self.path)

    def service_times(self) -> Callable[[Stage], float]:
        """Return the function for a stage's seconds: its drawn time, divided by the CPU's speed."""
        times, speed = self._times, self.speed
        return lambda stage: times(stage) / speed
