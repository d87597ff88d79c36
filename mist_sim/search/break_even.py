"""The price of a GPU at which two scenarios of a comparison cost the same per token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isnan
from typing import NamedTuple

COST_AT_GOODPUT = "cost_per_million_output_tokens_at_goodput_usd"
COST = "cost_per_million_output_tokens_usd"


class Priced(NamedTuple):
    """A scenario with its prices.

    cost: dollars of a million output tokens. electricity: the share of them that is electricity.
    gpus: the kinds of its GPUs. gpu_price: dollars of one an hour, on average.
    """

    name: str
    cost: float
    electricity: float
    gpus: frozenset[str]
    gpu_price: float


def break_even(cases: Sequence[Priced], where: str) -> list[str]:
    """Return the prices at which GPUs of several kinds cost as much a token.

    First up to which price those of the cheapest case stay so, then from which on others would be.

    where: at which rate they were run, for the reader. Empty where fewer than two have prices.
    """
    known = [case for case in cases if not (isnan(case.cost) or isnan(case.gpu_price))]
    if len(known) < 2:
        return []
    cheapest = min(known, key=lambda case: case.cost)
    others = [case for case in known if case.gpus != cheapest.gpus]
    lines = [*_lines(others, cheapest)]
    dearer = [case for case in others if case.cost > cheapest.cost]
    if dearer:
        lines.insert(0, _most(cheapest, min(dearer, key=lambda case: case.cost)))
    return [f"{line}, {where}" for line in lines]


def _most(cheapest: Priced, second: Priced) -> str:
    """Return up to which price the cheapest stays so."""
    rent = cheapest.cost * (1 - cheapest.electricity)
    price = cheapest.gpu_price * (second.cost - cheapest.cost * cheapest.electricity) / rent
    return (
        f"{cheapest.name} stays cheaper a token than {second.name} up to {price:.3g} $ a "
        f"GPU-hour (now {cheapest.gpu_price:.3g})"
    )


def _lines(others: Sequence[Priced], cheapest: Priced) -> Iterator[str]:
    for case in others:
        if case.cost == cheapest.cost:
            continue
        rent = case.cost * (1 - case.electricity)
        least = cheapest.cost - case.cost * case.electricity
        if least <= 0:
            yield f"{case.name} costs more than {cheapest.name} even at no rent, by its electricity"
            continue
        price = case.gpu_price * least / rent
        yield (
            f"{case.name} costs as much a token as {cheapest.name} at {price:.3g} $ a GPU-hour "
            f"(now {case.gpu_price:.3g})"
        )
