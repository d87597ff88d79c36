"""`mist search`: the best configurations of a space; `mist sweep`: a figure over a key or two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mist_sim.cli.options import option_of
from mist_sim.cli.scenario_input import Settings, keys_of, load, presets
from mist_sim.cli.session import Session, executor_of
from mist_sim.cli.values import Judging, axes_of, overrides_of, require
from mist_sim.errors import ScenarioError

if TYPE_CHECKING:
    from mist_sim.search.spaces import Space

_RESULTS = "search.json"


def search(
    context: typer.Context,
    space: str,
    *,
    settings: Settings = (),
    method: str = "exhaustive",
    trials: int | None = None,
    thorough: bool = False,
    side_by_side: int = 8,
    judging: Judging,
    explain: str | None = None,
    jobs: int | None = None,
    cluster: str | None = None,
    allow_programs: bool = False,
    session: Session,
) -> None:
    """Find the best configurations of a space: values to try, constraints and objectives.

    space SPACE: A YAML file with a scenario, values to try, constraints and objectives; or a folder
        of results, with --explain.
    method: exhaustive; or tpe or nsga2 (need Optuna), which learn which values to try.
    trials N: Configurations that tpe and nsga2 try; by default a fifth of the space.
    thorough: Search the goodput of all configurations, also of those that one run shows to be
        behind.
    side_by_side N: Configurations that run side by side against the best so far; raise it for a
        cluster. Another number may change rows, but not the best ones.
    explain ROW: Show the settings, figures and rates of one row, by its number or name.
    """
    from mist_sim.search.spaces import SearchOptions, read_space, search_space
    from mist_sim.search.spaces.space_result import row_of

    if session.as_json and explain is not None:
        raise ScenarioError(
            "--explain has no effect with --json, which has all rows; leave one out"
        )
    if Path(space).is_dir():
        _check_alone(context)
        _explain_results(Path(space), explain)
        return
    options = SearchOptions(
        method=method,  # type: ignore[arg-type] # it checks the name
        trials=trials,
        thorough=thorough,
        side_by_side=side_by_side,
        **judging.said,
    )
    read = read_space(space, overrides_of(settings), allow_programs=allow_programs)
    of_goodput = ["thorough"] * thorough + [*judging.said]
    _check_judged(read, [option_of(name) for name in of_goodput])
    if explain is not None:
        # before anything runs: a row that will not be there is an error
        row_of([{"number": e.number, "name": e.name} for e in read.configurations()], explain)
    executor = executor_of(cluster, jobs)
    found = session.search(
        lambda how: search_space(read, options, jobs=jobs, executor=executor, **how)
    )
    if explain is not None:
        _show(found.row(explain))
    if len(found.objectives) > 1:
        session.note_undrawn("front.png")


def _check_alone(context: typer.Context) -> None:
    """Raise ScenarioError for options that have no effect on results that were written before."""
    for each in context.command.params:
        source = context.get_parameter_source(each.name or "")
        is_given = source is not None and source.name != "DEFAULT"
        if is_given and each.name not in ("space", "explain", "quiet"):
            raise ScenarioError(
                f"{each.opts[0]} has no effect with a folder of results, of which --explain shows "
                "a row; leave it out"
            )


def _check_judged(space: Space, given: list[str]) -> None:
    """Raise ScenarioError for options of the verdict on rates, if no rates are judged.

    given: the options that were set.
    """
    judges = space.constraints.attainment is not None or any(
        each.source in ("rate", "at goodput") for each in space.objectives
    )
    if given and not judges:
        raise ScenarioError(
            f"{given[0]} has no effect without a goodput among the objectives, or "
            "constraints.attainment; leave it out"
        )


def _explain_results(folder: Path, explain: str | None) -> None:
    """Show a row of results that were written before."""
    from mist_sim.inputs import object_in
    from mist_sim.report.presenters import MOST_BYTES
    from mist_sim.search.spaces.space_result import row_of

    path = folder / _RESULTS
    if explain is None or not path.is_file():
        raise ScenarioError(
            f"{folder}: is a folder; give a space (YAML), or --explain ROW with a folder that mist "
            "search --out wrote"
        )
    try:
        rows = object_in(path, MOST_BYTES)["rows"]
        row = row_of(rows, explain)
        _show(row)
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, ScenarioError):
            raise
        raise ScenarioError(f"{path}: is no result of mist search, or is damaged") from None


def _show(row: Mapping[str, Any]) -> None:
    from mist_sim.report.elements import show
    from mist_sim.report.space import row_table

    show("", row_table(row))


def sweep(
    scenario: Annotated[str, {"autocompletion": presets}],
    axes: Sequence[str],
    *,
    settings: Settings = (),
    metric: str | None = None,
    with_goodput: bool = False,
    attainment: float | None = None,
    judging: Judging,
    seed: int | None = None,
    jobs: int | None = None,
    cluster: str | None = None,
    allow_programs: bool = False,
    session: Session,
) -> None:
    """Run a scenario over the values of one key or two, and show one figure of it.

    scenario SCENARIO: A YAML file, the name of a preset, or - for standard input.
    axes KEY=VALUES...: One key or two, with values as a range or a list: clients.0.count=1:8,
        clients.0.scheduler.max_num_batched_tokens=128:2048:x2, router=random,round_robin.
    metric NAME: A number of a run's summary, such as p99_ttft_ms; by default the share of good
        requests.
    with_goodput --goodput: Show the goodput at each point: the largest rate that keeps the limits.
    """
    from mist_sim.metrics.result import check_number
    from mist_sim.search.spaces import SearchOptions
    from mist_sim.search.sweeps import GOOD, goodput_sweep
    from mist_sim.search.sweeps import sweep as run

    require("--goodput", with_goodput, **judging.said)
    if attainment is not None and metric not in (None, GOOD):
        raise ScenarioError(f"--attainment has no effect with --metric {metric}; leave one out")
    if with_goodput and metric is not None:
        raise ScenarioError("--metric has no effect with --goodput; leave one out")
    if metric is not None:
        check_number("--metric", metric)
    overrides = keys_of((), settings, seed=seed)
    loaded = load(scenario, overrides, allow_programs=allow_programs)
    vary = axes_of(axes, overrides)
    shared: dict[str, Any] = {"attainment": attainment, "jobs": jobs}
    shared["executor"] = executor_of(cluster, jobs)
    if with_goodput:
        options = SearchOptions(thorough=True, **judging.said)
        session.search(lambda how: goodput_sweep(loaded, vary, options, **shared, **how))
    else:
        session.search(
            lambda how: run(loaded, vary, metric=metric, **shared, **how),
            prod(map(len, vary.values())) * loaded.replications,
        )
    session.note_undrawn("sweep.png")
