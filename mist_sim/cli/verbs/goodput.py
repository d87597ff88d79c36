"""`mist goodput`, and `mist sliders`: the goodputs of TaiChi's hybrid and of the pure designs."""

from __future__ import annotations

from collections.abc import Sequence

from mist_sim.cli.scenario_input import ScenarioName, Settings, keys_of, load, require_scenario
from mist_sim.cli.session import Session
from mist_sim.cli.values import given, percentiles_in, rates_of, whole_numbers
from mist_sim.errors import ScenarioError, brief


def goodput(
    scenario: ScenarioName = None,
    *,
    settings: Settings = (),
    commands: Sequence[str] = (),
    attainment: float | None = None,
    percentile: Sequence[str] = (),
    relaxation: float = 0.0,
    each: bool = False,
    rates: str | None = None,
    tolerance: float = 0.02,
    most_requests: int | None = None,
    as_is: bool = False,
    why: bool = False,
    seconds: float = 0.0,
    seed: int | None = None,
    replications: int | None = None,
    jobs: int | None = None,
    approximate: bool = False,
    allow_programs: bool = False,
    session: Session,
) -> None:
    """Find the largest arrival rate at which a scenario attains its SLO.

    The same requests are sent at one rate after the other, and only their arrivals scale.

    percentile NAME=TIME: An additional limit on a percentile, such as p50_ttft='2 s'; repeatable.
    relaxation: Share by which latencies may exceed their limits; 0.1 in BestServe.
    each: Judge each limit on its own, as BestServe does: a request may keep one and miss the other.
    rates LOW:HIGH: The rates to search, per second; by default around the scenario's own.
    why: Name the binding resource: the one that, relaxed by a tenth, moves goodput most.
    """
    from mist_sim.search.goodput import GoodputOptions, find_goodput

    require_scenario(scenario, commands)
    overrides = keys_of(
        commands, settings, approximate=approximate, seed=seed, replications=replications
    )
    options = GoodputOptions(
        **given(attainment=attainment, rates=rates_of(rates), most_requests=most_requests),
        relaxation=relaxation,
        each=each,
        percentiles=percentiles_in(percentile),
        tolerance=tolerance,
        as_is=as_is,
    )
    loaded = load(scenario, overrides, allow_programs=allow_programs)
    options.target(loaded)  # errors in it show before the first run
    session.search(
        lambda how: find_goodput(
            loaded, options, why=why, seconds=seconds or None, jobs=jobs, **how
        )
    )


def sliders(
    scenario: ScenarioName = None,
    *,
    settings: Settings = (),
    chunks: str = "128,256,512,1024,2048",
    watermarks: str | None = None,
    attainment: float | None = None,
    tolerance: float = 0.02,
    most_requests: int | None = None,
    as_is: bool = False,
    seed: int | None = None,
    jobs: int | None = None,
    allow_programs: bool = False,
    session: Session,
) -> None:
    """Find the goodput of aggregation, disaggregation and TaiChi's hybrid, each at its best.

    SCENARIO is a hybrid, with a client of role p_heavy and one of role d_heavy. The sliders are
    how many of the clients are P-heavy, and the chunks of either kind; with --watermarks also how
    full D-heavy clients may become.

    chunks N,N,...: Chunks to try, in tokens.
    watermarks M,M,...: Watermarks of hybrids to try: the part of a D-heavy client's memory above
        which answers leave it.  [default: the scenario's]
    """
    from mist_sim.search.goodput import GoodputOptions
    from mist_sim.search.slider_search import search_sliders

    options = GoodputOptions(
        **given(attainment=attainment, most_requests=most_requests),
        tolerance=tolerance,
        as_is=as_is,
    )
    require_scenario(scenario)
    loaded = load(scenario, keys_of((), settings, seed=seed), allow_programs=allow_programs)
    options.target(loaded)  # errors in it show before the first run
    sizes = list(whole_numbers(chunks, "--chunks"))
    marks = _watermarks(watermarks)
    session.search(
        lambda how: search_sliders(
            loaded, options, chunks=sizes, watermarks=marks, jobs=jobs, **how
        )
    )


def _watermarks(text: str | None) -> list[float | None]:
    if text is None:
        return [None]
    try:
        marks = [float(word) for word in text.split(",")]
    except ValueError:
        marks = [0.0]
    if not all(0 < mark <= 1 for mark in marks):
        raise ScenarioError(
            f"--watermarks must be numbers > 0 and <= 1, with commas between, got {brief(text)}"
        )
    return [*marks]
