"""The queue of a pipeline, in which preempted sequences wait for batches in flight."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mist_sim.clients.engine.queued.fresh import FreshQueue
from mist_sim.clients.scheduling.order import FirstComeFirstServed


class Watched(FirstComeFirstServed):
    """Counts which sequences are looked at."""

    num_seen = 0

    def __iter__(self) -> Iterator[Any]:
        for each in super().__iter__():
            self.num_seen += 1
            yield each


@pytest.mark.parametrize("num_stale", [0, 1, 3])
def test_the_head_is_found_without_a_look_at_all_who_wait(num_stale):
    watched = Watched()
    queue = FreshQueue(watched, passes_over=True)
    waiting: list[Any] = [object() for _ in range(50)]
    for each in waiting:
        queue.add(each)
    queue.stale.update(waiting[:num_stale])
    assert queue.has_fresh
    assert queue.head() is waiting[num_stale]
    assert watched.num_seen == num_stale + 1
