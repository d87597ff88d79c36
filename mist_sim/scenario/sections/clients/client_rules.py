"""Rules for all clients of a scenario file together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mist_sim.bounds import COPIES
from mist_sim.scenario.format.parts import Part
from mist_sim.scenario.format.problems import Problem
from mist_sim.scenario.sections.clients.base import ClientPart

Clients = Sequence[ClientPart]


def client_problems(
    clients: Clients, model: str | None, engine: str | None, cost: Part | None
) -> Iterable[Problem]:
    """Yield problems of clients. model, engine, cost: the scenario's."""
    yield from _engine_of_nobody(clients, engine)
    yield from _useless_cost(clients, model, cost)
    yield from _too_many(clients, model)
    yield from _nameless_models(clients, model)
    yield from _equal_names(clients)


def _engine_of_nobody(clients: Clients, engine: str | None) -> Iterable[Problem]:
    if engine and not any(client.names_engine for client in clients):
        yield Problem(("engine",), "has no effect: no client has type llm")


def _useless_cost(clients: Clients, model: str | None, cost: Part | None) -> Iterable[Problem]:
    if cost is None or not all(client.is_ours for client in clients):
        return
    if not any(client.describe(model).engines for client in clients):
        yield Problem(("cost",), "has no effect: no client has GPUs")


def _too_many(clients: Clients, model: str | None) -> Iterable[Problem]:
    num_engines = sum(client.describe(model).num_engines * client.count for client in clients)
    if num_engines > COPIES:
        text = f"must have <= {COPIES} engines and other clients in all, got {num_engines}"
        yield Problem(("clients",), text)


def _nameless_models(clients: Clients, model: str | None) -> Iterable[Problem]:
    for position, client in enumerate(clients):
        if client.needs_model and getattr(client, "model", None) is None and model is None:
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
