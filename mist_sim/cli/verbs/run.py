"""`mist run`: simulate a scenario, print its results, and write them into a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mist_sim.cli.options import Force, Out, Quiet, Resume, Seed, require_out
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
from mist_sim.cli.session import note
from mist_sim.cli.vary_input import Vary, vary_of

if TYPE_CHECKING:
    from mist_sim.cli.session import Session
    from mist_sim.scenario import Scenario

MISSED = 3


def run(
    scenario: ScenarioName = None,
    settings: Settings = [],  # noqa: B006 - typer makes a new list
    commands: FromVllm = [],  # noqa: B006
    vary: Vary = [],  # noqa: B006
    seed: Seed = None,
    metric: str = typer.Option(
        "",
        metavar="NAME,...",
        help="With --vary, show these numbers of the summaries, such as p99_itl_ms,p99_ttft_ms.",
    ),
    replications: int | None = typer.Option(
        None,
        metavar="N",
        help="Run N times, each with its own seed; gives means and confidence intervals.",
    ),
    jobs: int | None = typer.Option(
        None,
        metavar="N",
        help="Parallel runs, of replications and --vary; by default one per core.",
    ),
    approximate: Approximate = False,
    allow_programs: AllowPrograms = False,
    out: Out = None,
    force: Force = False,
    resume: Resume = False,
    as_json: bool = typer.Option(
        False, "--json", help="Print the summary as JSON in place of the tables."
    ),
    names: str = typer.Option(
        "",
        metavar="TOOL",
        help="With --json, print the figures as aiperf or sglang name them, in place of vLLM's.",
    ),
    tables: str | None = typer.Option(
        None,
        metavar="NAMES",
        help="Write these tables into DIR in place of the usual ones, such as requests,over_time; "
        "or none.",
        show_default=False,
    ),
    report: bool = typer.Option(
        False, "--report", help="Write report.html into DIR, too: pictures, tables, the scenario."
    ),
    strict: bool = typer.Option(
        False,
        "--strict",
        help="End with 3 when no request finishes, the run is unstable, or a limit is missed.",
    ),
    quiet: Quiet = False,
) -> None:
    """Simulate a scenario and print its results, or those of each point of --vary in one table."""
    from mist_sim.cli.session import Session
    from mist_sim.errors import ScenarioError
    from mist_sim.report.run import shortcomings

    require_scenario(scenario, commands)
    shown = _metrics(metric, is_study=bool(vary)) if metric else ()
    overrides = keys_of(
        commands, settings, approximate=approximate, seed=seed, replications=replications
    )
    loaded = load(scenario, overrides, allow_programs=allow_programs)
    require_out(force, out, resume)
    axes = vary_of(vary, overrides)
    is_study = bool(axes) or loaded.replications > 1
    for name, is_given in (("--jobs", jobs is not None), ("--resume", resume)):
        if is_given and not is_study:
            raise ScenarioError(f"{name} has no effect on one run; give --replications or --vary")
    if report:
        _require_report(out, is_study=is_study)
    if names:
        _require_names(names, as_json=as_json, is_study=is_study)
    wanted = None if tables is None else _tables(tables, out, is_study=is_study)
    session = Session(
        out=out,
        force=force,
        as_json=as_json,
        names=names,
        quiet=quiet,
        tables=wanted,
        resume=resume,
        report=report,
    )
    if axes:
        missed = _study(session, loaded, axes, jobs, shown)
    elif loaded.replications > 1:
        found = session.replicate(loaded, jobs)
        missed = shortcomings(found.summaries, found.slo, found.slo_shares)
    else:
        summary = session.run(loaded).summary
        missed = shortcomings([summary], summary.get("slo", {}), summary.get("slo_shares", {}))
    if strict and missed:
        note("\n  ".join(("missed:", *missed)))
        raise typer.Exit(MISSED)


def _study(
    session: Session,
    scenario: Scenario,
    axes: dict[str, list[Any]],
    jobs: int | None,
    shown: tuple[str, ...],
) -> list[str]:
    """Run all points; return their shortcomings.

    shown: numbers in the table; empty: the main ones.
    """
    from dataclasses import replace

    from mist_sim.metrics.replications import Replications
    from mist_sim.report.run import shortcomings
    from mist_sim.studies.study import plan_study

    plan = replace(plan_study(scenario, vary=axes), shown=shown)
    found = session.search(lambda how: plan.run(jobs=jobs, **how), plan.num_runs)
    missed = []
    for each in found.points:
        texts = [f"failed: {failure}" for failure in each.failures]
        if summaries := tuple(each.summaries):
            runs = Replications(tuple(range(len(summaries))), summaries, "")
            texts += shortcomings(summaries, runs.slo, runs.slo_shares)
        missed += [f"{each.point.name}: {text}" for text in texts]
    return missed


def _metrics(names: str, *, is_study: bool) -> tuple[str, ...]:
    """Return the numbers of the summaries that the table of a study shows."""
    from mist_sim.errors import ScenarioError
    from mist_sim.metrics.summary_types import check_number

    if not is_study:
        raise ScenarioError("--metric has no effect on one run; --json prints all numbers")
    found = tuple(dict.fromkeys(name.strip() for name in names.split(",")))
    for name in found:
        check_number("--metric", name)
    return found


def _require_report(out: Path | None, *, is_study: bool) -> None:
    """Raise ScenarioError where no report can be written."""
    from mist_sim.errors import ScenarioError
    from mist_sim.report.pages.page import require_report

    if out is None:
        raise ScenarioError("--report has no effect without --out, the folder for it")
    if is_study:
        raise ScenarioError("--report is of one run; leave out --replications and --vary")
    require_report()


def _require_names(names: str, *, as_json: bool, is_study: bool) -> None:
    """Raise ScenarioError unless a run is printed under these names."""
    from mist_sim.errors import ScenarioError, brief, did_you_mean
    from mist_sim.metrics.other_names import NAMES

    if names not in NAMES:
        raise ScenarioError(
            f"--names must be one of {', '.join(NAMES)}, got {brief(names)}"
            f"{did_you_mean(names, NAMES)}"
        )
    if not as_json or is_study:
        raise ScenarioError("--names has an effect with --json on one run; leave it out")


def _tables(names: str, out: Path | None, *, is_study: bool) -> list[str]:
    """Return the tables that are to be written."""
    from mist_sim.errors import ScenarioError
    from mist_sim.metrics.result import check_tables

    if out is None:
        raise ScenarioError("--tables has no effect without --out, the folder for them")
    if is_study:
        raise ScenarioError(
            "--tables has no effect on replications and --vary, which write one table"
        )
    found = [name.strip() for name in names.split(",")]
    if found == ["none"]:
        return []
    try:
        check_tables(found)
    except ScenarioError as error:
        raise ScenarioError(f"--{error}") from None
    return list(dict.fromkeys(found))
