"""The layout of a model on a client's GPUs during a part of a run, for the records."""

from __future__ import annotations

from typing import NamedTuple

from mist_sim.hardware.gpu_group import GpuMachine


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
