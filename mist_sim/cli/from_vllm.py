"""`mist from-vllm`: the scenario that vLLM's command lines describe."""

from __future__ import annotations

import typer


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
) -> None:
    """Print the scenario of vLLM's command lines; refuse what cannot be simulated."""
    from mist_sim.errors import ScenarioError
    from mist_sim.scenario import Scenario, build
    from mist_sim.scenario.from_vllm.commands import from_vllm as read

    found = read(commands, gpu=gpu)
    if engine:
        found.keys["engine"] = engine
    note_left_out(found.left_out)
    if "clients" in found.keys and gpu is None:
        raise ScenarioError("--gpu is required: a command line of vLLM does not say it")
    if {"clients", "workload"} <= found.keys.keys():
        build(Scenario.from_dict(found.keys))
    else:
        missing = "workload" if "clients" in found.keys else "clients"
        typer.echo(f"note: a scenario needs {missing}, too", err=True)
    typer.echo(found.as_text(), nl=False)


def note_left_out(flags: tuple[str, ...]) -> None:
    """Say on stderr which arguments change no simulated time."""
    if flags:
        typer.echo(f"note: without effect on times: {', '.join(flags)}", err=True)
