"""Scenarios at the points of a study: a given price is that of the GPU beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mist_sim.errors import ScenarioError
from mist_sim.hardware import load_gpu
from mist_sim.scenario import Scenario
from mist_sim.scenario.loading import as_data

_GPU = re.compile(r"clients\.(\d+)\.((?:ffn_)?gpu)")


def varied(scenario: Scenario, values: Mapping[str, Any], *, trusted: bool = True) -> Scenario:
    """Return a scenario with other values, by dotted key.

    Where a value is another kind of GPU, the price given for the first kind goes, and the catalog's
    holds; an assumption of the scenario says so. A price among the values stays.
    trusted: as in `Scenario.changed`. Raises ScenarioError for values that cannot be.
    """
    said = scenario.origin.said or as_data(scenario)
    prices = {key: told for key, told in _foreign(said, values) if key not in values}
    if not prices:
        return scenario.changed(values, trusted=trusted)
    assumed = [*(said.get("assumptions") or ()), *prices.values()]
    return scenario.changed(
        {**values, **dict.fromkeys(prices), "assumptions": assumed}, trusted=trusted
    )


class GivenPrice(NamedTuple):
    """A price that a scenario gives for a GPU: its dotted key, and what is written there."""

    key: str
    price: str


def given_prices(said: Mapping[str, Any]) -> dict[str, GivenPrice]:
    """Return the prices that a scenario's clients give, by the name of their GPU.

    said: the scenario's data. Of several prices of one GPU the first one counts.
    """
    found: dict[str, GivenPrice] = {}
    for place, client in enumerate(clients_in(said)):
        for key in ("gpu", "ffn_gpu"):
            gpu, price = client.get(key), client.get(f"{key}_price")
            if gpu is not None and price is not None:
                given = GivenPrice(f"clients.{place}.{key}_price", price)
                found.setdefault(kind_of(gpu), given)
    return found


def kind_of(gpu: Any) -> str:
    """Return the name of a GPU, as a scenario says it; of one that is unknown, what was said."""
    try:
        return load_gpu(gpu).name if isinstance(gpu, str | Mapping) else str(gpu)
    except ScenarioError:
        return str(gpu)


def _foreign(said: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the keys of prices given for a GPU whose place another kind takes, and what to say."""
    clients = clients_in(said)
    for path, value in values.items():
        match = _GPU.fullmatch(path)
        if match is None or int(match[1]) >= len(clients):
            continue
        client, key = clients[int(match[1])], match[2]
        gpu, price = client.get(key), client.get(f"{key}_price")
        if None in (gpu, price, value) or kind_of(gpu) == kind_of(value):
            continue
        told = f"{path}_price, {price} as given, is of {kind_of(gpu)} alone"
        yield f"{path}_price", f"{told}; other GPUs cost what the catalog says."


def clients_in(said: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the clients of a scenario's data; empty ones in place of what is no client."""
    clients = said.get("clients")
    many = clients if isinstance(clients, list | tuple) else []
    return [each if isinstance(each, Mapping) else {} for each in many]
