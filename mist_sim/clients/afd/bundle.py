"""A bundle: its batches, who sits in their slots, and its clock."""

from __future__ import annotations

import numpy as np

from mist_sim.clients.afd.clock import BundleClock, Pass, Phases
from mist_sim.clients.afd.config import BundleConfig
from mist_sim.clients.afd.slots import BatchSlots, Resident


class Bundle:
    """The batches of a bundle, and when each of its phases begins and ends.

    config: what it consists of. batches: their slots. clock: how far each is.
    attention_work, ffn_work: time that workers have spent, added up over all of a kind.
    """

    def __init__(self, config: BundleConfig) -> None:
        self.config = config
        self.batches = [
            BatchSlots(config.attention_workers, config.slots) for _ in range(config.batches)
        ]
        self.clock = BundleClock(config.batches)
        self.attention_work = self.ffn_work = 0.0

    def next_batch(self) -> int | None:
        """Return which batch is in attention next: the first to be ready; None: all are empty."""
        busy = [k for k, slots in enumerate(self.batches) if slots.num_filled]
        return min(busy, key=self.clock.ready.__getitem__) if busy else None

    def phases(self, batch: int, num_steps: int = 1) -> list[Phases]:
        """Return how long the phases of the next steps of a batch take, while its members stay.

        Attention ends with the worker that holds the most tokens.
        """
        config, slots = self.config, self.batches[batch]
        c = config.coefficients
        requests = config.slots_per_batch if config.static_graph else slots.num_filled
        transfer = c.communication_time(requests / config.ffn_workers) / 2
        ffn = c.ffn_time(requests / config.ffn_workers)
        if num_steps == 1:
            return [Phases(c.attention_time(slots.held.max().item()), transfer, ffn)]
        held = slots.held + np.arange(num_steps)[:, None] * slots.filled
        attention: list[float] = c.attention_time(held.max(axis=1)).tolist()
        return [Phases(time, transfer, ffn) for time in attention]

    def begin(self, step: Pass) -> list[Resident]:
        """Let the next pass of a batch begin; return who leaves at its end, out of their slots."""
        config, slots = self.config, self.batches[step.batch]
        c = config.coefficients
        num_working = config.attention_workers
        if not config.static_graph:
            num_working = int(np.count_nonzero(slots.filled))
        self.attention_work += c.alpha_a * slots.held.sum().item() + num_working * c.beta_a
        self.ffn_work += (step.ffn_end - step.ffn_start) * config.ffn_workers
        self.clock.begin(step)
        return slots.advance()

    def run_pass(self, batch: int, now: float = 0.0) -> tuple[Pass, list[Resident]]:
        """Make the next step of a batch that is not empty; return it, and who leaves at its end.

        now: the attention begins no earlier.
        """
        step = self.clock.next_pass(batch, self.phases(batch)[0], now)
        return step, self.begin(step)
