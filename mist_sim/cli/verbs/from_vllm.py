"""`mist from-vllm`: the scenario that vLLM's command lines describe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from mist_sim.cli.scenario_input import tell, with_nearest
from mist_sim.cli.session import note
from mist_sim.cli.values import overrides_of
from mist_sim.errors import ScenarioError

if TYPE_CHECKING:
    from mist_sim.scenario.from_vllm.account import Statement

_ENGINE = {"name": "llm", "model": "llama-3.1-8b", "gpu": "h100-sxm"}


def from_vllm(
    commands: Sequence[str],
    *,
    gpu: str | None = None,
    engine: str | None = None,
    settings: Sequence[str] = (),
    approximate: bool = False,
    explain: bool = False,
) -> None:
    """Print the scenario of vLLM's command lines; refuse what cannot be simulated.

    commands COMMAND...: "vllm serve ..." and, for the workload, "vllm bench serve ...", each in
        quotes or in a file: as a shell, docker or podman starts them, a Kubernetes manifest, a
        compose file, values of a chart; - for standard input.
    gpu: The server's GPU (mist list gpus).
    engine: The server's version, such as vllm-0.19.
    settings --set KEY=VALUE: Set options missing from the command line, such as clients.0.count=8;
        repeatable.
    explain: Show on stderr how each argument is translated or why it is refused.
    """
    from mist_sim.scenario.format import yaml_text
    from mist_sim.scenario.from_vllm.account import faults_of
    from mist_sim.scenario.from_vllm.commands import read_commands
    from mist_sim.scenario.from_vllm.faults import check_all, needed_to_start
    from mist_sim.scenario.loading import with_overrides

    overrides = overrides_of(with_nearest(settings, approximate))
    found = read_commands(commands, gpu=gpu, engine=engine, overrides=overrides)
    if explain:
        _show(found.account)
    is_told = all("gpu" in client for client in found.keys.get("clients", ()))
    lacks_gpu = not is_told and "clients.0.gpu" not in overrides
    said = with_overrides(found.keys | ({"engine": engine} if engine else {}), overrides)
    if faults_of(found.account) or not lacks_gpu:
        check_all(found.account, _completed(said))
    if not explain:
        tell(found)
    if lacks_gpu:
        unknown = [f"; {i.flag}: {i.why}" for i in found.assumed if "--gpu says" in i.why]
        raise ScenarioError(
            f"--gpu is required: a command line of vLLM does not say it{''.join(unknown)}"
        )
    for text in needed_to_start(_completed(said)):
        typer.echo(f"warning: {text}", err=True)
    for missing in [part for part in ("clients", "workload") if part not in said]:
        note(f"note: a scenario needs {missing}, too")
    typer.echo(yaml_text.dump(said), nl=False)


def _completed(said: dict[str, Any]) -> dict[str, Any]:
    """Return a whole scenario: stand-ins for the missing half, so that the other is checked."""
    from mist_sim.scenario.schema import ONE_REQUEST

    workload = said.get("workload", {})
    if isinstance(workload, dict) and not {"lengths", "trace"} & workload.keys():
        workload = ONE_REQUEST | workload
    return {"clients": [_ENGINE]} | said | {"workload": workload}


def _show(account: tuple[Statement, ...]) -> None:
    """Show the account of each command as a table on stderr."""
    from rich.table import Table
    from rich.text import Text

    from mist_sim.report.elements import Terminal

    console = Terminal(stderr=True)
    for statement in account:
        table = Table(title=statement.command, title_justify="left", box=None, pad_edge=False)
        table.add_column("argument", overflow="fold")
        table.add_column("becomes", no_wrap=True)
        table.add_column("why", overflow="fold")
        for item in statement.items:
            why = f"assumed: {item.why}" if item.is_assumed else item.why
            table.add_row(Text(item.flag), item.verdict, Text(why))
        console.print(table)
