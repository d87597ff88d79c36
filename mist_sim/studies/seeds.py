"""The seeds of independent runs."""

from __future__ import annotations

import numpy as np

_STREAM = 7  # the children of streams have keys of three numbers (mist_sim.rng)


def seeds_from(seed: int, count: int) -> tuple[int, ...]:
    """Return `count` seeds: the given one, and others drawn from it.

    Other seeds give others, and a longer list begins like a shorter one. They fit into 63 bits.
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(_STREAM,))
    drawn = sequence.generate_state(count - 1, np.uint64)
    return (seed, *(int(value >> np.uint64(1)) for value in drawn))
