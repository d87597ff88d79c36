"""The title of a folder of results."""

from __future__ import annotations

from pathlib import Path


def title_of(folder: Path) -> str:
    """Return a one-line title of a simulation; the folder's name if no scenario gives one.

    That of a study leaves out what is varied.
    """
    from mist_sim.errors import MistError, printable
    from mist_sim.scenario import Scenario

    file = folder / "scenario.resolved.yaml"
    name = printable(folder.resolve().name)
    if not file.is_file():
        return name
    try:
        scenario = Scenario.load(file, allow_programs=False)
        lines = scenario.headline_without(_varied(folder / "study.json")).splitlines()
    except MistError:  # its trace is elsewhere now, or it is of another version, or damaged
        return name
    return lines[1] if len(lines) > 1 else name  # the first says which file it came from


def _varied(study: Path) -> set[str]:
    """Return the keys that a study varies; none for a folder without one."""
    from mist_sim.inputs import object_in, of_a_form
    from mist_sim.report.folder_page import MOST_BYTES

    if not study.is_file():
        return set()
    with of_a_form(study, "results that mist wrote"):
        points = object_in(study, MOST_BYTES)["points"]
        return {key for point in points for key in point["values"]}
