"""`mist sweep`: one figure over one key or two."""

from __future__ import annotations

from math import prod

import typer

from mist_sim.cli.options import (
    AsIs,
    Attainment,
    Cluster,
    GoodputTolerance,
    Jobs,
    MostRequests,
    Seed,
    executor_of,
)
from mist_sim.cli.scenario_input import AllowPrograms, Settings, keys_of, load, presets
from mist_sim.cli.session import Session, saves


@saves()
def sweep(
    session: Session,
    scenario: str = typer.Argument(
        metavar="SCENARIO",
        help="A YAML file, the name of a preset, or - for standard input.",
        show_default=False,
        autocompletion=presets,
    ),
    axes: list[str] = typer.Argument(
        metavar="KEY=VALUES...",
        help="One key or two, with values as a range or a list: clients.0.count=1:8, "
        "clients.0.scheduler.max_num_batched_tokens=128:2048:x2, router=random,round_robin.",
        show_default=False,
    ),
    settings: Settings = [],  # noqa: B006 - typer makes a new list
    metric: str | None = typer.Option(
        None,
        metavar="NAME",
        help="A number of a run's summary, such as p99_ttft_ms; by default the share of good "
        "requests.",
        show_default=False,
    ),
    with_goodput: bool = typer.Option(
        False,
        "--goodput",
        help="Show the goodput at each point: the largest rate that keeps the limits.",
    ),
    attainment: Attainment = None,
    tolerance: GoodputTolerance = None,
    most_requests: MostRequests = None,
    as_is: AsIs = False,
    seed: Seed = None,
    jobs: Jobs = None,
    cluster: Cluster = None,
    allow_programs: AllowPrograms = False,
) -> None:
    """Run a scenario over the values of one key or two, and show one figure of it."""
    from mist_sim.cli.vary_input import axes_of
    from mist_sim.errors import ScenarioError
    from mist_sim.metrics.summary_types import check_number
    from mist_sim.search.spaces import SearchOptions
    from mist_sim.search.sweeps import GOOD, goodput_sweep
    from mist_sim.search.sweeps import sweep as run

    of_goodput = {"--tolerance": tolerance, "--most-requests": most_requests}
    for name, value in {**of_goodput, "--as-is": as_is or None}.items():
        if value is not None and not with_goodput:
            raise ScenarioError(f"{name} has no effect without --goodput; give that too")
    if attainment is not None and metric not in (None, GOOD):
        raise ScenarioError(f"--attainment has no effect with --metric {metric}; leave one out")
    if with_goodput and metric is not None:
        raise ScenarioError("--metric has no effect with --goodput; leave one out")
    if metric is not None:
        check_number("--metric", metric)
    overrides = keys_of([], settings, seed=seed)
    loaded = load(scenario, overrides, allow_programs=allow_programs)
    vary = axes_of(axes, overrides)
    executor = executor_of(cluster, jobs)
    if with_goodput:
        options = SearchOptions(
            thorough=True,
            tolerance=0.02 if tolerance is None else tolerance,
            most_requests=most_requests,
            as_is=as_is,
        )
        session.search(
            lambda how: goodput_sweep(
                loaded, vary, options, attainment=attainment, jobs=jobs, executor=executor, **how
            )
        )
    else:
        session.search(
            lambda how: run(
                loaded,
                vary,
                metric=metric,
                attainment=attainment,
                jobs=jobs,
                executor=executor,
                **how,
            ),
            prod(map(len, vary.values())) * loaded.replications,
        )
    session.note_undrawn("sweep.png")
