"""A bundle: its batches, the requests in their slots, and its clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mist_sim.bounds import BUNDLE, LAYERS
from mist_sim.clients.afd.bundle_clock import BundleClock, JointClock, Pass, Phases
from mist_sim.clients.afd.slots import BatchSlots, Resident
from mist_sim.hardware.afd import AfdCoefficients


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleConfig:
    """A bundle of attention and FFN workers.

    coefficients: of its phases; times have their unit.
    attention_workers, ffn_workers: x and y of xA-yF.
    slots: requests of an attention worker in one batch (B).
    batches: in flight (m), each with slots of its own.
    static_graph: whether an empty slot costs FFN and communication as much as a full one, as it
        does where CUDA graphs of one size are replayed.
    layers: a step is divided into them evenly, and each goes to the FFN and back; None: a step goes
        there and back once.
    joint_steps: whether all batches begin each of their steps together, as parts of one batch of an
        engine do; else each begins its next step when it is back from the last.
    Raises ValueError for numbers below 1 and beyond the bounds (`mist_sim.bounds.BUNDLE`), and for
    joint steps without layers.
    """

    coefficients: AfdCoefficients
    attention_workers: int
    ffn_workers: int = 1
    slots: int
    batches: int = 2
    static_graph: bool = True
    layers: int | None = None
    joint_steps: bool = False

    def __post_init__(self) -> None:
        for name, most in BUNDLE.items():
            value = getattr(self, name)
            if not 1 <= value <= most:
                raise ValueError(f"{name} must be from 1 to {most}, got {value}")
        if self.layers is not None and not 1 <= self.layers <= LAYERS:
            raise ValueError(f"layers must be from 1 to {LAYERS}, got {self.layers}")
        if self.joint_steps and self.layers is None:
            raise ValueError(
                "layers are required with joint_steps: without them no batch would be in attention "
                "while another one is in the FFN of the layer before; set layers, such as 61"
            )

    @property
    def slots_per_batch(self) -> int:
        """Slots of all attention workers in one batch."""
        return self.slots * self.attention_workers

    @property
    def num_workers(self) -> int:
        """Workers of both kinds."""
        return self.attention_workers + self.ffn_workers

    @property
    def num_slots(self) -> int:
        """Slots of all batches."""
        return self.slots_per_batch * self.batches


class StepEnd(NamedTuple):
    """A step with a known end: its batch, the time, and the requests that leave."""

    batch: int
    time: float
    leaving: list[Resident]


class Bundle:
    """The batches of a bundle, and the times of their phases.

    config: the bundle's sizes and times. batches: their slots. clock: progress of each batch.
    num_steps: that have begun. attention_work, ffn_work: time that workers have spent on them,
        added up over all of a kind. last_end: of the passes that have begun, the latest.
    """

    def __init__(self, config: BundleConfig) -> None:
        self.config = config
        self.batches = [
            BatchSlots(config.attention_workers, config.slots) for _ in range(config.batches)
        ]
        kind = JointClock if config.joint_steps else BundleClock
        self.clock = kind(config.batches, config.layers or 1)
        self.attention_work = self.ffn_work = self.last_end = 0.0
        self.num_steps = 0
        self._phases = [Phases(0.0, 0.0, 0.0)] * config.batches  # of the steps under way
        self._works = [(0.0, 0.0)] * config.batches  # of attention and FFN in the latest steps

    @property
    def filled(self) -> list[int]:
        """The batches that have members."""
        return [k for k, slots in enumerate(self.batches) if slots.num_filled]

    def next_batch(self) -> int | None:
        """Return which batch is in attention next: the first to be ready; None: all are empty."""
        busy = self.filled
        return min(busy, key=self.clock.ready.__getitem__) if busy else None

    def phases(self, batch: int, num_steps: int = 1) -> list[Phases]:
        """Return how long the phases of a layer take in the next steps, while members stay.

        Attention ends with the worker that holds the most tokens.
        """
        config, slots, layers = self.config, self.batches[batch], self.clock.layers
        c = config.coefficients
        requests = config.slots_per_batch if config.static_graph else slots.num_filled
        transfer = c.communication_time(requests / config.ffn_workers) / 2 / layers
        ffn = c.ffn_time(requests / config.ffn_workers) / layers
        if num_steps == 1:
            return [Phases(c.attention_time(slots.held.max().item()) / layers, transfer, ffn)]
        held = slots.held + np.arange(num_steps)[:, None] * slots.filled
        attention: list[float] = (c.attention_time(held.max(axis=1)) / layers).tolist()
        return [Phases(time, transfer, ffn) for time in attention]

    def begin(self, step: Pass) -> list[StepEnd]:
        """Begin the next pass of a batch; return the steps whose end is known now."""
        if self.clock.is_first(step.batch):
            self._work(step)
        self.last_end = max(self.last_end, step.end)
        return [
            StepEnd(batch, self.clock.ready[batch], self.batches[batch].advance())
            for batch in self.clock.begin(step, self.filled)
        ]

    def _work(self, step: Pass) -> None:
        """Add the workers' time for a step that begins, in all layers."""
        config, slots = self.config, self.batches[step.batch]
        c = config.coefficients
        num_working = config.attention_workers
        if not config.static_graph:
            num_working = int(np.count_nonzero(slots.filled))
        self.num_steps += 1
        attention = c.alpha_a * slots.held.sum().item() + num_working * c.beta_a
        self.attention_work += attention
        ffn = (step.ffn_end - step.ffn_start) * self.clock.layers
        self.ffn_work += ffn * config.ffn_workers
        self._works[step.batch] = attention, ffn * config.ffn_workers

    def lose_step(self, batch: int, now: float, *, is_counted: bool) -> None:
        """Take back the step of a batch that is under way, since the workers stop now.

        is_counted: whether its end was known, so that its members have it behind them already.
        """
        attention, ffn = self._works[batch]
        self.attention_work -= attention
        self.ffn_work -= ffn
        self.num_steps -= 1
        self.last_end = min(self.last_end, now)
        if is_counted:
            self.batches[batch].num_steps -= 1

    def run_pass(self, batch: int, now: float = 0.0) -> tuple[Pass, list[StepEnd]]:
        """Make the next pass of a batch that is not empty; return it, and the steps that it ends.

        now: the attention begins no earlier.
        """
        if self.clock.is_first(batch):
            self._phases[batch] = self.phases(batch)[0]
        step = self.clock.next_pass(batch, self._phases[batch], now)
        return step, self.begin(step)
