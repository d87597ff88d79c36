"""`mist run` and `mist demo`: simulate a scenario, print its results, and write them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mist_sim.cli.scenario_input import ScenarioName, Settings, keys_of, load, require_scenario
from mist_sim.cli.session import REPORT, Session, note
from mist_sim.cli.values import vary_of
from mist_sim.errors import ScenarioError, brief, did_you_mean

if TYPE_CHECKING:
    from mist_sim.scenario import Scenario

MISSED = 3
_FOLDER = "mist-demo"


def run(
    scenario: ScenarioName = None,
    *,
    settings: Settings = (),
    commands: Sequence[str] = (),
    vary: Sequence[str] = (),
    seed: int | None = None,
    metric: str = "",
    replications: int | None = None,
    jobs: int | None = None,
    approximate: bool = False,
    allow_programs: bool = False,
    out: Path | None = None,
    force: bool = False,
    resume: bool = False,
    as_json: bool = False,
    names: str = "",
    tables: str | None = None,
    events: bool = False,
    report: bool = False,
    strict: bool = False,
    quiet: bool = False,
) -> None:
    """Simulate a scenario and print its results, or those of each point of --vary in one table.

    metric NAME,...: With --vary, show these numbers of the summaries, such as
        p99_itl_ms,p99_ttft_ms.
    replications N: Run N times, each with its own seed; gives means and confidence intervals.
    jobs N: Parallel runs, of replications and --vary; by default one per core.
    as_json --json: Print the summary as JSON in place of the tables.
    names TOOL: With --json, print the figures as aiperf or sglang name them, in place of vLLM's.
    tables NAMES: Write these tables into DIR in place of the usual ones, such as
        requests,over_time; or none.
    events: Write events.parquet into DIR, too: a row for each request that is routed, admitted,
        cut, preempted, moved or ends, and for blocks that are evicted, with the reason.
    report: Write report.html into DIR, too: pictures, tables, the scenario.
    strict: End with 3 when no request finishes, the run is unstable, or a limit is missed.
    """
    from mist_sim.report.run import shortcomings

    require_scenario(scenario, commands)
    shown = _metrics(metric, is_study=bool(vary)) if metric else ()
    overrides = keys_of(
        commands, settings, approximate=approximate, seed=seed, replications=replications
    )
    loaded = load(scenario, overrides, allow_programs=allow_programs)
    axes = vary_of(vary, overrides)
    is_study = bool(axes) or loaded.replications > 1
    if report:
        _require_report(out, is_study=is_study)
    if events:
        _require_one_run("--events", out, is_study=is_study)
    if names:
        _require_names(names, as_json=as_json, is_study=is_study)
    session = Session(
        out=out,
        force=force,
        as_json=as_json,
        names=names,
        quiet=quiet,
        tables=None if tables is None else _tables(tables, out, is_study=is_study, events=events),
        events=events or (tables is not None and "events" in tables.split(",")),
        resume=resume,
        report=report,
    )
    for name, is_given in (("--jobs", jobs is not None), ("--resume", resume)):
        if is_given and not is_study:
            raise ScenarioError(f"{name} has no effect on one run; give --replications or --vary")
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
    from mist_sim.metrics.result import check_number

    if not is_study:
        raise ScenarioError("--metric has no effect on one run; --json prints all numbers")
    found = tuple(dict.fromkeys(name.strip() for name in names.split(",")))
    for name in found:
        check_number("--metric", name)
    return found


def _require_report(out: Path | None, *, is_study: bool) -> None:
    """Raise ScenarioError where no report can be written."""
    from mist_sim.report.pages.page import require_report

    _require_one_run("--report", out, is_study=is_study)
    require_report()


def _require_one_run(option: str, out: Path | None, *, is_study: bool) -> None:
    """Raise ScenarioError for a file of one run without a folder, or of several runs."""
    if out is None:
        raise ScenarioError(f"{option} has no effect without --out, the folder for it")
    if is_study:
        raise ScenarioError(f"{option} is of one run; leave out --replications and --vary")


def _require_names(names: str, *, as_json: bool, is_study: bool) -> None:
    """Raise ScenarioError unless a run is printed under these names."""
    from mist_sim.metrics.other_names import NAMES

    if names not in NAMES:
        raise ScenarioError(
            f"--names must be one of {', '.join(NAMES)}, got {brief(names)}"
            f"{did_you_mean(names, NAMES)}"
        )
    if not as_json or is_study:
        raise ScenarioError("--names has an effect with --json on one run; leave it out")


def _tables(names: str, out: Path | None, *, is_study: bool, events: bool) -> list[str]:
    """Return the tables that are to be written; events: that one, too."""
    from mist_sim.metrics.result import check_tables

    if out is None:
        raise ScenarioError("--tables has no effect without --out, the folder for them")
    if is_study:
        raise ScenarioError(
            "--tables has no effect on replications and --vary, which write one table"
        )
    found = [name.strip() for name in names.split(",")]
    more = ["events"] if events else []
    if found == ["none"]:
        return more
    try:
        check_tables(found)
    except ScenarioError as error:
        raise ScenarioError(f"--{error}") from None
    return list(dict.fromkeys(found + more))


def demo(*, out: Path | None = None, force: bool = False, quiet: bool = False) -> None:
    """Simulate a bundled workload on two GPUs: a first look.

    out DIR: Write the results into this new or empty folder; by default mist-demo.
    force: Replace earlier results in the folder; other files stay.
    """
    from mist_sim.report.pages.page import MISSING, can_report
    from mist_sim.scenario import Scenario

    folder = out or (Path(_FOLDER) if force else _free_folder())
    if out is None and folder.name != _FOLDER and not quiet:
        note(f"{_FOLDER} is taken; the results go to {folder}")
    # the working directory may have a file of that name, whose programs must not run
    scenario = Scenario.load("demo", allow_programs=False)
    has_report = can_report()
    Session(out=folder, force=force, quiet=quiet, report=has_report).run(scenario)
    if not quiet:
        note(f"Open {folder / REPORT} in a browser" if has_report else MISSING)
        note("Next, more load: mist run demo --set workload.arrivals.rate='40 /s'")


def _free_folder() -> Path:
    """Return the first of mist-demo, mist-demo-2, ... that is new or empty, and not in use."""
    from mist_sim.output import is_free

    folder, number = Path(_FOLDER), 1
    while not is_free(folder):
        number += 1
        folder = Path(f"{_FOLDER}-{number}")
    return folder
