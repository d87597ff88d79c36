"""`mist plan`: the GPUs to buy for a load, and their settings."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import typer

from mist_sim.cli.options import (
    AsIs,
    Attainment,
    InputLen,
    Jobs,
    MostRequests,
    OutputLen,
    Seconds,
    Seed,
    TpotMs,
    TtftMs,
)
from mist_sim.cli.scenario_input import (
    AllowPrograms,
    Approximate,
    FromVllm,
    ScenarioName,
    Settings,
    keys_of,
    load,
)
from mist_sim.cli.session import Session, note, saves

if TYPE_CHECKING:
    from mist_sim.search.planning import Plan

_ROWS = 400  # requests of lengths that the command line gives; runs draw as many as they need


@saves()
def plan(
    session: Session,
    scenario: ScenarioName = None,
    settings: Settings = [],  # noqa: B006 - typer makes a new list
    commands: FromVllm = [],  # noqa: B006
    gpus: str | None = typer.Option(
        None,
        metavar="NAME[,NAME...]",
        help="GPUs to choose from (mist list gpus); by default the scenario's own.",
    ),
    max_gpus: int = typer.Option(16, metavar="N", help="The budget in GPUs."),
    max_usd_per_hour: float | None = typer.Option(
        None, metavar="DOLLARS", help="The budget in dollars an hour."
    ),
    prices: list[str] = typer.Option(
        [],
        "--price",
        metavar="GPU=DOLLARS",
        help="Your price of one GPU an hour, in place of the catalog's; repeatable.",
        show_default=False,
    ),
    model: str | None = typer.Option(
        None, help="The model (mist list models).", show_default=False
    ),
    rate: float | None = typer.Option(
        None, metavar="N", help="Requests per second; by default the scenario's or trace's own."
    ),
    ttft_ms: TtftMs = None,
    tpot_ms: TpotMs = None,
    e2el_ms: float | None = typer.Option(None, metavar="MS", help="Limit on the whole request."),
    itl_ms: float | None = typer.Option(
        None, metavar="MS", help="Limit on the p99 of all gaps between tokens."
    ),
    attainment: Attainment = None,
    profile: str | None = typer.Option(
        None,
        metavar="NAME",
        help="Draw lengths from a shipped profile of a trace, such as azure-conv-2023.",
    ),
    trace: str | None = typer.Option(
        None,
        metavar="FILE",
        help="A trace of requests; its own requests are judged.",
        show_default=False,
    ),
    form: str = typer.Option(
        "azure", "--format", help="The trace's form, one of mist list trace_readers."
    ),
    input_len: InputLen = None,
    output_len: OutputLen = None,
    tensor_parallel_sizes: str = typer.Option(
        "1,2,4,8", "--tp", metavar="N[,N...]", help="Tensor parallel sizes to try."
    ),
    designs: str = typer.Option(
        "together,apart,hybrid,afd",
        metavar="NAME[,...]",
        help="Designs to try; reshard is another one.",
    ),
    routers: str | None = typer.Option(
        None, metavar="NAME[,...]", help="Routers to try; by default least_outstanding."
    ),
    total_requests: int = typer.Option(
        600_000,
        metavar="N",
        help="Stop looking for something cheaper after so many simulated requests; 0: when no "
        "candidate is open.",
    ),
    seconds: Seconds = 0.0,
    most_requests: MostRequests = None,
    as_is: AsIs = False,
    seed: Seed = None,
    write: Path | None = typer.Option(
        None,
        metavar="FILE",
        help="Write the answer as a scenario for mist run.",
        show_default=False,
    ),
    jobs: Jobs = None,
    approximate: Approximate = False,
    allow_programs: AllowPrograms = False,
) -> None:
    """Find the cheapest GPUs that keep the limits at a rate, and how to set them.

    The load is that of SCENARIO, of vllm bench serve, or of --trace, --profile or --input-len and
    --output-len; the engines' options are those of SCENARIO or vllm serve.
    """
    from mist_sim.cli.lists import whole_numbers, words
    from mist_sim.search.planning import PlanOptions
    from mist_sim.search.planning import plan as find

    own = keys_of(commands, settings, approximate=approximate)
    said = {"workload": own.pop("workload")} if "workload" in own else {}
    lengths = {"profile": profile, "trace": trace, "input_len": input_len, "output_len": output_len}
    said |= _workload(lengths, form, rate) | own  # options of a trace may be set, too
    limits = {"ttft": ttft_ms, "tpot": tpot_ms, "e2el": e2el_ms, "itl": itl_ms}
    said |= {f"slo.{name}": f"{ms!r} ms" for name, ms in limits.items() if ms is not None}
    said |= {} if seed is None else {"seed": seed}
    if model is not None:
        said["model"] = model
    asked = words(gpus, "--gpus") if gpus is not None else ()
    loaded = _loaded(scenario, said, asked, allow_programs=allow_programs)
    options = PlanOptions(
        gpus=asked or _own_gpus(loaded),
        rate=rate,
        max_gpus=max_gpus,
        max_usd_per_hour=max_usd_per_hour,
        prices=_prices(prices),
        tensor_parallel_sizes=whole_numbers(tensor_parallel_sizes, "--tp"),
        designs=words(designs, "--designs"),
        routers=words(routers, "--routers") if routers is not None else None,
        attainment=attainment,
        most_requests=most_requests,
        as_is=as_is,
        total_requests=total_requests or None,
        seconds=seconds or None,
    )
    _check_place(write)
    found = session.search(lambda how: find(loaded, options, jobs=jobs, **how))
    if write is not None:
        _write(found, write)
        if not session.quiet:
            note(f"Written to {write}: mist run {quote(str(write))}")


def _loaded(
    name: str | None, said: dict[str, Any], gpus: tuple[str, ...], *, allow_programs: bool
) -> Any:
    """Return the scenario that describes the clients."""
    from mist_sim.errors import ScenarioError

    if name is not None:
        return load(name, said, allow_programs=allow_programs)
    for key, told in {
        "model": "--model, or --from-vllm 'vllm serve ...'",
        "workload": "--trace, --profile, --input-len with --output-len, or --from-vllm "
        "'vllm bench serve ...'",
    }.items():
        if not any(each == key or each.startswith(f"{key}.") for each in said):
            raise ScenarioError(f"{key} is required: give SCENARIO, or {told}")
    if not gpus:
        raise ScenarioError("--gpus is required without SCENARIO, such as --gpus h100-sxm,l40s")
    clients: list[dict[str, Any]] = said.pop("clients", [{"name": "llm"}])
    said["clients"] = [{**client, "gpu": gpus[0]} for client in clients]
    return load(None, said, allow_programs=allow_programs)


def _workload(given: dict[str, Any], form: str, rate: float | None) -> dict[str, Any]:
    """Return the workload from the options; empty without any."""
    from mist_sim.errors import ScenarioError

    kinds = {
        "--profile": given["profile"] is not None,
        "--trace": given["trace"] is not None,
        "--input-len": given["input_len"] is not None or given["output_len"] is not None,
    }
    names = [name for name, is_given in kinds.items() if is_given]
    if len(names) > 1:
        raise ScenarioError(f"{names[0]} must not be given with {names[1]}; choose one load")
    if not names:
        return {}
    if names == ["--trace"]:
        return {"workload": {"trace": {"type": form, "path": given["trace"]}}}
    if rate is None:
        raise ScenarioError(f"--rate is required with {names[0]}, which has no arrivals")
    arrivals = {"type": "poisson", "rate": f"{rate!r} /s"}
    lengths: dict[str, Any] = {"type": "profile", "name": given["profile"]}
    if names == ["--input-len"]:
        if given["input_len"] is None or given["output_len"] is None:
            raise ScenarioError("--input-len and --output-len must be given together")
        lengths = {
            "type": "synthetic",
            "prompt": {"type": "fixed", "tokens": given["input_len"]},
            "output": {"type": "fixed", "tokens": given["output_len"]},
        }
    return {"workload": {"lengths": {**lengths, "num_requests": _ROWS}, "arrivals": arrivals}}


def _own_gpus(scenario: Any) -> tuple[str, ...]:
    """Return the GPUs that a scenario names. Raises ScenarioError for one described in place."""
    from mist_sim.errors import ScenarioError

    found = [client.parameters().get("gpu") for client in scenario.clients]
    if any(isinstance(gpu, dict) for gpu in found):
        raise ScenarioError(
            "clients.N.gpu must be a name for a plan, which prints commands; write its keys into a "
            ".toml file, and name that"
        )
    return tuple(dict.fromkeys(gpu for gpu in found if gpu is not None))


def _prices(texts: list[str]) -> dict[str, float]:
    """Return dollars an hour by GPU. Raises ScenarioError for other texts."""
    from mist_sim.errors import ScenarioError, brief

    found = {}
    for text in texts:
        name, _, dollars = text.partition("=")
        try:
            found[name] = float(dollars)
        except ValueError:
            raise ScenarioError(
                f"--price must be GPU=DOLLARS, such as h100-sxm=2.5, got {brief(text)}"
            ) from None
    return found


def _check_place(path: Path | None) -> None:
    """Raise ScenarioError where a file cannot be written."""
    from mist_sim.errors import ScenarioError

    if path is None:
        return
    if path.exists():
        raise ScenarioError(f"--write {path}: is there already; remove it, or name another")
    if not path.absolute().parent.is_dir():
        raise ScenarioError(f"--write {path}: no folder {path.parent}")


def _write(found: Plan, path: Path) -> None:
    from mist_sim.output import write_text

    write_text(path, found.scenario.resolved())
