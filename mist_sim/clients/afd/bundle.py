"""A bundle's clock: attention, transfer, wait, FFN, transfer, wait, for each batch in flight.

Attention workers take one batch after the other, in the order in which these are ready; so do the
FFN workers, who share a batch evenly. A batch leaves attention when the slowest worker is done.
Each transfer takes half of the communication time, and batches do not overtake one another. So
when the attention of a batch begins, it is known when its pass ends, whatever happens meanwhile.
"""

from __future__ import annotations

from typing import NamedTuple

from mist_sim.clients.afd.config import BundleConfig
from mist_sim.clients.afd.slots import BatchSlots, Resident


class Pass(NamedTuple):
    """One step of a batch.

    ready: when it had returned from the pass before. start, attention_end, ffn_start, ffn_end:
    of its phases. end: when it is back, and its tokens are there.
    attention_work: time that the attention workers spend on it, added up.
    """

    batch: int
    ready: float
    start: float
    attention_end: float
    ffn_start: float
    ffn_end: float
    end: float
    attention_work: float


class Bundle:
    """The batches of a bundle, and when each of its phases begins and ends.

    config: what it consists of. attention_free, ffn_free: when the workers have done what they
    were given. ready: when each batch is back from its last pass.
    attention_work, ffn_work: time that workers have spent, added up over all of a kind.
    """

    def __init__(self, config: BundleConfig) -> None:
        self.config = config
        self.batches = [
            BatchSlots(config.attention_workers, config.slots) for _ in range(config.batches)
        ]
        self.ready = [0.0] * config.batches
        self.attention_free = self.ffn_free = 0.0
        self.attention_work = self.ffn_work = 0.0

    def next_batch(self) -> int | None:
        """Return which batch is in attention next: the first to be ready; None: all are empty."""
        busy = [k for k, slots in enumerate(self.batches) if slots.num_filled]
        return min(busy, key=self.ready.__getitem__) if busy else None

    def run_pass(self, batch: int, now: float = 0.0) -> tuple[Pass, list[Resident]]:
        """Make the next step of a batch that is not empty; return it, and who leaves at its end.

        now: the attention begins no earlier.
        """
        config, slots = self.config, self.batches[batch]
        c, num_workers = config.coefficients, config.attention_workers
        ready = self.ready[batch]
        start = max(ready, self.attention_free, now)
        self.attention_free = attention_end = start + c.attention_time(slots.held.max().item())
        if config.static_graph:
            requests, num_working = config.slots_per_batch, num_workers
        else:
            requests, num_working = slots.num_filled, int((slots.filled > 0).sum())
        work = c.alpha_a * slots.held.sum().item() + num_working * c.beta_a
        requests_per_ffn = requests / config.ffn_workers
        leg = c.communication_time(requests_per_ffn) / 2
        ffn = c.ffn_time(requests_per_ffn)
        ffn_start = max(attention_end + leg, self.ffn_free)
        self.ffn_free = ffn_end = ffn_start + ffn
        self.ready[batch] = end = ffn_end + leg
        self.attention_work += work
        self.ffn_work += ffn * config.ffn_workers
        leaving = slots.advance()
        return Pass(batch, ready, start, attention_end, ffn_start, ffn_end, end, work), leaving
