"""What has to hold of all clients of a scenario file together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mist_sim.bounds import COPIES
from mist_sim.scenario.format.parts import Part
from mist_sim.scenario.format.problems import Problem
from mist_sim.scenario.sections.clients.afd import AfdPart
from mist_sim.scenario.sections.clients.base import ClientPart
from mist_sim.scenario.sections.clients.llm import LlmPart
from mist_sim.scenario.sections.clients.sequential import SequentialPart

Clients = Sequence[ClientPart]


def client_problems(
    clients: Clients, model: str | None, engine: str | None, cost: Part | None
) -> Iterable[Problem]:
    """Yield what is wrong with clients. model, engine, cost: the scenario's."""
    yield from _engine_of_nobody(clients, engine)
    yield from _useless_prices(clients, cost)
    yield from _too_many(clients)
    yield from _nameless_models(clients, model)
    yield from _equal_names(clients)


def _engine_of_nobody(clients: Clients, engine: str | None) -> Iterable[Problem]:
    if engine and not any(isinstance(client, LlmPart) for client in clients):
        yield Problem(("engine",), "has no effect: no client has type llm")


def _useless_prices(clients: Clients, cost: Part | None) -> Iterable[Problem]:
    """Yield prices of a cost that nobody asks for, and a cost where there is no GPU."""
    engines = {k: client.engine for k, client in enumerate(clients) if client.engine}
    for position, engine in engines.items():
        if engine.gpu_price is not None and cost is None:
            text = "has no effect without cost; cost: {} asks for it"
            yield Problem(("clients", position, "gpu_price"), text)
    only_ours = all(isinstance(client, LlmPart | SequentialPart) for client in clients)
    if cost is not None and only_ours and not engines:
        yield Problem(("cost",), "has no effect: no client has GPUs")


def _too_many(clients: Clients) -> Iterable[Problem]:
    engines = [getattr(client, "data_parallel_size", 1) * client.count for client in clients]
    if sum(engines) > COPIES:
        text = f"must have <= {COPIES} engines and other clients in all, got {sum(engines)}"
        yield Problem(("clients",), text)


def _nameless_models(clients: Clients, model: str | None) -> Iterable[Problem]:
    for position, client in enumerate(clients):
        has_model = isinstance(client, LlmPart | AfdPart)
        if has_model and getattr(client, "model", None) is None and model is None:
            yield Problem(
                ("clients", position, "model"),
                "is required, since the scenario names no model",
            )


def _equal_names(clients: Clients) -> Iterable[Problem]:
    seen: set[str] = set()
    for position, client in enumerate(clients):
        if twice := seen.intersection(client.names):
            names = ", ".join(sorted(twice))
            yield Problem(
                ("clients", position, "name"), f"must be unique, got {names} a second time"
            )
        seen.update(client.names)
