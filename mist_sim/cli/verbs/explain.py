"""`mist explain`: one step of an engine, operator by operator."""

from __future__ import annotations

import typer

from mist_sim.cli.scenario_input import (
    AllowPrograms,
    Approximate,
    FromVllm,
    ScenarioName,
    Settings,
    keys_of,
    load,
    require_scenario,
)
from mist_sim.cli.session import Session, saves


@saves(resumes=False)
def explain(
    session: Session,
    scenario: ScenarioName = None,
    settings: Settings = [],  # noqa: B006 - typer makes a new list
    commands: FromVllm = [],  # noqa: B006
    at: str | None = typer.Option(
        None, metavar="TIME", help="Explain the step at this time of the run, such as '12.5 s'."
    ),
    prompts: str | None = typer.Option(
        None,
        metavar="NEW[@CONTEXT],...",
        help="Explain a step with these prompts, on each engine with data_parallel_size: new "
        "tokens, and those before them in the cache.",
    ),
    decodes: int = typer.Option(
        0,
        metavar="N",
        help="Answers that get a token in the step, on each engine with data_parallel_size.",
    ),
    context: int = typer.Option(
        0, metavar="N", help="Tokens that each of these answers has in the cache."
    ),
    client: str | None = typer.Option(
        None,
        metavar="NAME",
        help="The client whose step is explained; by default, the first with an engine.",
    ),
    approximate: Approximate = False,
    allow_programs: AllowPrograms = False,
) -> None:
    """Take one step apart: what each operator takes, and what binds it.

    Either the step that runs --at a time, or one by hand: --prompts, --decodes and --context, for
    which the scenario needs no workload.
    """
    from mist_sim.errors import ScenarioError
    from mist_sim.explain import HandBatch, explain_batch, explain_moment
    from mist_sim.scenario.schema import Engines, Scenario
    from mist_sim.units import DURATION

    require_scenario(scenario, commands)
    by_hand = prompts is not None or decodes or context
    if by_hand and at is not None:
        raise ScenarioError("--at must be left out with --prompts, --decodes and --context")
    if not by_hand and at is None:
        raise ScenarioError(
            "give the step: --at TIME of the run, or --prompts, or --decodes with --context"
        )
    batch = HandBatch.read(prompts, decodes, context) if by_hand else None
    overrides = keys_of(commands, settings, approximate=approximate)
    kind = Scenario if batch is None else Engines
    loaded = load(scenario, overrides, allow_programs=allow_programs, kind=kind)
    if batch is not None:
        found = session.search(lambda how: explain_batch(loaded, batch, client))
    else:
        try:
            time = DURATION.parse(at)
        except ScenarioError as error:
            raise ScenarioError(f"--at: {error}") from None
        found = session.search(lambda how: explain_moment(loaded, time, client))
    if found.gpu is not None:
        session.note_undrawn("roofline.png")
