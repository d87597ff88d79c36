"""Requests that name LoRA adapters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mist_sim.core.request import Request

BASE = "base"
"""The name that stands for no adapter: the model's own weights."""


def with_adapters(
    requests: Iterator[Request], drawn: Iterator[str], names: Sequence[str]
) -> Iterator[Request]:
    """Pass requests on, each of which names an adapter, or none where `BASE` is drawn.

    All requests of a conversation name the one that its first request drew. KV entries differ by
    adapter, so equal tokens under two adapters get different content ids (vLLM: the adapter's name
    is part of the hash of a block, `generate_block_hash_extra_keys`).

    names: all names, in an order that tells them apart.
    """
    numbers = {name: number for number, name in enumerate(names)}
    of_session: dict[int, str] = {}
    for request, name in zip(requests, drawn, strict=False):
        own = name
        if request.session_id is not None:
            own = of_session.setdefault(request.session_id, name)
        request.adapter = None if own == BASE else own
        if request.content:
            number = numbers[own]
            request.content = tuple(
                [(content * len(names) + number, length) for content, length in request.content]
            )
        yield request
