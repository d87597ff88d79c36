"""`mist goodput`: the largest arrival rate at which a scenario attains its SLO."""

from __future__ import annotations

import typer

from mist_sim.cli.options import (
    AsIs,
    Attainment,
    Jobs,
    MostRequests,
    Replications,
    Seconds,
    Seed,
    Tolerance,
)
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


@saves()
def goodput(
    session: Session,
    scenario: ScenarioName = None,
    settings: Settings = [],  # noqa: B006 - typer makes a new list
    commands: FromVllm = [],  # noqa: B006
    attainment: Attainment = None,
    percentiles: list[str] = typer.Option(
        [],
        "--percentile",
        metavar="NAME=TIME",
        help="An additional limit on a percentile, such as p50_ttft='2 s'; repeatable.",
    ),
    relaxation: float = typer.Option(
        0.0, help="Share by which latencies may exceed their limits; 0.1 in BestServe."
    ),
    each: bool = typer.Option(
        False,
        "--each",
        help="Judge each limit on its own, as BestServe does: a request may keep one and "
        "miss the other.",
    ),
    rates: str | None = typer.Option(
        None,
        metavar="LOW:HIGH",
        help="The rates to search, per second; by default around the scenario's own.",
    ),
    tolerance: Tolerance = 0.02,
    most_requests: MostRequests = None,
    as_is: AsIs = False,
    why: bool = typer.Option(
        False,
        "--why",
        help="Name the binding resource: the one that, relaxed by a tenth, moves goodput most.",
    ),
    seconds: Seconds = 0.0,
    seed: Seed = None,
    replications: Replications = None,
    jobs: Jobs = None,
    approximate: Approximate = False,
    allow_programs: AllowPrograms = False,
) -> None:
    """Find the largest arrival rate at which a scenario attains its SLO.

    The same requests are sent at one rate after the other, and only their arrivals scale.
    """
    from mist_sim.cli.search_input import goodput_options, interval_of, percentiles_in
    from mist_sim.search.goodput import find_goodput

    require_scenario(scenario, commands)
    overrides = keys_of(
        commands, settings, approximate=approximate, seed=seed, replications=replications
    )
    options = goodput_options(
        attainment=attainment,
        relaxation=relaxation,
        each=each,
        percentiles=percentiles_in(percentiles),
        rates=interval_of("--rates", rates) if rates is not None else None,
        tolerance=tolerance,
        most_requests=most_requests,
        as_is=as_is,
    )
    loaded = load(scenario, overrides, allow_programs=allow_programs)
    options.target(loaded)  # errors in it show before the first run
    session.search(
        lambda how: find_goodput(
            loaded, options, why=why, seconds=seconds or None, jobs=jobs, **how
        )
    )
