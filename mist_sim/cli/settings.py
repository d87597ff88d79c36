"""Values of a scenario that a command line sets: `--set KEY=VALUE`."""

from __future__ import annotations

from typing import Any


def overrides_of(settings: list[str], option: str = "--set") -> dict[str, Any]:
    """Return values by path; a value is read as YAML, as it would be in the file.

    option: option named in messages.
    Raises ScenarioError for text that is not KEY=VALUE, and for values that are not YAML.
    """
    from mist_sim.errors import ScenarioError, cut
    from mist_sim.scenario.format import yaml_text

    overrides = {}
    for setting in settings:
        path, equals, value = setting.partition("=")
        if not equals:
            raise ScenarioError(
                f"{option} {cut(setting)}: must be KEY=VALUE, such as clients.0.count=8"
            )
        overrides[path.strip()] = yaml_text.parse(value, f"{option} {cut(path)}")
    return overrides
