"""The life of clients in a scenario file: failures, drains, starts, autoscaling."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import BeforeValidator

from mist_sim.lifecycle import Autoscaling, Drain, Failures, Lifecycle, OnFailure, StartUp
from mist_sim.scenario.format.fields import Duration
from mist_sim.scenario.format.parts import Part, Settings, part_type, settings
from mist_sim.scenario.sections.clients import ClientPart


def _several(value: object) -> object:
    """Return one value, or a list of them, as a tuple."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


_NAMES = Annotated[tuple[str, ...], BeforeValidator(_several)]
_INSTANTS = Annotated[tuple[Duration, ...], BeforeValidator(_several)]
_WHO = {"clients": _NAMES}
_LISTED = {
    "failures": part_type(Failures, meanings={**_WHO, "at": _INSTANTS, "link": _NAMES | None}),
    "drains": part_type(Drain, meanings=_WHO),
    "autoscaling": part_type(Autoscaling, meanings=_WHO),
}
LIFECYCLE = part_type(
    Lifecycle,
    meanings={
        key: Annotated[
            tuple[Annotated[Part, Settings(model)], ...],
            BeforeValidator(_several),
        ]
        for key, model in _LISTED.items()
    },
)
PARTS: Mapping[str, type[Part]] = {
    **_LISTED,
    "on_failure": settings(OnFailure).model,
    "start_up": settings(StartUp).model,
}
"""The mappings that lie in it, by key; a list has many of them."""


def made(part: Part, clients: Sequence[ClientPart]) -> Lifecycle:
    """Return a file's lifecycle with group names replaced by names of clients."""
    said: Lifecycle = part.make()
    groups = {client.name: tuple(client.names) for client in clients}

    def named(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one for name in names for one in groups.get(name, (name,))))

    return replace(
        said,
        failures=tuple(replace(each, clients=named(each.clients)) for each in said.failures),
        drains=tuple(replace(each, clients=named(each.clients)) for each in said.drains),
        autoscaling=tuple(replace(each, clients=named(each.clients)) for each in said.autoscaling),
    )
