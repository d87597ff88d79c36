"""Programs that a scenario file names run only if that was allowed.

A plugin that runs commands says in `programs` which of its parameters hold them.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from mist_sim.errors import brief
from mist_sim.scenario.format.parts import Part
from mist_sim.scenario.format.paths import Origin
from mist_sim.scenario.format.problems import Location, Problem

_SHOWN = 300  # characters of a command, which is to be read before it is allowed


def forbidden_programs(scenario: BaseModel, origin: Origin) -> list[Problem]:
    """Return a problem for every command that a file names and that may not run.

    A command that was set from outside the file is the caller's own and needs no permission.
    """
    if origin.allow_programs:
        return []
    return [
        Problem(
            place,
            f"names a program, {brief(command, _SHOWN)}, and none was started; if you trust it, "
            f"give --allow-programs (allow_programs=True in Python)",
        )
        for place, command in _commands(scenario, ())
        if not origin.sets(place)
    ]


def _commands(value: object, place: Location) -> Iterator[tuple[Location, object]]:
    """Yield the places of commands in a scenario, with the commands."""
    if isinstance(value, BaseModel):
        names = getattr(value.plugin, "programs", ()) if isinstance(value, Part) else ()
        for name, info in type(value).model_fields.items():
            key, item = info.alias or name, getattr(value, name)
            if key in names:
                yield (*place, key), item
            yield from _commands(item, (*place, key))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _commands(item, (*place, str(key)))
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):
            yield from _commands(item, (*place, position))
