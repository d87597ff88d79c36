"""The name of an engine's version in a scenario: which are known, and what to write instead."""

from __future__ import annotations

import re

from mist_sim.errors import ScenarioError, brief
from mist_sim.scenario.engines.engine_version import EngineVersion
from mist_sim.scenario.engines.versions import NEWEST, VERSIONS

NEWEST_NAME = "vllm"
NAMES = (*VERSIONS, NEWEST_NAME)
_NUMBER = re.compile(r"(?:vllm)?[-_ =:]*v?(\d{1,9})\.(\d{1,9})(?:\.\w+)*", re.IGNORECASE)


def version_of(name: str | None) -> EngineVersion:
    """Return the version of a name; without one, the newest, which is then assumed.

    Raises ScenarioError for a name that is not known, with what to write instead.
    """
    try:
        return NEWEST if name is None else VERSIONS[known_name(name)]
    except ScenarioError as error:
        raise ScenarioError(f"engine {error}") from None


def known_name(name: object) -> str:
    """Return the name of a version; `vllm` becomes that of the newest.

    Raises ScenarioError for a name that is not known, with what to write instead.
    """
    if name == NEWEST_NAME:
        return NEWEST.name
    if isinstance(name, str) and name in VERSIONS:
        return name
    raise ScenarioError(
        f"must be one of {', '.join(NAMES)} (the newest of them), got {brief(name)}; "
        f"{_instead(str(name))}"
    )


def _instead(name: str) -> str:
    found = _NUMBER.fullmatch(name.strip())
    if found is None:
        return (
            "other engines are not known by name: leave engine out, and set their options one by "
            "one (mist list options)"
        )
    asked = (int(found[1]), int(found[2]))
    known = {_number(version): version for version in VERSIONS}
    if asked in known:
        return f"write {known[asked]}"
    older = [version for number, version in known.items() if number < asked]
    newer = [version for number, version in known.items() if number > asked]
    if not newer:
        return f"it is newer than all of them: write {older[-1]}, and say what differs"
    if not older:
        return f"it is older than all of them: write {newer[0]}, and say what differs"
    return (
        f"it lies between two known versions: write {older[-1]} or {newer[0]}, and say what differs"
    )


def _number(version: str) -> tuple[int, int]:
    major, minor = version.removeprefix("vllm-").split(".")
    return int(major), int(minor)
