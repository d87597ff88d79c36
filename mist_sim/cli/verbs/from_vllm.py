"""`mist from-vllm`: the scenario that vLLM's command lines describe."""

from __future__ import annotations

from typing import Any

import typer

from mist_sim.cli.scenario_input import note_left_out
from mist_sim.cli.settings import overrides_of

_ONE_TOKEN = {"type": "fixed", "tokens": 1}
_STAND_INS: dict[str, Any] = {
    "clients": [{"name": "llm", "model": "llama-3.1-8b", "gpu": "h100-sxm"}],
    "workload": {
        "lengths": {
            "type": "synthetic",
            "num_requests": 1,
            "prompt": _ONE_TOKEN,
            "output": _ONE_TOKEN,
        },
        "arrivals": {"type": "all_at_once"},
    },
}
"""A stand-in for the half of a scenario that is not said, so that the other can be checked."""


def from_vllm(
    commands: list[str] = typer.Argument(
        metavar="COMMAND...",
        help='"vllm serve ..." and, for the workload, "vllm bench serve ...", each in quotes or '
        "in a file.",
        show_default=False,
    ),
    gpu: str | None = typer.Option(
        None, help="The server's GPU (mist list gpus).", show_default=False
    ),
    engine: str | None = typer.Option(
        None, help="The server's version, such as vllm-0.19.", show_default=False
    ),
    settings: list[str] = typer.Option(
        [],
        "--set",
        metavar="KEY=VALUE",
        help="Say what a command line does not, such as clients.0.count=8; repeatable.",
        show_default=False,
    ),
) -> None:
    """Print the scenario of vLLM's command lines; refuse what cannot be simulated."""
    from mist_sim.errors import ScenarioError
    from mist_sim.scenario import Scenario, build
    from mist_sim.scenario.format import yaml_text
    from mist_sim.scenario.format.overrides import apply
    from mist_sim.scenario.from_vllm.commands import from_vllm as read

    found = read(commands, gpu=gpu)
    note_left_out(found.left_out)
    overrides = overrides_of(settings)
    if "clients" in found.keys and gpu is None and "clients.0.gpu" not in overrides:
        raise ScenarioError("--gpu is required: a command line of vLLM does not say it")
    said = apply(found.keys | ({"engine": engine} if engine else {}), overrides)
    build(Scenario.from_dict(_STAND_INS | said))
    for missing in _STAND_INS.keys() - said.keys():
        typer.echo(f"note: a scenario needs {missing}, too", err=True)
    typer.echo(yaml_text.dump(said), nl=False)
