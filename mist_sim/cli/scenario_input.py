"""Scenarios that a command line names: a file, a preset, standard input, or vLLM's commands."""

from __future__ import annotations

import glob
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mist_sim.cli.completion import settings as completed
from mist_sim.cli.session import note
from mist_sim.cli.values import given, overrides_of
from mist_sim.errors import ScenarioError

if TYPE_CHECKING:
    from mist_sim.scenario import Scenario
    from mist_sim.scenario.from_vllm.commands import FromVllm

STDIN = "-"


def presets(incomplete: str) -> list[str]:
    """Return presets for shell completion; the shell adds files if no preset matches.

    It does not import the presets' package, which would take a second.
    """
    folder = Path(__file__).parents[1] / "scenario" / "presets"
    return sorted(path.stem for path in folder.glob(f"{glob.escape(incomplete)}*.yaml"))


ScenarioName = Annotated[str | None, {"autocompletion": presets}]
Settings = Annotated[Sequence[str], {"autocompletion": completed}]


def with_nearest(settings: Sequence[str], approximate: bool) -> Sequence[str]:
    """Return the settings of a command line, those of `--approximate` included."""
    return [*settings, "approximate=true"] if approximate else settings


def keys_of(
    commands: Sequence[str], settings: Sequence[str], *, approximate: bool = False, **own: object
) -> dict[str, Any]:
    """Return the keys of a scenario that options give; later ones of these win.

    commands, settings, approximate: `--from-vllm`, `--set` and `--approximate`. own: options that
    are keys, such as `--seed`; None: not given.
    """
    overrides = overrides_of(with_nearest(settings, approximate))
    return of_vllm(commands, overrides) | overrides | given(**own)


def require_scenario(name: str | None, commands: Sequence[str] = ()) -> None:
    """Raise ScenarioError where neither a scenario nor vLLM's commands are given."""
    if name is None and not commands:
        raise ScenarioError(
            "SCENARIO is required: a file, a preset (mist list presets) or -; without it, "
            "--from-vllm must say both the server and its load"
        )


def _require_all(overrides: Collection[str], kind: type[Scenario]) -> None:
    """Raise ScenarioError where vLLM's commands lack the server, or the load of a scenario."""
    said = {key.partition(".")[0] for key in overrides}
    for part, command in (("clients", "vllm serve"), ("workload", "vllm bench serve")):
        if part not in said and kind.model_fields[part].is_required():
            raise ScenarioError(
                f'{part} is required: add --from-vllm "{command} ...", or name a scenario that has '
                "them, such as the preset demo, before --from-vllm"
            )


def load(
    name: str | None,
    overrides: dict[str, Any],
    *,
    allow_programs: bool,
    kind: type[Scenario] | None = None,
) -> Scenario:
    """Return a scenario. name: None: the overrides contain all of it.

    allow_programs: whether programs named in its file may run. kind: what it is read as.
    Raises ScenarioError for errors in it.
    """
    from mist_sim.scenario import Scenario

    kind = kind or Scenario
    if name is None:
        _require_all(overrides, kind)
        return kind.from_dict({}, overrides)
    if name != STDIN:
        return kind.load(name, overrides, allow_programs=allow_programs)
    from mist_sim.bounds import SCENARIO_BYTES
    from mist_sim.scenario.format.yaml_text import decoded

    source = "standard input"
    if sys.stdin.isatty():
        note("Reading the scenario from the terminal; end it with Ctrl-D.")
    text = decoded(sys.stdin.buffer.read(SCENARIO_BYTES + 1), source)
    return kind.from_yaml(text, overrides, source=source, allow_programs=allow_programs)


def of_vllm(commands: Sequence[str], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a scenario that vLLM's command lines say.

    overrides: what `--set` gives. Raises ScenarioError for refused flags, and for values beside
    them that no scenario can have.
    """
    if not commands:
        return {}
    from mist_sim.scenario.from_vllm.account import faults_of
    from mist_sim.scenario.from_vllm.commands import read_commands
    from mist_sim.scenario.from_vllm.faults import check_all

    found = read_commands(list(commands), overrides=overrides)
    if faults_of(found.account):
        check_all(found.account, found.keys, without=overrides)
    tell(found)
    return found.overrides


def tell(found: FromVllm) -> None:
    """Print on stderr which arguments do not affect simulated times.

    Assumptions are keys of the scenario, and its results repeat them.
    """
    if found.left_out:
        note(f"note: without effect on times: {', '.join(found.left_out)}")
