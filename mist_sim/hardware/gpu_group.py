"""The seam to the GPUs behind a client: their watts, weights and prices.

A machine consists of groups of equal GPUs. Those of an engine are one group (`machine.py`), those
of a bundle two: its attention workers and its FFN workers (`hardware/afd.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from mist_sim.hardware.devices import GpuSpec
from mist_sim.hardware.power import Array, DrawConfidence
from mist_sim.hardware.work import StepCounts


class GpuWork(NamedTuple):
    """Work of a group of GPUs in runs of steps; arrays of one item a run.

    seconds: of all its GPUs that were at work, added up. watts: of one of them, on average.
    """

    seconds: Array
    watts: Array


class GpuGroup(Protocol):
    """Equal GPUs of a client that have the same part in each step."""

    @property
    def gpu(self) -> GpuSpec:
        """The GPU that all of them are."""

    @property
    def num_gpus(self) -> int:
        """GPUs of all engines, or of all workers of a kind."""

    @property
    def gpus_an_engine(self) -> int:
        """GPUs of one engine or worker, which load its weights together."""

    @property
    def weight_bytes(self) -> float:
        """Bytes of weights that one engine or worker loads."""

    @property
    def price(self) -> float | None:
        """Dollars of a GPU an hour; None: as in the catalog of prices."""

    @property
    def idle_watts(self) -> float:
        """Watts of one idle GPU."""

    def work(self, counts: StepCounts, busy: Array) -> GpuWork:
        """Return its work in runs of steps. busy: as recorded of each run, seconds."""


class GpuMachine(Protocol):
    """The GPUs behind a client, group by group."""

    @property
    def groups(self) -> Sequence[GpuGroup]:
        """At least one; in the order of the client's groups of engines, if it has as many."""

    @property
    def num_drafts(self) -> int:
        """Draft tokens of each decode, verified in a step."""

    @property
    def watts_origin(self) -> DrawConfidence:
        """Where its watts come from."""


class MachineByTrack(GpuMachine, Protocol):
    """A machine whose groups take turns; each has its own track of steps."""

    def of_track(self, number: int) -> GpuMachine:
        """Return the machine of a track's steps: the same groups, some of them idle.

        number: of the track among those of its client, from 0.
        """


def num_gpus(machine: GpuMachine | None) -> int:
    """Return the number of GPUs of a machine; 0 for a client without one."""
    return sum(group.num_gpus for group in machine.groups) if machine is not None else 0


def without_watts(machines: Iterable[GpuMachine | None]) -> list[str]:
    """Return the names of GPUs whose power is not known."""
    groups = (group for machine in machines if machine is not None for group in machine.groups)
    return list(dict.fromkeys(group.gpu.name for group in groups if group.gpu.power is None))


class LayoutPeriod(NamedTuple):
    """A layout that a client had, until the next one starts.

    start: when the steps of the layout before had ended, seconds. ready: when its own could begin.
    title: printable name ("TP 2 x PP 2"). machine: its GPUs; None: unknown.
    num_lanes: of all engines. num_gpu_blocks: KV blocks of all engines.
    collectives: how its ranks sum over several nodes; empty: one node.
    """

    start: float
    ready: float
    title: str
    machine: GpuMachine | None
    num_lanes: int
    num_gpu_blocks: int
    collectives: str
