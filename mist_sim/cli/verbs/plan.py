"""`mist plan`: the GPUs to buy for a load, and their settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from mist_sim.cli.scenario_input import ScenarioName, Settings, keys_of, load
from mist_sim.cli.session import Session, note
from mist_sim.cli.values import given, quantity, vary_of, whole_numbers, words
from mist_sim.errors import ScenarioError, brief
from mist_sim.units import DURATION

_ROWS = 400  # requests of lengths that the command line gives; runs draw as many as they need


def plan(
    scenario: ScenarioName = None,
    *,
    settings: Settings = (),
    commands: Sequence[str] = (),
    gpus: str | None = None,
    max_gpus: int = 16,
    max_usd_per_hour: float | None = None,
    price: Sequence[str] = (),
    model: str | None = None,
    rate: float | None = None,
    users: int | None = None,
    think: str | None = None,
    day: str | None = None,
    ttft_ms: float | None = None,
    tpot_ms: float | None = None,
    e2el_ms: float | None = None,
    itl_ms: float | None = None,
    attainment: float | None = None,
    profile: str | None = None,
    trace: str | None = None,
    form: str | None = None,
    input_len: int | None = None,
    output_len: int | None = None,
    tp: str = "1,2,4,8",
    designs: str = "together,apart,hybrid,afd",
    routers: str | None = None,
    vary: Sequence[str] = (),
    total_requests: int = 600_000,
    seconds: float = 0.0,
    most_requests: int | None = None,
    as_is: bool = False,
    seed: int | None = None,
    write: Path | None = None,
    jobs: int | None = None,
    approximate: bool = False,
    allow_programs: bool = False,
    session: Session,
) -> None:
    """Find the cheapest GPUs that keep the limits at a rate or for users, and how to set them.

    The load is that of SCENARIO, of vllm bench serve, or of --trace, --profile or --input-len and
    --output-len; the engines' options are those of SCENARIO or vllm serve.

    gpus NAME[,NAME...]: GPUs to choose from (mist list gpus); by default the scenario's own.
    max_gpus N: The budget in GPUs.
    max_usd_per_hour DOLLARS: The budget in dollars an hour.
    price GPU=DOLLARS: Your price of one GPU an hour, in place of the catalog's; repeatable.
    model: The model (mist list models).
    rate N: Requests per second; by default the scenario's or trace's own.
    users N: People who each send a request, read the answer and think, in place of a rate.
    think TIME: How long users think on average, such as 30s; exponential.  [default: not at all]
    day FILE: Rates of a day: a CSV with the columns hour and rate, or a trace of a day or more;
        own: the scenario's daily arrivals. The busiest hour is planned, and what others need.
    e2el_ms MS: Limit on the whole request.
    itl_ms MS: Limit on the p99 of all gaps between tokens.
    profile NAME: Draw lengths from a shipped profile of a trace, such as azure-conv-2023.
    trace FILE: A trace of requests; its own requests are judged.
    form --format: The trace's form, one of mist list trace_readers; by default azure, that of --day
        by its first line.
    tp N[,N...]: Tensor parallel sizes to try.
    designs NAME[,...]: Designs to try; reshard is another one.
    routers NAME[,...]: Routers to try; by default least_outstanding.
    vary KEY=VALUE,...: Options of engines to try, by their key below a client, such as
        pipeline_parallel_size=1,2 or kv_cache.kv_cache_dtype=auto,fp8; repeatable.
    total_requests N: Stop looking for something cheaper after so many simulated requests; 0: when
        no candidate is open.
    write FILE: Write the answer as a scenario for mist run.
    """
    from mist_sim.output import write_text
    from mist_sim.search.planning import PlanOptions
    from mist_sim.search.planning import plan as find
    from mist_sim.search.planning.day import day_in, own_day

    own = keys_of(commands, settings, approximate=approximate)
    said = {"workload": own.pop("workload")} if "workload" in own else {}
    lengths = {"profile": profile, "trace": trace, "input_len": input_len, "output_len": output_len}
    said |= _workload(lengths, form, rate, users, day) | own  # options of a trace may be set, too
    limits = given(ttft=ttft_ms, tpot=tpot_ms, e2el=e2el_ms, itl=itl_ms)
    said |= {f"slo.{name}": f"{ms!r} ms" for name, ms in limits.items()}
    said |= given(seed=seed, model=model)
    asked = words(gpus, "--gpus") or ()
    loaded = _loaded(scenario, said, asked, allow_programs=allow_programs)
    options = PlanOptions(
        gpus=asked or _own_gpus(loaded),
        rate=rate,
        users=users,
        think=0.0 if think is None else quantity(think, DURATION, "--think"),
        day=None if day is None else own_day(loaded) if day == "own" else day_in(day, form),
        max_gpus=max_gpus,
        max_usd_per_hour=max_usd_per_hour,
        prices=dict(map(_price, price)),
        tensor_parallel_sizes=whole_numbers(tp, "--tp"),
        designs=words(designs, "--designs") or (),
        routers=words(routers, "--routers"),
        vary=vary_of(vary),
        attainment=attainment,
        most_requests=most_requests,
        as_is=as_is,
        total_requests=total_requests or None,
        seconds=seconds or None,
    )
    if write is not None and write.exists():
        raise ScenarioError(f"--write {write}: is there already; remove it, or name another")
    if write is not None and not write.absolute().parent.is_dir():
        raise ScenarioError(f"--write {write}: no folder {write.parent}")
    found = session.search(lambda how: find(loaded, options, jobs=jobs, **how))
    if write is not None:
        write_text(write, found.scenario.resolved())
        if not session.quiet:
            note(f"Written to {write}: mist run {quote(str(write))}")


def _loaded(
    name: str | None, said: dict[str, Any], gpus: tuple[str, ...], *, allow_programs: bool
) -> Any:
    """Return the scenario that describes the clients."""
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


def _workload(
    said: dict[str, Any], form: str | None, rate: float | None, users: int | None, day: str | None
) -> dict[str, Any]:
    """Return the workload from the options; empty without any."""
    kinds = {
        "--profile": said["profile"] is not None,
        "--trace": said["trace"] is not None,
        "--input-len": said["input_len"] is not None or said["output_len"] is not None,
    }
    names = [name for name, is_given in kinds.items() if is_given]
    if len(names) > 1:
        raise ScenarioError(f"{names[0]} must not be given with {names[1]}; choose one load")
    if not names:
        return {}
    if names == ["--trace"]:
        return {"workload": {"trace": {"type": form or "azure", "path": said["trace"]}}}
    if rate is None and users is None and day is None:
        raise ScenarioError(
            f"--rate, --users or --day is required with {names[0]}, which has no arrivals"
        )
    arrivals: Any = {"type": "poisson", "rate": f"{1.0 if rate is None else rate!r} /s"}
    if users is not None:
        arrivals = "all_at_once"
    lengths: dict[str, Any] = {"type": "profile", "name": said["profile"]}
    if names == ["--input-len"]:
        if said["input_len"] is None or said["output_len"] is None:
            raise ScenarioError("--input-len and --output-len must be given together")
        lengths = {
            "type": "synthetic",
            "prompt": {"type": "fixed", "tokens": said["input_len"]},
            "output": {"type": "fixed", "tokens": said["output_len"]},
        }
    return {"workload": {"lengths": {**lengths, "num_requests": _ROWS}, "arrivals": arrivals}}


def _own_gpus(scenario: Any) -> tuple[str, ...]:
    """Return the GPUs that a scenario names. Raises ScenarioError for one described in place."""
    found = [client.parameters().get("gpu") for client in scenario.clients]
    if any(isinstance(gpu, dict) for gpu in found):
        raise ScenarioError(
            "clients.N.gpu must be a name for a plan, which prints commands; write its keys into a "
            ".toml file, and name that"
        )
    return tuple(dict.fromkeys(gpu for gpu in found if gpu is not None))


def _price(text: str) -> tuple[str, float]:
    """Return a GPU and its dollars an hour. Raises ScenarioError for other texts."""
    name, _, dollars = text.partition("=")
    try:
        return name, float(dollars)
    except ValueError:
        raise ScenarioError(
            f"--price must be GPU=DOLLARS, such as h100-sxm=2.5, got {brief(text)}"
        ) from None
