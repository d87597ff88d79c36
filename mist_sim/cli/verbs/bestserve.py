"""`mist bestserve`: which strategy has the largest goodput per GPU, by BestServe's simulators."""

from __future__ import annotations

import typer

from mist_sim.cli.options import InputLen, Jobs, OutputLen, Replications, Tolerance, TpotMs, TtftMs
from mist_sim.cli.scenario_input import AllowPrograms, ScenarioName, Settings, load
from mist_sim.cli.session import Session, saves


@saves()
def bestserve(
    session: Session,
    scenario: ScenarioName = None,
    settings: Settings = [],  # noqa: B006 - typer makes a new list
    model: str | None = typer.Option(None, help="The model, one of mist list models or a path."),
    gpu: str | None = typer.Option(
        None,
        metavar="NAME,...",
        help="The GPU, one of mist list gpus or a path; several are tried one by one.",
    ),
    input_len: InputLen = None,
    output_len: OutputLen = None,
    requests: int | None = typer.Option(
        None, metavar="N", help="Requests of a run; by default the scenario's number, or 10000."
    ),
    ttft_ms: TtftMs = None,
    tpot_ms: TpotMs = None,
    instances: int | None = typer.Option(
        None, metavar="N", help="Compare all strategies of at most N instances; by default 5."
    ),
    strategies: str | None = typer.Option(
        None,
        metavar="NAME,...",
        help="Compare these: 2m are two instances that do both, 1p2d one for prompts and two for "
        "answers.",
    ),
    tp: str | None = typer.Option(
        None, metavar="N,N,...", help="Tensor parallel sizes; by default the scenario's."
    ),
    pp: str | None = typer.Option(
        None, metavar="N,N,...", help="Pipeline parallel sizes; by default the scenario's."
    ),
    prefill_batch: str = typer.Option(
        "4", metavar="N,N,...", help="Prompts of an instance at a time."
    ),
    decode_batch: str = typer.Option(
        "16", metavar="N,N,...", help="Answers of an instance at a time."
    ),
    max_gpus: int | None = typer.Option(None, metavar="N", help="GPUs of a strategy, at most."),
    attainment: float = typer.Option(0.9, help="Share of the requests that keeps each limit."),
    relaxation: float = typer.Option(
        0.1, help="Share by which latencies may exceed their limits; 0.1 in the paper."
    ),
    rates: str | None = typer.Option(
        None, metavar="LOW:HIGH", help="The rates to search, per second."
    ),
    tolerance: Tolerance = 0.02,
    tau: float = typer.Option(2.5, help="The balance of the pseudo batch size; 2.5 in the paper."),
    routing: str = typer.Option(
        "shuffle", help="Order in which instances are asked: shuffle or round_robin."
    ),
    by: str = typer.Option(
        "gpu",
        help="Rank by goodput per gpu, per usd, or per joule, which takes a full run of each.",
    ),
    check: int = typer.Option(
        0, metavar="N", help="Search the N best in the full simulation as well."
    ),
    replications: Replications = None,
    jobs: Jobs = None,
    allow_programs: AllowPrograms = False,
) -> None:
    """Rank strategies by their goodput per GPU, dollar or joule, in BestServe's fast simulators.

    Instances that do both, or prefill and decode apart; how many, how they are laid out, and how
    large their batches are. SCENARIO has the workload, the limits and one client, of which the
    instances are made; or give --model, --gpu, --input-len, --output-len, and --ttft-ms or
    --tpot-ms.
    """
    from mist_sim.bestserve.optimizer import rank_strategies
    from mist_sim.bestserve.simulators import Method
    from mist_sim.cli.search_input import goodput_options, interval_of
    from mist_sim.cli.settings import overrides_of
    from mist_sim.cli.strategy_input import load_keys, names_in, space_of

    gpus = names_in("--gpu", gpu)
    given = {
        "model": model,
        "gpu": gpus[0] if gpus else None,
        "input_len": input_len,
        "output_len": output_len,
        "requests": requests,
        "ttft_ms": ttft_ms,
        "tpot_ms": tpot_ms,
    }
    overrides = load_keys(given, is_alone=scenario is None) | overrides_of(settings)
    if replications is not None:
        overrides["replications"] = replications
    options = goodput_options(
        attainment=attainment,
        relaxation=relaxation,
        each=True,
        rates=interval_of("--rates", rates) if rates is not None else None,
        tolerance=tolerance,
    )
    space = space_of(
        gpus=gpus,
        strategies=strategies,
        instances=instances,
        tp=tp,
        pp=pp,
        prefill_batch=prefill_batch,
        decode_batch=decode_batch,
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
