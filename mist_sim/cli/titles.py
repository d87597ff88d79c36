"""The title of a folder of results."""

from __future__ import annotations

from pathlib import Path


def title_of(folder: Path) -> str:
    """Return a one-line title of a simulation; the folder's name if no scenario gives one."""
    from mist_sim.errors import MistError, printable
    from mist_sim.scenario import Scenario

    file = folder / "scenario.resolved.yaml"
    name = printable(folder.resolve().name)
    if not file.is_file():
        return name
    try:
        lines = Scenario.load(file, allow_programs=False).headline.splitlines()
    except MistError:  # its trace is elsewhere now, or it is of another version
        return name
    return lines[1] if len(lines) > 1 else name  # the first says which file it came from
