"""`mist goodput`: the largest arrival rate at which a scenario attains its SLO."""

from __future__ import annotations

import typer

from mist_sim.cli.options import (
    AsIs,
    AsJson,
    Attainment,
    Force,
    Jobs,
    MostRequests,
    Out,
    Quiet,
    Resume,
    require_out,
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
    with_nearest,
)


def goodput(
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
    tolerance: float = typer.Option(
        0.02, help="Stop when the goodput is known to within this share."
    ),
    most_requests: MostRequests = None,
    as_is: AsIs = False,
    why: bool = typer.Option(
        False,
        "--why",
        help="Name the binding resource: the one that, relaxed by a tenth, moves goodput most.",
    ),
    replications: int | None = typer.Option(
        None, metavar="N", help="Search with N seeds; gives the mean and a confidence interval."
    ),
    jobs: Jobs = None,
    approximate: Approximate = False,
    allow_programs: AllowPrograms = False,
    out: Out = None,
    force: Force = False,
    resume: Resume = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Find the largest arrival rate at which a scenario attains its SLO.

    The same requests are sent at one rate after the other, and only their arrivals scale.
    """
    from mist_sim.cli.search_input import goodput_options, interval_of, percentiles_in
    from mist_sim.cli.session import Session
    from mist_sim.search.goodput import find_goodput

    require_out(force, out, resume)
    require_scenario(scenario, commands)
    overrides = keys_of(commands, with_nearest(settings, approximate))
    if replications is not None:
        overrides["replications"] = replications
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
    session = Session(out=out, force=force, as_json=as_json, quiet=quiet, resume=resume)
    session.search(lambda how: find_goodput(loaded, options, why=why, jobs=jobs, **how))
