"""`mist sliders`: the best sliders of TaiChi's hybrid, and of the pure designs at their ends."""

from __future__ import annotations

import typer

from mist_sim.cli.options import AsIs, Attainment, Jobs, MostRequests, Seed, Tolerance
from mist_sim.cli.scenario_input import (
    AllowPrograms,
    ScenarioName,
    Settings,
    keys_of,
    load,
    require_scenario,
)
from mist_sim.cli.session import Session, saves


@saves()
def sliders(
    session: Session,
    scenario: ScenarioName = None,
    settings: Settings = [],  # noqa: B006 - typer makes a new list
    chunks: str = typer.Option(
        "128,256,512,1024,2048", metavar="N,N,...", help="Chunks to try, in tokens."
    ),
    watermarks: str | None = typer.Option(
        None,
        metavar="M,M,...",
        help="Watermarks of hybrids to try: the part of a D-heavy client's memory above which "
        "answers leave it.  [default: the scenario's]",
    ),
    attainment: Attainment = None,
    tolerance: Tolerance = 0.02,
    most_requests: MostRequests = None,
    as_is: AsIs = False,
    seed: Seed = None,
    jobs: Jobs = None,
    allow_programs: AllowPrograms = False,
) -> None:
    """Find the goodput of aggregation, disaggregation and TaiChi's hybrid, each at its best.

    SCENARIO is a hybrid, with a client of role p_heavy and one of role d_heavy. The sliders are
    how many of the clients are P-heavy, and the chunks of either kind; with --watermarks also how
    full D-heavy clients may become.
    """
    from mist_sim.cli.lists import whole_numbers
    from mist_sim.cli.search_input import goodput_options
    from mist_sim.search.slider_search import search_sliders

    options = goodput_options(
        attainment=attainment, tolerance=tolerance, most_requests=most_requests, as_is=as_is
    )
    require_scenario(scenario, [])
    loaded = load(scenario, keys_of([], settings, seed=seed), allow_programs=allow_programs)
    options.target(loaded)  # errors in it show before the first run
    sizes = list(whole_numbers(chunks, "--chunks"))
    marks = _watermarks(watermarks)
    session.search(
        lambda how: search_sliders(
            loaded, options, chunks=sizes, watermarks=marks, jobs=jobs, **how
        )
    )


def _watermarks(text: str | None) -> list[float | None]:
    from mist_sim.errors import ScenarioError, brief

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
