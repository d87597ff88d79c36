"""Layouts of clients that changed theirs, for the summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mist_sim.hardware.layout_period import LayoutPeriod


def layouts_summary(layouts: Mapping[str, tuple[LayoutPeriod, ...]]) -> list[dict[str, Any]]:
    """Return every layout of each client that changed its layout.

    start: end of the last step in the layout before; ready: when steps in this one could begin,
        seconds.
    layout: its description. num_gpu_blocks: KV blocks of all its engines. collectives: how they are
        timed, for a client on several nodes.
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
