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
    """Return the name of a version; `vllm` becomes that of the newest, `v0.16.0` `vllm-0.16`.

    Raises ScenarioError for a name that is not known, with what to write instead.
    """
    if name == NEWEST_NAME:
        return NEWEST.name
    if isinstance(name, str):
        if name in VERSIONS:
            return name
        if (known := spelt(name)) in VERSIONS:
            return known
    raise ScenarioError(
        f"must be {next(iter(VERSIONS))} to {NEWEST.name}, or {NEWEST_NAME} (the newest of them), "
        f"got {brief(name)}; {_instead(name)}"
    )


def number_of(version: str) -> tuple[int, int] | None:
    """Return the first two numbers of a release, `v0.16.0`; None for other texts."""
    found = _NUMBER.fullmatch(version.strip())
    return (int(found[1]), int(found[2])) if found else None


def spelt(version: str) -> str:
    """Return the name of a release, `v0.16.1` as vllm-0.16; other texts as they are."""
    number, bare = number_of(version), version.strip().lower().lstrip("vlm-_ =:")
    if number is None:
        return version
    first = f"vllm-{bare}"
    return first if first in VERSIONS else f"vllm-{number[0]}.{number[1]}"


def _instead(name: object) -> str:
    asked = number_of(str(name))
    if asked is None:
        return (
            "other engines are not known by name: leave engine out, and set their options one by "
            "one (mist list options)"
        )
    if isinstance(name, float):  # as YAML reads 0.20: 0.2
        return "write it as a text with vllm- before it: vllm-0.20, not 0.2"
    if asked > (0, NEWEST.minor):
        return f"it is newer than all of them: write {NEWEST.name}, and say what differs"
    return f"it is older than all of them: write {next(iter(VERSIONS))}, and say what differs"
