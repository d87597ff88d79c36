"""Clients whose layout changed: what the summary says of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mist_sim.hardware.layout_period import LayoutPeriod


def layouts_summary(layouts: Mapping[str, tuple[LayoutPeriod, ...]]) -> list[dict[str, Any]]:
    """Return every layout of the clients that changed theirs, client by client.

    start: when the steps of the one before had ended; ready: when its own could begin, seconds.
    layout: what it is. num_gpu_blocks: KV blocks of all its engines. collectives: how they are
    timed, for one that lies on several nodes.
    """
    return [
        {
            "client": name,
            "start": period.start,
            "ready": period.ready,
            "layout": period.title,
            "num_gpu_blocks": period.num_gpu_blocks,
        }
        | ({"collectives": period.collectives} if period.collectives else {})
        for name, periods in layouts.items()
        for period in periods
    ]
