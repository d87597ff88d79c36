"""How often Python looks for garbage that refers to itself."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

OBJECTS_BETWEEN_COLLECTIONS = 500_000


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let Python look for cyclic garbage less often than after every 700 new objects.

    Clients, processes and their events refer to one another, and a run makes many that stay; of
    such garbage it makes little. Afterwards Python looks as often as before.
    """
    before = gc.get_threshold()
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
