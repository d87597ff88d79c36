"""GPUs of a retrieval client: one group per model, of which one works at a time.

The client writes the passes of each model on a track of its own, from which watts, joules and
dollars are computed. The search's cores are in no track: their watts are unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mist_sim.hardware.devices.specs import GpuSpec
from mist_sim.hardware.gpu_group import GpuGroup, GpuWork
from mist_sim.hardware.machine import Machine
from mist_sim.hardware.power import Array, DrawConfidence
from mist_sim.hardware.work import StepCounts


@dataclass(frozen=True, slots=True)
class Waiting:
    """An idle group of GPUs while another group works."""

    group: Machine

    @property
    def gpu(self) -> GpuSpec:
        """The GPU of the group."""
        return self.group.gpu

    @property
    def num_gpus(self) -> int:
        """GPUs of the group."""
        return self.group.num_gpus

    @property
    def gpus_an_engine(self) -> int:
        """GPUs that load the weights together."""
        return self.group.gpus_an_engine

    @property
    def weight_bytes(self) -> float:
        """Bytes of the weights."""
        return self.group.weight_bytes

    @property
    def price(self) -> float | None:
        """Dollars of a GPU an hour; None: as in the catalog of prices."""
        return self.group.price

    @property
    def idle_watts(self) -> float:
        """Watts of one idle GPU."""
        return self.group.idle_watts

    def work(self, counts: StepCounts, busy: Array) -> GpuWork:
        """Return no work."""
        nothing = np.zeros_like(busy)
        return GpuWork(nothing, nothing)


@dataclass(frozen=True, slots=True)
class PassMachine:
    """The GPUs of several models, each of which has a track of steps.

    models: in the order of the tracks.
    """

    models: tuple[Machine, ...]
    num_drafts: int = 0

    @property
    def groups(self) -> Sequence[GpuGroup]:
        """A group for each model."""
        return self.models

    @property
    def watts_origin(self) -> DrawConfidence:
        """Origin of the watts: measured only if those of all groups are."""
        origins = [model.watts_origin for model in self.models]
        return origins[0] if len(set(origins)) == 1 else "spec-only"

    def of_track(self, number: int) -> OneAtWork:
        """Return these GPUs for the steps of a track, in which only one model works."""
        return OneAtWork(self.models, number % len(self.models))


@dataclass(frozen=True, slots=True)
class OneAtWork:
    """The GPUs of several models in steps of one of them. working: its number."""

    models: tuple[Machine, ...]
    working: int
    num_drafts: int = 0

    @property
    def groups(self) -> Sequence[GpuGroup]:
        """A group for each model."""
        models = enumerate(self.models)
        return [model if k == self.working else Waiting(model) for k, model in models]

    @property
    def watts_origin(self) -> DrawConfidence:
        """Where the watts come from."""
        return PassMachine(self.models).watts_origin
