"""Dollars of a run: own or rented machines, electricity, and what an API would have cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from mist_sim.core.states import STATES
from mist_sim.errors import ScenarioError
from mist_sim.hardware.devices.device_loading import is_its_device
from mist_sim.hardware.gpu_group import GpuGroup, GpuMachine
from mist_sim.hardware.prices import Price, PriceKind, check_provider, price_of
from mist_sim.metrics.clients.lives import RESERVED
from mist_sim.metrics.latency import Array
from mist_sim.metrics.spending.energy import Ledger
from mist_sim.metrics.spending.spent import Spent
from mist_sim.units import DollarsPerKwh, DollarsPerMillionTokens, require_quantities

HOURS_A_MONTH = 365 * 24 / 12
"""On average over a year."""

_HOUR = 3600.0
_KWH = 3.6e6  # joules
_MILLION = 1e6


@dataclass(frozen=True, kw_only=True)
class ApiPrices:
    """Prices of an API, in dollars a million tokens (>= 0).

    input: of prompts. output: of answers.
    cached_input: of prompt tokens that a prefix cache had; None: as `input`.

    Raises ValueError for negative prices.
    """

    input: DollarsPerMillionTokens
    output: DollarsPerMillionTokens
    cached_input: DollarsPerMillionTokens | None = None

    def __post_init__(self) -> None:
        require_quantities(self)
        for name in ("input", "output", "cached_input"):
            _check_price(name, getattr(self, name) or 0.0, "$/Mtok")


@dataclass(frozen=True, kw_only=True)
class CostOptions:
    """Prices of machines, electricity and APIs.

    price: kind of the catalog's offers to use where a client has no gpu_price: on_demand, spot, or
        reserved_1y and reserved_3y, for a commitment of one or three years.
    provider: provider of the offers; None: the median of all providers.
    billing: reservation pays for all GPUs from the start of the run to its end, but not while a
        client is off, unless they are reserved for years; use for the time that they spend in
        steps.
    electricity: price of the electricity of the machines, if it is paid separately; none by
        default.
    api: prices of an API for the same requests.

    Raises ValueError for negative prices, and for a commitment that is billed by use, and
    ScenarioError for a provider without offers.
    """

    price: PriceKind = "on_demand"
    provider: str | None = None
    billing: Literal["reservation", "use"] = "reservation"
    electricity: DollarsPerKwh = 0.0
    api: ApiPrices | None = None

    def __post_init__(self) -> None:
        require_quantities(self)
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
    """Dollars of a run, by client and request.

    prices: of one GPU per hour, by client and then by group; empty for a client without GPUs.
    Raises ScenarioError if a machine has no price.
    """

    def __init__(self, ledger: Ledger, options: CostOptions) -> None:
        self._ledger = ledger
        self.options = options
        self.prices = gpu_prices(ledger.machines, options)

    def cost(self, client_id: int) -> Spent:
        """Return the dollars of a client in the whole run, by request and idle.

        By use, waiting GPUs cost nothing, nor does their electricity.
        """
        ledger, energy, power = self._ledger, self._ledger.energy(client_id), self._per_joule
        by_request, idle = np.zeros(energy.num_requests), 0.0
        for group, seconds in enumerate(ledger.gpu_seconds(client_id)):
            rent = self._rent(client_id, group)
            by_request = by_request + seconds.by_request * rent
            if self._pays_idle:
                paid = self._paid_after(0.0, client_id, group)
                idle += max(paid - ledger.busy_after(0.0, client_id, group), 0.0) * rent
        if not power:
            return Spent.of(by_request, idle)
        if self._pays_idle:
            idle += energy.idle * power
        return Spent.of(by_request + energy.by_request * power, idle)

    def cost_after(self, begin: float) -> float:
        """Return the dollars of all clients from a time on."""
        total, ledger = 0.0, self._ledger
        for client_id, machine in enumerate(ledger.machines):
            if machine is None:
                continue
            rents = 0.0
            for group in range(len(machine.groups)):
                gpu_seconds = ledger.busy_after(begin, client_id, group)
                if self._pays_idle:
                    gpu_seconds = self._paid_after(begin, client_id, group)
                rents += gpu_seconds * self._rent(client_id, group)
            total += rents + self._joules_paid(client_id, begin) * self._per_joule
        return total

    def electricity_after(self, begin: float) -> float:
        """Return the part of `cost_after` that is electricity."""
        machines = enumerate(self._ledger.machines)
        ids = [client_id for client_id, machine in machines if machine is not None]
        return sum(self._joules_paid(each, begin) for each in ids) * self._per_joule

    def _joules_paid(self, client_id: int, begin: float) -> float:
        if not self._per_joule:
            return 0.0
        in_steps, idle = self._ledger.energy_of(client_id, begin)
        return in_steps + idle if self._pays_idle else in_steps

    def _paid_after(self, begin: float, client_id: int, group: int) -> float:
        """Return the GPU seconds of a group that have to be paid for, from a time on."""
        states = STATES if self.options.is_commitment else RESERVED
        return self._ledger.reserved_after(begin, client_id, group, states)

    @property
    def _pays_idle(self) -> bool:
        return self.options.billing == "reservation"

    @property
    def _per_joule(self) -> float:
        """Dollars of a joule."""
        return self.options.electricity / _KWH

    def _rent(self, client_id: int, group: int) -> float:
        """Return the dollars of a GPU of a group a second."""
        return self.prices[client_id][group].dollars / _HOUR

    def mean_price(self, client_id: int) -> float:
        """Return the dollars of a client's GPU an hour, on average; 0 for one without GPUs."""
        prices = [price.dollars for price in self.prices[client_id]]
        if len(set(prices)) <= 1:
            return prices[0] if prices else 0.0
        groups = self._ledger.groups(client_id)
        dollars = sum(p * group.num_gpus for p, group in zip(prices, groups, strict=True))
        return dollars / sum(group.num_gpus for group in groups)

    def told(self, client_id: int) -> str:
        """Return a printable line on the price of its GPUs and its origin; empty without GPUs."""
        prices = dict.fromkeys(f"{p.dollars:g} $/h, {p.origin}" for p in self.prices[client_id])
        return "; ".join(prices)


def gpu_prices(
    machines: Sequence[GpuMachine | None], options: CostOptions
) -> list[tuple[Price, ...]]:
    """Return the price of one GPU per hour, by client and group; empty for clients without GPUs.

    Raises ScenarioError for a GPU whose price is neither given nor in the catalog.
    """
    return [
        tuple(_price(group, options) for group in machine.groups) if machine else ()
        for machine in machines
    ]


def rent_summary(
    machines: Sequence[GpuMachine | None], options: CostOptions | None
) -> dict[str, Any]:
    """Return the dollars an hour of all GPUs, and where their prices come from.

    options: of the scenario; None: offers on demand. Empty without GPUs, and where one has no
    price.
    """
    several = Counter(map(id, machines))  # copies of a client share their machine
    kinds = list({id(each): each for each in machines if each is not None}.values())
    try:
        prices = gpu_prices(kinds, options or CostOptions())
    except ScenarioError:
        return {}
    origins: dict[str, None] = {}
    dollars = 0.0
    for machine, mine in zip(kinds, prices, strict=True):
        for price, group in zip(mine, machine.groups, strict=True):
            dollars += several[id(machine)] * price.dollars * group.num_gpus
            origins[f"{price.dollars:g} $/h, {price.origin}"] = None
    return {"usd_per_hour": dollars, "price_origins": list(origins)} if dollars else {}


def dollars_an_hour(machines: Sequence[GpuMachine | None], options: CostOptions) -> float:
    """Return the dollars of all GPUs an hour. Raises ScenarioError for a GPU without a price."""
    prices = gpu_prices(machines, options)
    return float(
        sum(
            price.dollars * group.num_gpus
            for machine, each in zip(machines, prices, strict=True)
            if machine
            for price, group in zip(each, machine.groups, strict=True)
        )
    )


def _price(group: GpuGroup, options: CostOptions) -> Price:
    if group.price is not None:
        return Price(group.price, "given")
    gpu = group.gpu
    if not is_its_device(gpu):
        raise ScenarioError(
            f"gpu_price must be given for {gpu.name}: it is a GPU of your own, which has none of "
            "the catalog's prices"
        )
    price = price_of(gpu.based_on, options.price, options.provider)
    if gpu.name == gpu.based_on:
        return price
    return replace(price, origin=f"that of {gpu.based_on}, on which it is based: {price.origin}")


def api_cost(prices: ApiPrices, requests: Mapping[str, Any]) -> Array:
    """Return an API's price of each request, in dollars; 0 for failed requests.

    requests: the recorder's columns. Prompt tokens found in a prefix cache at the first admission
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
