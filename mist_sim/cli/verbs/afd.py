"""`mist afd`: how many attention workers an FFN worker should have."""

from __future__ import annotations

import typer

from mist_sim.bounds import BUNDLE

_HELP = {
    "alpha_a": "Attention, time for each token that a worker's slots hold.",
    "beta_a": "Attention, fixed time.",
    "alpha_f": "FFN, time for each request in the batch of an FFN worker.",
    "beta_f": "FFN, fixed time.",
    "alpha_c": "Communication both ways, time for each of these requests.",
    "beta_c": "Communication both ways, fixed time.",
}


def _coefficient(name: str) -> float | None:
    found: float | None = typer.Option(
        None, f"--{name.replace('_', '-')}", help=_HELP[name], show_default=False
    )
    return found


def _text(metavar: str, text: str) -> str | None:
    found: str | None = typer.Option(None, metavar=metavar, help=text, show_default=False)
    return found


def afd(
    trace: str = typer.Argument(
        metavar="TRACE", help="A file with the lengths of requests.", show_default=False
    ),
    slots: str = typer.Option(
        ...,
        metavar="N[,N...]",
        help="Slots of an attention worker in one batch (B), or several to choose from.",
        show_default=False,
    ),
    form: str = typer.Option(
        "azure", "--format", help="The trace's form, one of mist list trace_readers."
    ),
    first_token: str = typer.Option(
        "prefill", help="Who emits an answer's first token: prefill or decode."
    ),
    coefficients: str | None = typer.Option(
        None,
        metavar="NAME|FILE",
        help="Published coefficients, or a CSV file of measured times to fit them to.",
        show_default=False,
    ),
    alpha_a: float | None = _coefficient("alpha_a"),
    beta_a: float | None = _coefficient("beta_a"),
    alpha_f: float | None = _coefficient("alpha_f"),
    beta_f: float | None = _coefficient("beta_f"),
    alpha_c: float | None = _coefficient("alpha_c"),
    beta_c: float | None = _coefficient("beta_c"),
    cycle: str | None = typer.Option(
        None,
        metavar="TIME",
        help="The unit of the coefficients, such as '1 us'; results are in cycles without it.",
        show_default=False,
    ),
    model: str | None = _text("NAME", "Derive coefficients, in seconds: of this model ..."),
    gpu: str | None = _text("NAME", "... on these GPUs,"),
    ffn_gpu: str | None = _text("NAME", "or on others for the FFN;"),
    ffn_cards: int | None = typer.Option(
        None, min=1, help="cards of an FFN worker;", show_default=False
    ),
    network_bandwidth: str | None = _text("RATE", "at which activations reach each of them;"),
    attention_base: str | None = _text(
        "TIME", "fixed time of a layer's attention, reading the weights without it;"
    ),
    ffn_base: str | None = _text("TIME", "of a layer's FFN, the same;"),
    communication_base: str | None = _text("TIME", "of a layer's transfers, none without it;"),
    mtp_depth: int | None = typer.Option(
        None, min=0, max=64, help="further tokens of a request in a step;", show_default=False
    ),
    expert_load_imbalance: float | None = typer.Option(
        None, help="tokens of the busiest card over the mean.", show_default=False
    ),
    batches: str = typer.Option(
        "2", metavar="N[,N...]", help="Batches in flight, or several to choose from."
    ),
    max_tpot: str | None = _text("TIME", "Longest mean time between two tokens."),
    max_kv_tokens: int | None = typer.Option(
        None, min=1, help="Tokens that an attention worker has memory for.", show_default=False
    ),
    kv_memory: str | None = _text("SIZE", "The same as a size, with --model."),
    as_json: bool = typer.Option(False, "--json", help="Print the results as JSON."),
) -> None:
    """Choose the ratio of attention to FFN workers (attention-FFN disaggregation).

    Estimates from a trace how many tokens a slot holds, and prints the best ratios and what
    bundles of workers would do.
    """
    from mist_sim.cli.bundles.hardware import HardwareOptions
    from mist_sim.cli.bundles.input import Limits, chosen, numbers, read_coefficients, read_lengths
    from mist_sim.cli.bundles.tables import as_data, show
    from mist_sim.search import check_tail, estimate_slot_load, provision, tail_of

    given = {
        "alpha_a": alpha_a,
        "beta_a": beta_a,
        "alpha_f": alpha_f,
        "beta_f": beta_f,
        "alpha_c": alpha_c,
        "beta_c": beta_c,
    }
    hardware = HardwareOptions(
        model=model,
        gpu=gpu,
        ffn_gpu=ffn_gpu,
        ffn_cards=ffn_cards,
        network_bandwidth=network_bandwidth,
        attention_base=attention_base,
        ffn_base=ffn_base,
        communication_base=communication_base,
        mtp_depth=mtp_depth,
        expert_load_imbalance=expert_load_imbalance,
    )
    times, unit = read_coefficients(coefficients, hardware, given, cycle)
    if kv_memory is not None:
        max_kv_tokens = hardware.kv_tokens(kv_memory)
    limits = Limits.read(max_tpot, max_kv_tokens, unit)
    sizes = numbers(slots, "--slots", 1, BUNDLE["slots"])
    flights = numbers(batches, "--batches", 2, BUNDLE["batches"])
    prefill, decode = read_lengths(trace, form, first_token)
    estimate, tail = estimate_slot_load(prefill, decode), tail_of(decode[decode > 0])
    check_tail(tail)
    weight = float(ffn_cards or 1)  # an attention worker is one GPU
    spec, choices = chosen(times, estimate.load, sizes, flights, limits, weight)
    found = provision(spec)
    if as_json:
        from mist_sim.output.texts import json_text

        typer.echo(json_text(as_data(spec, estimate, tail, found, choices)), nl=False)
    else:
        show(spec, estimate, tail, found, choices, unit=unit)
