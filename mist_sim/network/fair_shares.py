"""Max-min fair rates of flows that share links, a few of them.

No flow's rate can be raised without lowering that of one which has no more: links fill up one after
the other, and where one is full, those who cross it keep what they have (Bertsekas and Gallager,
Data Networks, 2nd ed., §6.5.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Path = tuple[int, ...]
"""The links that a flow crosses, each once."""


def fill_up(capacities: Sequence[float], counts: Mapping[Path, int]) -> dict[Path, float]:
    """Return the rate of a flow of each path, bytes/s.

    capacities: bytes/s of every link. counts: flows of each path (>= 1).
    """
    load: dict[int, int] = {}
    for path, number in counts.items():
        for link in path:
            load[link] = load.get(link, 0) + number
    free = {link: capacities[link] for link in load}
    rates: dict[Path, float] = {}
    left = list(counts)
    while left:
        level, full = min([(free[link] / number, link) for link, number in load.items()])
        stay = []
        for path in left:
            if full not in path:
                stay.append(path)
                continue
            rates[path] = level
            number = counts[path]
            for link in path:
                free[link] -= level * number
                load[link] -= number
                if not load[link]:
                    del load[link]
        left = stay
    return rates
