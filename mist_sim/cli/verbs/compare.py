"""`mist compare`: several scenarios on one workload, in one table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

from mist_sim.cli.scenario_input import STDIN, load, of_vllm, presets, with_nearest
from mist_sim.cli.session import Session
from mist_sim.cli.values import (
    Judging,
    cases_of,
    given,
    overrides_of,
    rates_of,
    require,
    times_of,
    vary_of,
)
from mist_sim.errors import ScenarioError, printable

if TYPE_CHECKING:
    from mist_sim.scenario import Scenario


def compare(
    scenarios: Annotated[Sequence[str], {"autocompletion": presets}],
    *,
    settings: Sequence[str] = (),
    commands: Sequence[str] = (),
    vary: Sequence[str] = (),
    case: Sequence[str] = (),
    designs: bool = False,
    with_goodput: bool = False,
    slo_plane: bool = False,
    attainment: float | None = None,
    rates: str | None = None,
    judging: Judging,
    why: bool = False,
    ttft: str | None = None,
    tpot: str | None = None,
    points: int | None = None,
    num_rates: int | None = None,
    any_workload: bool = False,
    seed: int | None = None,
    jobs: int | None = None,
    approximate: bool = False,
    allow_programs: bool = False,
    session: Session,
) -> None:
    """Run several scenarios on the same workload and compare them.

    scenarios SCENARIO...: Two or more YAML files, names of presets, or - for standard input; one is
        enough with --vary, --case or --designs.
    settings --set KEY=VALUE: Set a value of all scenarios, such as slo.ttft='1 s'; repeatable.
    case NAME:KEY=VALUE,...: Run each scenario with these settings, under this name; repeatable, and
        NAME: alone is the scenario as it is.
    designs: Compare what the GPUs of one scenario allow: clients that do both, with several chunks,
        every ratio of clients for prompts and for answers, hybrids, attention and FFN apart, and
        layouts that change between prompts and answers.
    with_goodput --goodput: Also search each scenario's goodput, the largest rate that keeps the
        limits.
    slo_plane: Also show the winner under each pair of limits.
    rates LOW:HIGH: The rates to search, and to run for the plane, per second.
    why: Say in a line why each loser loses; with --goodput also name the winner's binding resource:
        the one that, relaxed by a tenth, moves its goodput most; a dozen more runs.
    ttft LOW:HIGH: TTFT limits of the plane; by default '100 ms:10 s'.
    tpot LOW:HIGH: TPOT limits of the plane; by default '10 ms:200 ms'.
    points N: Limits on each axis of the plane; by default 12.
    num_rates N: Rates that are run for the plane; by default 12.
    any_workload: Allow scenarios with different workloads or limits.
    """
    from mist_sim.scenario.schema import Splittable
    from mist_sim.search.comparison import compare
    from mist_sim.search.goodput import GoodputOptions
    from mist_sim.search.slo_plane import PlaneOptions

    require(
        "--goodput or --slo-plane", with_goodput or slo_plane, attainment=attainment, rates=rates
    )
    require("--goodput", with_goodput, **judging.said)
    require("--slo-plane", slo_plane, ttft=ttft, tpot=tpot, points=points, num_rates=num_rates)
    shared = given(attainment=attainment, rates=rates_of(rates))
    limits: dict[str, Any] = {
        name: times_of(f"--{name}", text) for name, text in given(ttft=ttft, tpot=tpot).items()
    }
    axes = given(num_points=points, num_rates=num_rates)
    searched = GoodputOptions(**shared, **judging.said) if with_goodput else None
    plane = PlaneOptions(**shared, **axes, **limits) if slo_plane else None
    settings = with_nearest([*settings, *([] if seed is None else [f"seed={seed}"])], approximate)
    kind = Splittable if designs else None
    loaded = _loaded(scenarios, commands, settings, kind, allow_programs=allow_programs)
    compared = _varied(loaded, cases_of(case), vary_of(vary, overrides_of(settings)))
    beside: dict[str, Any] = {}
    if designs:
        is_one = len(compared) == 1  # cases may differ in their GPUs
        compared, beside = _designs(scenarios, compared)
        beside["race"] = is_one
    num_runs = sum(getattr(scenario, "replications", 0) for scenario in compared.values())
    session.search(
        lambda how: compare(
            compared,
            goodput=searched,
            why=why,
            plane=plane,
            same_workload=not any_workload,
            jobs=jobs,
            **beside,
            **how,
        ),
        None if with_goodput or slo_plane else num_runs,
    )
    if slo_plane:
        session.note_undrawn("slo_plane.png")


def _loaded(
    scenarios: Sequence[str],
    commands: Sequence[str],
    settings: Sequence[str],
    kind: type[Scenario] | None,
    *,
    allow_programs: bool,
) -> dict[str, Scenario]:
    """Return the scenarios by name; vLLM's commands and settings apply to all.

    kind: what they are read as; None: scenarios.
    """
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
        name: load(file, overrides, allow_programs=allow_programs, kind=kind)
        for name, file in zip(names, scenarios, strict=True)
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
    from mist_sim.studies.points import combinations
    from mist_sim.studies.varied_gpus import varied

    for case, settings in cases.items():
        if twice := settings.keys() & vary.keys():
            raise ScenarioError(
                f"--case {case} sets {min(twice)}, which --vary sets too; leave one out"
            )
    found: dict[str, Scenario | ScenarioError] = {}
    for name, scenario in loaded.items():
        for words, _, changes in combinations(cases, vary):
            label = " ".join([name] * (len(loaded) > 1 or not any(words)) + words)
            try:
                found[label] = varied(scenario, changes) if changes else scenario
            except ScenarioError as error:
                found[label] = error
    if len(found) == 1 and isinstance(only := found[label], ScenarioError):
        raise ScenarioError(f"{label}: {only}") from only
    return found


def _designs(
    named: Sequence[str], compared: Mapping[str, Scenario | ScenarioError]
) -> tuple[dict[str, Scenario | ScenarioError], dict[str, Any]]:
    """Return the designs of a scenario, of each of its cases, and the remarks on them.

    An impossible case is passed on unchanged. Raises ScenarioError where there are no designs.
    """
    from mist_sim.search.designs import designs_of

    if len(named) > 1:
        raise ScenarioError(f"SCENARIO must be one with --designs, got {len(named)}")
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


def _names(named: Sequence[str]) -> list[str]:
    """Return short names of scenarios: of files without folder and ending where that is enough.

    Raises ScenarioError where one is given twice.
    """
    for name, count in Counter(named).items():
        if count > 1:
            raise ScenarioError(
                f"SCENARIO must be given once each, got {name} {count} times; --set holds for all, "
                "so give its settings by --case (or --vary): "
                f"mist compare {quote(name)} --case a: --case b:KEY=VALUE"
            )
    short = ["stdin" if name == STDIN else printable(Path(name).stem) for name in named]
    return short if len(set(short)) == len(short) else list(map(printable, named))
