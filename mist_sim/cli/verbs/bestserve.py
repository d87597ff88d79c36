"""`mist bestserve`: which strategy has the largest goodput per GPU, by BestServe's simulators."""

from __future__ import annotations

from typing import Any

from mist_sim.cli.options import option_of
from mist_sim.cli.scenario_input import ScenarioName, Settings, load
from mist_sim.cli.session import Session
from mist_sim.cli.values import given, overrides_of, rates_of, whole_numbers
from mist_sim.errors import ScenarioError

_REQUESTS = 10_000  # BestServe, Tables 4 and 5


def bestserve(
    scenario: ScenarioName = None,
    *,
    settings: Settings = (),
    model: str | None = None,
    gpu: str | None = None,
    input_len: int | None = None,
    output_len: int | None = None,
    requests: int | None = None,
    ttft_ms: float | None = None,
    tpot_ms: float | None = None,
    instances: int | None = None,
    strategies: str | None = None,
    tp: str | None = None,
    pp: str | None = None,
    prefill_batch: str = "4",
    decode_batch: str = "16",
    max_gpus: int | None = None,
    attainment: float = 0.9,
    relaxation: float = 0.1,
    rates: str | None = None,
    tolerance: float = 0.02,
    tau: float = 2.5,
    routing: str = "shuffle",
    by: str = "gpu",
    check: int = 0,
    replications: int | None = None,
    jobs: int | None = None,
    allow_programs: bool = False,
    session: Session,
) -> None:
    """Rank strategies by their goodput per GPU, dollar or joule, in BestServe's fast simulators.

    Instances that do both, or prefill and decode apart; how many, how they are laid out, and how
    large their batches are. SCENARIO has the workload, the limits and one client, of which the
    instances are made; or give --model, --gpu, --input-len, --output-len, and --ttft-ms or
    --tpot-ms.

    model: The model, one of mist list models or a path.
    gpu NAME,...: The GPU, one of mist list gpus or a path; several are tried one by one.
    requests N: Requests of a run; by default the scenario's number, or 10000.
    instances N: Compare all strategies of at most N instances; by default 5.
    strategies NAME,...: Compare these: 2m are two instances that do both, 1p2d one for prompts and
        two for answers.
    tp N,N,...: Tensor parallel sizes; by default the scenario's.
    pp N,N,...: Pipeline parallel sizes; by default the scenario's.
    prefill_batch N,N,...: Prompts of an instance at a time.
    decode_batch N,N,...: Answers of an instance at a time.
    max_gpus N: GPUs of a strategy, at most.
    attainment: Share of the requests that keeps each limit.
    relaxation: Share by which latencies may exceed their limits; 0.1 in the paper.
    rates LOW:HIGH: The rates to search, per second.
    tau: The balance of the pseudo batch size; 2.5 in the paper.
    routing: Order in which instances are asked: shuffle or round_robin.
    by: Rank by goodput per gpu, per usd, or per joule, which takes a full run of each.
    check N: Search the N best in the full simulation as well.
    """
    from mist_sim.bestserve.optimizer import rank_strategies
    from mist_sim.bestserve.simulators import Method
    from mist_sim.bestserve.strategy import Space
    from mist_sim.search.goodput import GoodputOptions

    gpus = () if gpu is None else tuple(name.strip() for name in gpu.split(","))
    if not all(gpus):
        raise ScenarioError(f"--gpu must be NAME or NAME,NAME,..., got {gpu!r}")
    said = {
        "model": model,
        "gpu": gpus[0] if gpus else None,
        "input_len": input_len,
        "output_len": output_len,
        "requests": requests,
        "ttft_ms": ttft_ms,
        "tpot_ms": tpot_ms,
    }
    overrides = _keys(said, is_alone=scenario is None) | overrides_of(settings)
    overrides |= given(replications=replications)
    options = GoodputOptions(
        **given(rates=rates_of(rates)),
        attainment=attainment,
        relaxation=relaxation,
        each=True,
        tolerance=tolerance,
    )
    if strategies is not None and instances is not None:
        raise ScenarioError(
            f"--instances must be left out where --strategies names them, got {instances}"
        )
    space = Space(
        names=tuple(strategies.split(",")) if strategies is not None else (),
        gpus=gpus if len(gpus) > 1 else (),
        instances=5 if instances is None else instances,
        tensor_parallel_sizes=whole_numbers(tp, "--tp"),
        pipeline_parallel_sizes=whole_numbers(pp, "--pp"),
        prefill_batches=whole_numbers(prefill_batch, "--prefill-batch"),
        decode_batches=whole_numbers(decode_batch, "--decode-batch"),
        max_gpus=max_gpus,
    )
    method = Method(tau=tau, routing=routing)  # type: ignore[arg-type] # it checks the name
    loaded = load(scenario, overrides, allow_programs=allow_programs)
    options.target(loaded)  # errors in it show before the first run
    session.search(
        lambda how: rank_strategies(
            loaded,
            space,
            options,
            method=method,
            by=by,  # type: ignore[arg-type] # it checks the name
            check=check,
            jobs=jobs,
            **how,
        )
    )


def _keys(said: dict[str, Any], *, is_alone: bool) -> dict[str, Any]:
    """Return the keys of a scenario that options give.

    said: by the names of parameters, such as input_len; None: not given. is_alone: they are all of
    it, without a file.
    Raises ScenarioError where something is missing then.
    """
    for name in ("input_len", "output_len", "requests"):
        if (value := said[name]) is not None and value < 1:
            raise ScenarioError(f"{option_of(name)} must be >= 1, got {value}")
    if said["output_len"] == 1:
        raise ScenarioError(
            "--output-len must be >= 2 tokens, got 1: the first token is the prefill's, and "
            "nothing is left to decode"
        )
    found: dict[str, Any] = {}
    if is_alone:
        needed = ("model", "gpu", "input_len", "output_len")
        missing = [option_of(name) for name in needed if said[name] is None]
        if said["ttft_ms"] is None and said["tpot_ms"] is None:
            missing.append("--ttft-ms or --tpot-ms")
        if missing:
            raise ScenarioError(
                f"without a SCENARIO, {', '.join(missing)} must be given; such as mist bestserve "
                "--model llama-3.1-8b --gpu h100-sxm --input-len 2048 --output-len 64 "
                "--ttft-ms 500 --tpot-ms 25"
            )
        lengths = {"type": "synthetic", "num_requests": _REQUESTS}
        arrivals = {"type": "poisson", "rate": "1 /s"}
        found = {"workload": {"lengths": lengths, "arrivals": arrivals}, "slo": {}}
        found["clients"] = [{"name": "instance"}]
    for name, key in (("input_len", "prompt"), ("output_len", "output")):
        if (tokens := said[name]) is not None:
            found[f"workload.lengths.{key}"] = {"type": "fixed", "tokens": tokens}
    for name in ("ttft", "tpot"):
        if (ms := said[f"{name}_ms"]) is not None:
            found[f"slo.{name}"] = f"{ms!r} ms"
    same = {"model": said["model"], "clients.0.gpu": said["gpu"]}
    return found | given(**same, **{"workload.lengths.num_requests": said["requests"]})
