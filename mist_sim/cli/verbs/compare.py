"""`mist compare`: several scenarios on one workload, in one table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import typer

from mist_sim.cli.options import AsIs, Attainment, GoodputTolerance, Jobs, MostRequests, Seed
from mist_sim.cli.scenario_input import (
    STDIN,
    AllowPrograms,
    Approximate,
    FromVllm,
    load,
    of_vllm,
    presets,
    with_nearest,
)
from mist_sim.cli.session import Session, saves
from mist_sim.cli.settings import overrides_of
from mist_sim.cli.vary_input import Vary, cases_of, vary_of

if TYPE_CHECKING:
    from mist_sim.errors import ScenarioError
    from mist_sim.scenario import Scenario
    from mist_sim.search.slo_plane import PlaneOptions


@saves()
def compare(
    session: Session,
    scenarios: list[str] = typer.Argument(
        metavar="SCENARIO...",
        help="Two or more YAML files, names of presets, or - for standard input; one is enough "
        "with --vary, --case or --designs.",
        show_default=False,
        autocompletion=presets,
    ),
    settings: list[str] = typer.Option(
        [],
        "--set",
        metavar="KEY=VALUE",
        help="Set a value of all scenarios, such as slo.ttft='1 s'; repeatable.",
        show_default=False,
    ),
    commands: FromVllm = [],  # noqa: B006 - typer makes a new list
    vary: Vary = [],  # noqa: B006
    cases: list[str] = typer.Option(
        [],
        "--case",
        metavar="NAME:KEY=VALUE,...",
        help="Run each scenario with these settings, under this name; repeatable, and NAME: alone "
        "is the scenario as it is.",
        show_default=False,
    ),
    designs: bool = typer.Option(
        False,
        "--designs",
        help="Compare what the GPUs of one scenario allow: clients that do both, with several "
        "chunks, every ratio of clients for prompts and for answers, hybrids, attention and "
        "FFN apart, and layouts that change between prompts and answers.",
    ),
    with_goodput: bool = typer.Option(
        False,
        "--goodput",
        help="Also search each scenario's goodput, the largest rate that keeps the limits.",
    ),
    plane: bool = typer.Option(
        False, "--slo-plane", help="Also show the winner under each pair of limits."
    ),
    attainment: Attainment = None,
    rates: str | None = typer.Option(
        None, metavar="LOW:HIGH", help="The rates to search, and to run for the plane, per second."
    ),
    tolerance: GoodputTolerance = None,
    most_requests: MostRequests = None,
    as_is: AsIs = False,
    why: bool = typer.Option(
        False,
        "--why",
        help="Say in a line why each loser loses; with --goodput also name the winner's binding "
        "resource: the one that, relaxed by a tenth, moves its goodput most; a dozen more runs.",
    ),
    ttft: str | None = typer.Option(
        None, metavar="LOW:HIGH", help="TTFT limits of the plane; by default '100 ms:10 s'."
    ),
    tpot: str | None = typer.Option(
        None, metavar="LOW:HIGH", help="TPOT limits of the plane; by default '10 ms:200 ms'."
    ),
    points: int | None = typer.Option(
        None, metavar="N", help="Limits on each axis of the plane; by default 12."
    ),
    num_rates: int | None = typer.Option(
        None, metavar="N", help="Rates that are run for the plane; by default 12."
    ),
    any_workload: bool = typer.Option(
        False, "--any-workload", help="Allow scenarios with different workloads or limits."
    ),
    seed: Seed = None,
    jobs: Jobs = None,
    approximate: Approximate = False,
    allow_programs: AllowPrograms = False,
) -> None:
    """Run several scenarios on the same workload and compare them."""
    from mist_sim.cli.search_input import goodput_options
    from mist_sim.search.comparison import compare

    searched = {"--attainment": attainment, "--rates": rates}
    _require("--goodput or --slo-plane", with_goodput or plane, searched)
    of_goodput = {"--tolerance": tolerance, "--most-requests": most_requests}
    _require("--goodput", with_goodput, {**of_goodput, "--as-is": as_is or None})
    of_plane = {"--ttft": ttft, "--tpot": tpot, "--points": points, "--num-rates": num_rates}
    _require("--slo-plane", plane, of_plane)
    shared = _shared(attainment, rates)
    own = {"tolerance": tolerance, "most_requests": most_requests, "as_is": as_is}
    how_searched = goodput_options(**shared, **own) if with_goodput else None
    limits = {"--ttft": ttft, "--tpot": tpot}
    plane_options = _plane_options(shared, limits, points, num_rates) if plane else None
    settings = with_nearest([*settings, *([] if seed is None else [f"seed={seed}"])], approximate)
    from mist_sim.scenario.schema import Splittable

    kind = Splittable if designs else None
    loaded = _loaded(scenarios, commands, settings, kind, allow_programs=allow_programs)
    compared = _varied(loaded, cases_of(cases), vary_of(vary, overrides_of(settings)))
    beside: dict[str, Any] = {}
    if designs:
        is_one = len(compared) == 1  # cases may differ in their GPUs
        compared, beside = _designs(scenarios, compared)
        beside["race"] = is_one
    num_runs = sum(getattr(scenario, "replications", 0) for scenario in compared.values())
    total = None if with_goodput or plane else num_runs
    session.search(
        lambda how: compare(
            compared,
            goodput=how_searched,
            why=why,
            plane=plane_options,
            same_workload=not any_workload,
            jobs=jobs,
            **beside,
            **how,
        ),
        total,
    )
    if plane:
        session.note_undrawn("slo_plane.png")


def _shared(attainment: float | None, rates: str | None) -> dict[str, Any]:
    """Return the common options of a goodput search and the plane."""
    from mist_sim.cli.search_input import interval_of

    ends = interval_of("--rates", rates) if rates is not None else None
    return _given(attainment=attainment, rates=ends)


def _plane_options(
    shared: Mapping[str, Any],
    limits: Mapping[str, str | None],
    points: int | None,
    num_rates: int | None,
) -> PlaneOptions:
    from mist_sim.cli.search_input import times_of
    from mist_sim.search.slo_plane import PlaneOptions

    own: dict[str, Any]
    own = {name[2:]: times_of(name, text) for name, text in limits.items() if text is not None}
    return PlaneOptions(**shared, **_given(num_points=points, num_rates=num_rates), **own)


def _loaded(
    scenarios: Sequence[str],
    commands: list[str],
    settings: list[str],
    kind: type[Scenario] | None,
    *,
    allow_programs: bool,
) -> dict[str, Scenario]:
    """Return the scenarios by name; vLLM's commands and settings apply to all.

    kind: what they are read as; None: scenarios.
    """
    from mist_sim.errors import ScenarioError

    names = _names(scenarios)
    settings_said = overrides_of(settings)
    said = of_vllm(commands, settings_said)
    if "clients" in said and len(scenarios) > 1:
        raise ScenarioError(
            "--from-vllm must be a vllm bench serve, since a server would replace the clients of "
            "all scenarios; give one scenario with --vary, --case or --designs, or write the "
            "server into a file with mist from-vllm, and compare that"
        )
    overrides = said | settings_said
    return {
        name: load(given, overrides, allow_programs=allow_programs, kind=kind)
        for name, given in zip(names, scenarios, strict=True)
    }


def _varied(
    loaded: Mapping[str, Scenario],
    cases: Mapping[str, Mapping[str, Any]],
    vary: Mapping[str, Sequence[Any]],
) -> dict[str, Scenario | ScenarioError]:
    """Return every scenario in every case, at every point of --vary.

    An impossible one is its error. Raises ScenarioError where a case sets a key that varies, and
    for an impossible one that is alone.
    """
    from mist_sim.errors import ScenarioError
    from mist_sim.studies.points import points_of
    from mist_sim.studies.varied_gpus import varied

    found: dict[str, Scenario | ScenarioError] = {}
    for name, scenario in loaded.items():
        for case, settings in (cases or {"": {}}).items():
            for point in points_of(vary):
                is_named = len(loaded) > 1 or not (case or point.name)
                words = [name] * is_named + [case] * bool(case) + [point.name] * bool(vary)
                label = " ".join(words)
                if twice := settings.keys() & point.values.keys():
                    raise ScenarioError(
                        f"--case {case} sets {min(twice)}, which --vary sets too; leave one out"
                    )
                changes = {**settings, **point.values}
                try:
                    found[label] = varied(scenario, changes) if changes else scenario
                except ScenarioError as error:
                    found[label] = error
    if len(found) == 1 and isinstance(only := found[label], ScenarioError):
        raise ScenarioError(f"{label}: {only}") from only
    return found


def _designs(
    given: Sequence[str], compared: Mapping[str, Scenario | ScenarioError]
) -> tuple[dict[str, Scenario | ScenarioError], dict[str, Any]]:
    """Return the designs of a scenario, of each of its cases, and the remarks on them.

    An impossible case is passed on unchanged. Raises ScenarioError where there are no designs.
    """
    from mist_sim.errors import ScenarioError
    from mist_sim.search.designs import designs_of

    if len(given) > 1:
        raise ScenarioError(f"SCENARIO must be one with --designs, got {len(given)}")
    found: dict[str, Scenario | ScenarioError] = {}
    left_out: dict[str, str] = {}
    assumed: dict[str, str] = {}
    uneven: dict[str, None] = {}
    for case, scenario in compared.items():
        label = f"{case}: " if len(compared) > 1 else ""
        if isinstance(scenario, ScenarioError):
            found[case] = scenario
            continue
        try:
            designs = designs_of(scenario)
        except ScenarioError as error:
            raise ScenarioError(f"{label}{error}") from error
        found |= {label + name: each for name, each in designs.scenarios.items()}
        left_out |= {label + name: reason for name, reason in designs.left_out.items()}
        assumed |= {label + name: text for name, text in designs.assumed.items()}
        uneven |= dict.fromkeys(label + kind for kind in designs.uneven)
    return found, {"left_out": left_out, "assumed": assumed, "uneven": tuple(uneven)}


def _require(other: str, is_given: bool, options: Mapping[str, object]) -> None:
    """Raise ScenarioError where options are set that have no effect without another."""
    from mist_sim.errors import ScenarioError

    for name, value in options.items():
        if value is not None and not is_given:
            raise ScenarioError(f"{name} has no effect without {other}; give that too")


def _given(**options: Any) -> dict[str, Any]:
    """Return the options that are set."""
    return {name: value for name, value in options.items() if value is not None}


def _names(given: Sequence[str]) -> list[str]:
    """Return short names of scenarios: of files without folder and ending where that is enough.

    Raises ScenarioError where one is given twice.
    """
    from mist_sim.errors import ScenarioError, printable

    for name, count in Counter(given).items():
        if count > 1:
            raise ScenarioError(
                f"SCENARIO must be given once each, got {name} {count} times; --set holds for all, "
                "so give its settings by --case (or --vary): "
                f"mist compare {quote(name)} --case a: --case b:KEY=VALUE"
            )
    short = ["stdin" if name == STDIN else printable(Path(name).stem) for name in given]
    return short if len(set(short)) == len(short) else list(map(printable, given))
