"""Offers of GPUs: dollars of one GPU an hour, by provider, with date and source (`prices.csv`)."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources
from statistics import median
from typing import Literal, get_args

from mist_sim.errors import ScenarioError, brief, did_you_mean

PriceKind = Literal["on_demand", "spot", "reserved_1y", "reserved_3y"]
"""Terms of a rent: by the hour, until somebody bids more, or for one or three years."""

_KINDS: tuple[PriceKind, ...] = get_args(PriceKind)
_WORDS: dict[PriceKind, str] = {
    "on_demand": "on demand",
    "spot": "spot",
    "reserved_1y": "1-year reserved",
    "reserved_3y": "3-year reserved",
}


@dataclass(frozen=True, slots=True)
class Offer:
    """A provider's price of a GPU of the catalog.

    on_demand, spot, reserved_1y, reserved_3y: dollars per hour of one GPU, None without such an
        offer. num_gpus: of the rented machine. date: of the price list, as exactly as known.
    """

    gpu: str
    provider: str
    num_gpus: int
    on_demand: float | None
    spot: float | None
    reserved_1y: float | None
    reserved_3y: float | None
    date: str
    source: str

    def price(self, kind: PriceKind) -> float | None:
        """Return the dollars of one GPU an hour; None where there is no such offer."""
        found: float | None = getattr(self, kind)
        return found


@cache
def offers() -> tuple[Offer, ...]:
    """Return all offers of the catalog, by GPU and provider."""
    text = (resources.files("mist_sim.hardware") / "prices.csv").read_text("utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    found = [_offer(row) for row in rows]
    return tuple(sorted(found, key=lambda offer: (offer.gpu, offer.provider, offer.num_gpus)))


def _offer(row: dict[str, str]) -> Offer:
    number = int(row["num_gpus"])
    each = {kind: float(row[kind]) / number if row[kind] else None for kind in _KINDS}
    return Offer(
        gpu=row["gpu"],
        provider=row["provider"],
        num_gpus=number,
        date=row["date"],
        source=row["source"],
        **each,
    )


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars of one GPU an hour, and where they come from."""

    dollars: float
    origin: str


def price_of(gpu: str, kind: PriceKind, provider: str | None = None) -> Price:
    """Return the hourly price of one GPU: the median of its offers, or of a provider's.

    Raises ScenarioError without an offer.
    """
    of_gpu = [offer for offer in offers() if offer.gpu == gpu]
    named = [offer for offer in of_gpu if provider in (None, offer.provider)]
    asking = [(offer, offer.price(kind)) for offer in named]
    prices = [(offer, price) for offer, price in asking if price is not None]
    what = _WORDS[kind]
    if prices:
        whose = ", ".join(sorted({offer.provider for offer, _ in prices}))
        dates = ", ".join(sorted({offer.date for offer, _ in prices}))
        number = f"{what}, median of {len(prices)}" if len(prices) > 1 else what
        return Price(median(price for _, price in prices), f"{number} ({whose}; {dates})")
    whose = f" of {provider}" if provider else ""
    known = sorted({offer.provider for offer in of_gpu if offer.price(kind) is not None})
    others = f"; there are offers of {', '.join(known)}" if known else ""
    raise ScenarioError(
        f"gpu_price must be given for {gpu}: the catalog has no {what} price{whose} for it"
        f"{others} (mist list prices)"
    )


def check_provider(name: str) -> None:
    """Raise ScenarioError for a provider without offers."""
    known = sorted({offer.provider for offer in offers()})
    if name not in known:
        hint = did_you_mean(name, known)
        raise ScenarioError(f"provider has no {brief(name)}{hint} Known: {', '.join(known)}")
