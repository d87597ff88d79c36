"""`mist afd`: how many attention workers an FFN worker should have."""

from __future__ import annotations

import typer

from mist_sim.bounds import BUNDLE
from mist_sim.cli.bundles import bundle_options as options
from mist_sim.cli.verbs.trace import Columns, Form, by_settings, reader

_CLOSED_FORM = (
    "Slots are always full; prefill, hand-overs, an engine's own time a step, sampling, embedding "
    "and output head are left out. mist run has a bundle (type: afd) with the prefill before it."
)


def afd(
    trace: str = typer.Argument(
        metavar="TRACE", help="A file with the lengths of requests.", show_default=False
    ),
    *,
    slots: options.Slots,
    form: Form = None,
    settings: Columns = [],  # noqa: B006 - typer makes a new list
    first_token: str = typer.Option(
        "prefill", help="The side that emits an answer's first token: prefill or decode."
    ),
    coefficients: options.Coefficients = None,
    alpha_a: options.AlphaA = None,
    beta_a: options.BetaA = None,
    alpha_f: options.AlphaF = None,
    beta_f: options.BetaF = None,
    alpha_c: options.AlphaC = None,
    beta_c: options.BetaC = None,
    cycle: options.Cycle = None,
    model: options.Model = None,
    gpu: options.Gpu = None,
    ffn_gpu: options.FfnGpu = None,
    ffn_cards: options.FfnCards = None,
    network_bandwidth: options.NetworkBandwidth = None,
    attention_base: options.AttentionBase = None,
    ffn_base: options.FfnBase = None,
    communication_base: options.CommunicationBase = None,
    mtp_depth: options.MtpDepth = None,
    expert_load_imbalance: options.ExpertLoadImbalance = None,
    batches: options.Batches = "2",
    max_tpot: options.MaxTpot = None,
    max_kv_tokens: options.MaxKvTokens = None,
    kv_memory: options.KvMemory = None,
    as_json: bool = typer.Option(False, "--json", help="Print the results as JSON."),
) -> None:
    """Choose the ratio of attention to FFN workers (attention-FFN disaggregation).

    Estimates from a trace how many tokens a slot holds, and prints the best ratios and what
    bundles of workers would do.
    """
    from mist_sim.cli.bundles.bundle_tables import as_data, show
    from mist_sim.cli.bundles.hardware import HardwareOptions
    from mist_sim.cli.bundles.input import (
        Room,
        chosen,
        longest_tpot,
        read_coefficients,
        read_lengths,
    )
    from mist_sim.cli.lists import whole_numbers
    from mist_sim.core.result_warnings import CLOSED_FORM, LEFT_OUT, ResultWarning
    from mist_sim.search import check_tail, estimate_slot_load, provision, tail_of
    from mist_sim.traces import TRACE_READERS
    from mist_sim.traces.base import LeavesOut

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
    room = hardware.room()
    if kv_memory is not None:
        max_kv_tokens = hardware.kv_tokens(kv_memory)
        room = max_kv_tokens, f"--kv-memory {kv_memory}"
    elif max_kv_tokens is not None:
        room = max_kv_tokens, "--max-kv-tokens"
    limits = {"max_tpot": longest_tpot(max_tpot, unit), "max_kv_tokens": max_kv_tokens}
    sizes = list(whole_numbers(slots, "--slots", 1, BUNDLE["slots"]))
    flights = list(whole_numbers(batches, "--batches", 2, BUNDLE["batches"]))
    TRACE_READERS.find_entry_points()
    source = reader(trace, form, None, settings)
    with by_settings():
        prefill, decode = read_lengths(source, first_token)
    estimate, tail = estimate_slot_load(prefill, decode), tail_of(decode[decode > 0])
    check_tail(tail)
    weight = float(ffn_cards or 1)  # an attention worker is one GPU
    told = [ResultWarning(CLOSED_FORM, _CLOSED_FORM)]
    told += hardware.warnings([name for name in given if given[name] is not None])
    if room is not None:
        told += Room(*room).check(estimate.load, sizes, flights)
        if len(sizes) * len(flights) > 1:
            limits["max_kv_tokens"] = room[0]
    # each attention GPU sends its batch over one link, so that fewer than FFN cards take as long
    senders = ffn_cards or 1 if model is not None and alpha_c is None else 1
    spec, choices = chosen(times, estimate.load, sizes, flights, weight, senders, **limits)
    found = provision(spec)
    best = choices[0].prediction if choices else found.in_flight
    if beta_f is None:
        told += hardware.of_batches(best, times)
    if isinstance(source, LeavesOut) and (text := source.left_out.sentence(source.path)):
        told.append(ResultWarning(LEFT_OUT, text))
    if as_json:
        from mist_sim.output import json_text

        typer.echo(json_text(as_data(spec, estimate, tail, found, choices, told)), nl=False)
    else:
        show(spec, estimate, tail, found, choices, told, unit=unit)
