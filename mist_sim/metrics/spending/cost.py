"""Dollars of a run: own or rented machines, electricity, and what an API would have cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mist_sim.core.states import STATES
from mist_sim.hardware.machine import Machine
from mist_sim.hardware.prices import Price, PriceKind, check_provider, price_of
from mist_sim.metrics.clients.lives import RESERVED
from mist_sim.metrics.latency import Array
from mist_sim.metrics.spending.energy import Ledger, Spent
from mist_sim.units import DollarsPerKwh, DollarsPerMillionTokens

_HOUR = 3600.0
_KWH = 3.6e6  # joules
_MILLION = 1e6


@dataclass(frozen=True, kw_only=True)
class ApiPrices:
    """What an API asks for tokens, in dollars a million (>= 0).

    input: of prompts. output: of answers.
    cached_input: of prompt tokens that a prefix cache had; None: as `input`.

    Raises ValueError for negative prices.
    """

    input: DollarsPerMillionTokens
    output: DollarsPerMillionTokens
    cached_input: DollarsPerMillionTokens | None = None

    def __post_init__(self) -> None:
        for name in ("input", "output", "cached_input"):
            _check_price(name, getattr(self, name) or 0.0, "$/Mtok")


@dataclass(frozen=True, kw_only=True)
class CostOptions:
    """Which prices count.

    price: of the catalog's offers, where a client has no gpu_price: on_demand, spot, or reserved_1y
        and reserved_3y, for a commitment of one or three years.
    provider: whose offers; without one, the median of all.
    billing: reservation pays for all GPUs from the start of the run to its end, but not while a
        client is off, unless they are reserved for years; use for the time that they spend in
        steps.
    electricity: of what the machines draw, for those who pay it apart; none by default.
    api: what an API would ask for the same requests.

    Raises ValueError for negative prices, and for a commitment that is billed by use, and
    ScenarioError for a provider without offers.
    """

    price: PriceKind = "on_demand"
    provider: str | None = None
    billing: Literal["reservation", "use"] = "reservation"
    electricity: DollarsPerKwh = 0.0
    api: ApiPrices | None = None

    def __post_init__(self) -> None:
        _check_price("electricity", self.electricity, "$/kWh")
        if self.is_commitment and self.billing == "use":
            raise ValueError(
                f"billing must be reservation with price {self.price}, which is paid for whether "
                "it is used or not, got use"
            )
        if self.provider is not None:
            check_provider(self.provider)

    @property
    def is_commitment(self) -> bool:
        """Whether GPUs are reserved for years, and paid for while their client is off, too."""
        return self.price in ("reserved_1y", "reserved_3y")


def _check_price(name: str, value: float, unit: str) -> None:
    if not 0 <= value < np.inf:
        raise ValueError(f"{name} must be finite and >= 0 {unit}, got {value}")


class Bill:
    """Who cost what in a run; dollars.

    Raises ScenarioError where a machine has no price.
    """

    def __init__(self, ledger: Ledger, options: CostOptions) -> None:
        self._ledger = ledger
        self.options = options
        self.prices = gpu_prices(ledger.machines, options)

    def cost(self, client_id: int) -> Spent:
        """Return the dollars of a client in the whole run, by request and idle.

        By use, GPUs that wait cost nothing, nor does their electricity.
        """
        seconds, energy = self._ledger.gpu_seconds(client_id), self._ledger.energy(client_id)
        rent, power = self._rates(client_id)
        idle = 0.0
        if self._pays_idle:
            unused = max(
                self._paid_after(0.0, client_id) - self._ledger.busy_after(0.0, client_id), 0.0
            )
            idle = unused * rent + energy.idle * power
        return Spent(seconds.by_request * rent + energy.by_request * power, idle)

    def cost_after(self, begin: float) -> float:
        """Return the dollars of all clients from a time on."""
        total = 0.0
        for client_id, machine in enumerate(self._ledger.machines):
            if machine is None:
                continue
            rent, power = self._rates(client_id)
            in_steps, idle = self._ledger.energy_of(client_id, begin)
            gpu_seconds = self._ledger.busy_after(begin, client_id)
            if self._pays_idle:
                gpu_seconds = self._paid_after(begin, client_id)
                in_steps += idle
            total += gpu_seconds * rent + in_steps * power
        return total

    def _paid_after(self, begin: float, client_id: int) -> float:
        """Return the GPU seconds that a client has to be paid for, from a time on."""
        states = STATES if self.options.is_commitment else RESERVED
        return self._ledger.reserved_after(begin, client_id, states)

    @property
    def _pays_idle(self) -> bool:
        return self.options.billing == "reservation"

    def _rates(self, client_id: int) -> tuple[float, float]:
        """Return the dollars of a client's GPU a second, and of a joule."""
        price = self.prices[client_id]
        return (price.dollars if price else 0.0) / _HOUR, self.options.electricity / _KWH


def gpu_prices(machines: Sequence[Machine | None], options: CostOptions) -> list[Price | None]:
    """Return the price of one GPU an hour, by client; None for those without GPUs.

    Raises ScenarioError for a GPU that the catalog has no such price for, where none is given.
    """
    return [_price(machine, options) if machine else None for machine in machines]


def _price(machine: Machine, options: CostOptions) -> Price:
    if machine.price is not None:
        return Price(machine.price, "given")
    return price_of(_entry(machine), options.price, options.provider)


def _entry(machine: Machine) -> str:
    """Return the name under which a GPU is offered: that of the device that it is based on."""
    gpu = machine.cluster.gpu
    return gpu.based_on or gpu.name


def api_cost(prices: ApiPrices, requests: dict[str, Any]) -> Array:
    """Return what an API asks for each request, in dollars; nothing for those that failed.

    requests: the recorder's columns. Prompt tokens that a prefix cache had at the first admission
    count as cached.
    """
    cached = np.minimum(requests["num_cached_tokens"], requests["num_prompt_tokens"])
    cached_price = prices.input if prices.cached_input is None else prices.cached_input
    dollars = (
        (requests["num_prompt_tokens"] - cached) * prices.input
        + cached * cached_price
        + requests["num_output_tokens"] * prices.output
    )
    return np.asarray(np.where(requests["status"] == 0, dollars, 0.0) / _MILLION)
