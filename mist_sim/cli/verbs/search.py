"""`mist search`: the best configurations of a space, for one objective or several."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mist_sim.cli.options import AsIs, Cluster, GoodputTolerance, Jobs, MostRequests, executor_of
from mist_sim.cli.scenario_input import AllowPrograms, Settings
from mist_sim.cli.session import Session, saves
from mist_sim.cli.settings import overrides_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mist_sim.search.spaces import Space

_RESULTS = "search.json"
_OPTIONS = {"settings": "--set", "as_json": "--json"}


@saves()
def search(
    session: Session,
    context: typer.Context,
    space: str = typer.Argument(
        metavar="SPACE",
        help="A YAML file with a scenario, values to try, constraints and objectives; "
        "or a folder of results, with --explain.",
        show_default=False,
    ),
    settings: Settings = [],  # noqa: B006 - typer makes a new list
    method: str = typer.Option(
        "exhaustive",
        help="exhaustive; or tpe or nsga2 (need Optuna), which learn which values to try.",
    ),
    trials: int | None = typer.Option(
        None,
        metavar="N",
        help="Configurations that tpe and nsga2 try; by default a fifth of the space.",
    ),
    thorough: bool = typer.Option(
        False,
        "--thorough",
        help="Search the goodput of all configurations, also of those that one run shows to be "
        "behind.",
    ),
    side_by_side: int = typer.Option(
        8,
        metavar="N",
        help="Configurations that run side by side against the best so far; raise it for a "
        "cluster. Another number may change rows, but not the best ones.",
    ),
    tolerance: GoodputTolerance = None,
    most_requests: MostRequests = None,
    as_is: AsIs = False,
    explain: str | None = typer.Option(
        None,
        metavar="ROW",
        help="Show the settings, figures and rates of one row, by its number or name.",
        show_default=False,
    ),
    jobs: Jobs = None,
    cluster: Cluster = None,
    allow_programs: AllowPrograms = False,
) -> None:
    """Find the best configurations of a space: values to try, constraints and objectives."""
    from mist_sim.errors import ScenarioError
    from mist_sim.search.spaces import SearchOptions, read_space, search_space

    if session.as_json and explain is not None:
        raise ScenarioError(
            "--explain has no effect with --json, which has all rows; leave one out"
        )
    if Path(space).is_dir():
        _check_alone(context)
        _explain_results(Path(space), explain)
        return
    options = SearchOptions(
        method=method,
        trials=trials,
        thorough=thorough,
        side_by_side=side_by_side,
        tolerance=0.02 if tolerance is None else tolerance,
        most_requests=most_requests,
        as_is=as_is,
    )
    read = read_space(space, overrides_of(settings), allow_programs=allow_programs)
    of_goodput = {
        "--thorough": thorough,
        "--tolerance": tolerance is not None,
        "--most-requests": most_requests is not None,
        "--as-is": as_is,
    }
    _check_judged(read, [name for name, is_given in of_goodput.items() if is_given])
    if explain is not None:
        _check_row(read, explain)
    executor = executor_of(cluster, jobs)
    found = session.search(
        lambda how: search_space(read, options, jobs=jobs, executor=executor, **how)
    )
    if explain is not None:
        _show(found.row(explain), as_json=session.as_json)
    if len(found.objectives) > 1:
        session.note_undrawn("front.png")


def _check_alone(context: typer.Context) -> None:
    """Raise ScenarioError for options that have no effect on results that were written before."""
    from mist_sim.errors import ScenarioError

    for name in context.params:
        source = context.get_parameter_source(name)
        is_given = source is not None and source.name != "DEFAULT"
        if is_given and name not in ("space", "explain", "quiet"):
            option = f"--{name.replace('_', '-')}" if name not in _OPTIONS else _OPTIONS[name]
            raise ScenarioError(
                f"{option} has no effect with a folder of results, of which --explain shows a row; "
                "leave it out"
            )


def _check_judged(space: Space, given: list[str]) -> None:
    """Raise ScenarioError for options of the verdict on rates, if no rates are judged.

    given: the options that were set.
    """
    from mist_sim.errors import ScenarioError

    judges = space.constraints.attainment is not None or any(
        each.source in ("rate", "at goodput") for each in space.objectives
    )
    if given and not judges:
        raise ScenarioError(
            f"{given[0]} has no effect without a goodput among the objectives, or "
            "constraints.attainment; leave it out"
        )


def _check_row(space: Space, explain: str) -> None:
    """Raise ScenarioError, before anything runs, for a row that will not be there."""
    from mist_sim.search.spaces.space_result import row_of

    row_of([{"number": each.number, "name": each.name} for each in space.configurations()], explain)


def _explain_results(folder: Path, explain: str | None) -> None:
    """Show a row of results that were written before."""
    from mist_sim.errors import ScenarioError
    from mist_sim.inputs import object_in
    from mist_sim.report.folder_page import MOST_BYTES
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
        _show(row, as_json=False)
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, ScenarioError):
            raise
        raise ScenarioError(f"{path}: is no result of mist search, or is damaged") from None


def _show(row: Mapping[str, Any], *, as_json: bool) -> None:
    from mist_sim.report.elements import show
    from mist_sim.report.space import row_table

    if not as_json:
        show("", row_table(row))
