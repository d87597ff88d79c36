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


def afd(
    trace: str = typer.Argument(
        metavar="TRACE", help="A file with the lengths of requests.", show_default=False
    ),
    slots: int = typer.Option(
        ...,
        min=1,
        max=BUNDLE["slots"],
        help="Slots of an attention worker in one batch (B).",
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
    batches: int = typer.Option(2, min=2, max=BUNDLE["batches"], help="Batches in flight."),
    as_json: bool = typer.Option(False, "--json", help="Print the results as JSON."),
) -> None:
    """Choose the ratio of attention to FFN workers (attention-FFN disaggregation).

    Estimates from a trace how many tokens a slot holds, and prints the best ratios and what
    bundles of workers would do.
    """
    from mist_sim.cli.afd_input import read_coefficients, read_lengths, seconds_of
    from mist_sim.cli.afd_tables import as_data, show
    from mist_sim.search import BundleSpec, check_tail, estimate_slot_load, provision, tail_of

    given = {
        "alpha_a": alpha_a,
        "beta_a": beta_a,
        "alpha_f": alpha_f,
        "beta_f": beta_f,
        "alpha_c": alpha_c,
        "beta_c": beta_c,
    }
    times = read_coefficients(coefficients, given)
    if cycle is not None:
        times = times.times(seconds_of(cycle))
    prefill, decode = read_lengths(trace, form, first_token)
    estimate, tail = estimate_slot_load(prefill, decode), tail_of(decode[decode > 0])
    check_tail(tail)
    spec = BundleSpec(times, estimate.load, slots, batches)
    found = provision(spec)
    if as_json:
        from mist_sim.output.texts import json_text

        typer.echo(json_text(as_data(spec, estimate, tail, found)), nl=False)
    else:
        show(spec, estimate, tail, found, unit="s" if cycle else "cycles")
