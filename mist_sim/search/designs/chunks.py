"""The chunks with which designs are tried: tokens of an engine's step."""

from __future__ import annotations

from collections.abc import Iterable

USUAL = (512, 2048, 8192)
"""Chunks that matter. 512 and 2,048 are those of Sarathi-Serve's evaluation, for strict and for
relaxed limits (arXiv:2403.02310, section 5); 8,192 is what vLLM's server takes on GPUs of 70 GiB
and more (`get_batch_defaults` in vllm/engine/arg_utils.py), and what its guide on optimization
recommends for throughput, as it does 2,048 for even gaps."""

MOST = 3
"""Chunks to try in all, so that a table stays short."""


def chunks_to_try(own: Iterable[int]) -> tuple[int, ...]:
    """Return the chunks to try: the scenario's own first, then `USUAL` ones, three in all.

    own: chunks of the scenario's engines; ignored if they differ.
    """
    sizes = sorted(set(own))
    first = sizes if len(sizes) == 1 else []
    return (*first, *[size for size in USUAL if size not in first])[:MOST]
