"""`mist trace`: the contents of a trace, and its conversion."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mist_sim.traces import TraceReader, TraceRow

File = Annotated[str, typer.Argument(metavar="FILE", help="The trace.", show_default=False)]
Form = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="NAME",
        help="The trace's form, one of mist list trace_readers; by its first line without it.",
        show_default=False,
    ),
]
Number = Annotated[
    int | None,
    typer.Option("--num-requests", metavar="N", help="Read the first N requests alone."),
]

trace = typer.Typer(
    help="Look at a trace, or write it in another form.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@trace.command()
def inspect(
    file: File,
    form: Form = None,
    num_requests: Number = None,
    as_json: bool = typer.Option(False, "--json", help="Print JSON in place of the tables."),
) -> None:
    """Print the statistics of a trace: lengths, arrivals, conversations, prefixes in common."""
    from mist_sim.output.texts import json_text
    from mist_sim.report.elements.shown import show
    from mist_sim.report.trace import trace_table
    from mist_sim.traces.forms import form_of
    from mist_sim.traces.statistics import statistics

    name = form or form_of(file)
    found = statistics(_reader(file, name, num_requests).rows())
    if as_json:
        typer.echo(json_text({"format": name, **found}), nl=False)
    else:
        show(f"{file}: {name}", trace_table(found))


@trace.command()
def convert(
    file: File,
    to: str = typer.Option(
        ..., "--to", metavar="NAME", help="azure, mooncake or vidur.", show_default=False
    ),
    out: Path = typer.Option(..., metavar="FILE", help="Write this file.", show_default=False),
    form: Form = None,
    num_requests: Number = None,
    rate: float | None = typer.Option(
        None,
        metavar="R",
        help="Draw Poisson arrivals at this many a second in place of the trace's times.",
        show_default=False,
    ),
    seed: int = typer.Option(0, help="Of these arrivals."),
    without_prefixes: bool = typer.Option(
        False, "--without-prefixes", help="Leave out what prompts have in common."
    ),
    force: bool = typer.Option(False, "--force", help="Replace FILE if it is there."),
) -> None:
    """Write a trace in another form."""
    from mist_sim.cli.signals import Saved
    from mist_sim.errors import ScenarioError, brief, did_you_mean
    from mist_sim.output import output_file
    from mist_sim.traces.writers import WRITERS

    if to not in WRITERS:
        raise ScenarioError(
            f"--to must be one of {', '.join(WRITERS)}, got {brief(to)}{did_you_mean(to, WRITERS)}"
        )
    rows = _reader(file, form, num_requests).rows()
    if rate is not None:
        rows = _drawn(rows, rate, seed)
    if without_prefixes:
        rows = (row._replace(content=()) for row in rows)
    with Saved() as saved, output_file(out, replace=force) as target:
        saved.output = target
        target.write(WRITERS[to](rows))


def _reader(file: str, form: str | None, num_requests: int | None) -> TraceReader:
    from mist_sim.errors import ScenarioError
    from mist_sim.traces.forms import reader_of

    try:
        return reader_of(file, form, num_requests)
    except ValueError as error:
        if isinstance(error, ScenarioError):
            raise
        raise ScenarioError(f"--{str(error).replace('_', '-', 1)}") from None


def _drawn(rows: Iterator[TraceRow], rate: float, seed: int) -> Iterator[TraceRow]:
    """Yield the rows with the Poisson arrivals of a run with this seed."""
    from mist_sim.errors import ScenarioError
    from mist_sim.rng import Streams
    from mist_sim.traces import PoissonArrivals

    try:
        arrivals = PoissonArrivals(rate=rate)
    except ValueError as error:
        raise ScenarioError(f"--{error}") from None
    times = arrivals.times(Streams(seed).generator("arrivals"))
    return (row._replace(arrival_time=time) for row, time in zip(rows, times, strict=False))
