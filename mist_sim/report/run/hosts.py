"""The host that was assumed for GPUs on PCIe, above everything else: it may decide a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text


def host_lines(worth: Mapping[str, Mapping[str, Any]]) -> Iterator[Text]:
    """Yield the assumed host, its effect, and how to tell which host is present.

    One paragraph for clients with equal values, with an empty line after it.
    worth: the summary's `assumed_host`.
    """
    for found in {tuple(each.values()): each for each in worth.values()}.values():
        here, there = found["communication_ms"], found["other_communication_ms"]
        yield Text(
            f"host of the GPUs assumed: {found['host']}, slow and without peer access. In a step "
            f"of {found['num_tokens']:,} tokens they spend {here:,.4g} ms on one another; on "
            f"{found['other_host']} it would be {there:,.4g} ms. `nvidia-smi topo -p2p r` tells "
            "which is yours (OK between all GPUs: peer access); say it with clients.N.host\n"
        )
