"""`mist trace inspect` and `convert`: the contents of a trace, and its conversion."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mist_sim.cli.session import note

if TYPE_CHECKING:
    from mist_sim.traces import TraceReader, TraceRow

File = Annotated[str, typer.Argument(metavar="FILE", help="The trace.", show_default=False)]
Form = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="NAME",
        help="The trace's form, one of mist list trace_readers; by default recognised by its "
        "first line.",
        show_default=False,
    ),
]
Columns = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set an option of the trace's form, as under workload.trace of a scenario, such as "
        "time_column=ts_ms of --format csv; repeatable.",
        show_default=False,
    ),
]
Number = Annotated[
    int | None,
    typer.Option("--num-requests", metavar="N", help="Read only the first N requests."),
]

Force = Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")]
To = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="NAME",
        help="azure, burstgpt, llmservingsim, mooncake, splitwise, timed_trace or vidur.",
        show_default=False,
    ),
]


def inspect(
    file: File,
    form: Form = None,
    settings: Columns = [],  # noqa: B006 - typer makes a new list
    num_requests: Number = None,
    as_json: bool = typer.Option(False, "--json", help="Print JSON in place of the tables."),
    plot: Path | None = typer.Option(
        None,
        metavar="FILE",
        help="Draw tails, rate and reuse into this .png, .svg or .pdf file (pip install "
        "'mist-sim[report]').",
        show_default=False,
    ),
    force: Force = False,
) -> None:
    """Print the statistics of a trace: lengths, arrivals, conversations, prefixes in common."""
    from mist_sim.output import json_text
    from mist_sim.report.elements import show
    from mist_sim.report.trace import trace_table
    from mist_sim.traces.readers.opening import form_of
    from mist_sim.traces.statistics import Figures, statistics

    if plot is not None:
        _require_picture(plot, force)
    name = form or form_of(file)
    source = reader(file, name, num_requests, settings)
    with by_settings():
        figures = Figures(source.rows())
    found = statistics(figures)
    if as_json:
        typer.echo(json_text({"format": name, **found, **_left_out(source)}), nl=False)
    else:
        show(f"{file}: {name}", trace_table(found))
        tell_left_out(source)
    if plot is not None:
        from mist_sim.errors import printable
        from mist_sim.report.pictures.findings import trace_picture
        from mist_sim.report.pictures.picture import bytes_of

        title = printable(f"{Path(file).name}: {name}")
        picture = bytes_of([(title, trace_picture(figures))], plot.suffix.removeprefix("."))
        plot.write_bytes(picture)
        note(f"Written to {plot}")


def convert(
    file: File,
    to: To,
    out: Path = typer.Option(..., metavar="FILE", help="Write this file.", show_default=False),
    form: Form = None,
    settings: Columns = [],  # noqa: B006
    num_requests: Number = None,
    rate: float | None = typer.Option(
        None,
        metavar="R",
        help="Draw Poisson arrivals at this many a second in place of the trace's times.",
        show_default=False,
    ),
    seed: int = typer.Option(0, help="Seed of these arrivals."),
    without_prefixes: bool = typer.Option(
        False, "--without-prefixes", help="Leave out common prefixes of prompts."
    ),
    force: Force = False,
) -> None:
    """Write a trace in another form."""
    from mist_sim.cli.signals import Saved
    from mist_sim.output import output_file

    lines = writer(to)
    source = reader(file, form, num_requests, settings)
    rows = source.rows()
    if rate is not None:
        rows = _drawn(rows, rate, seed)
    if without_prefixes:
        rows = (row._replace(content=()) for row in rows)
    dropped = Dropped()
    rows = dropped.noting(rows)
    with by_settings(), Saved() as saved, output_file(out, replace=force) as target:
        saved.output = target
        target.write(lines(rows))
    tell_left_out(source)
    dropped.tell(to, source)


_HASHED = ("mooncake", "timed_trace")  # forms that say what prompts share


class Dropped:
    """Parts of rows for which a form may have no place."""

    def __init__(self) -> None:
        self._has_sessions = self._has_content = False

    def noting(self, rows: Iterable[TraceRow]) -> Iterator[TraceRow]:
        """Yield the rows, and note what they have."""
        for row in rows:
            self._has_sessions |= row.session_id is not None
            self._has_content |= bool(row.content)
            yield row

    def tell(self, to: str, source: TraceReader) -> None:
        """Say what was left out of a file of this form."""
        is_kept = self._has_content and to in _HASHED
        if self._has_sessions:
            told = f"Conversations are left out: {to} has no place for them"
            if is_kept:
                told += "; hash_ids say what their prompts share"
            elif hasattr(source, "session_history") and not self._has_content:
                told += (
                    ". Where each prompt begins with the prompt and answer before it, --set "
                    "session_history=repeats with --to mooncake or timed_trace writes hash_ids"
                )
            note(f"{told}.")
        if self._has_content and not is_kept:
            others = " and ".join(_HASHED)
            note(f"What prompts share is left out: {to} has no place for it, {others} have.")


def tell_left_out(source: TraceReader) -> None:
    """Say which rows of a trace that was read are left out."""
    from mist_sim.traces.base import LeavesOut

    if isinstance(source, LeavesOut) and (text := source.left_out.sentence(source.path)):
        note(text)


def _left_out(source: TraceReader) -> dict[str, Any]:
    """Return the rows of a trace that was read and left out, by kind."""
    from mist_sim.traces.readers.opening import FileReader

    return {"left_out": source.left_out.data} if isinstance(source, FileReader) else {}


def reader(
    file: str, form: str | None, num_requests: int | None, settings: list[str]
) -> TraceReader:
    """Return the reader of a file; raises ScenarioError that names options."""
    from mist_sim.cli.settings import overrides_of
    from mist_sim.traces.readers.opening import form_of, reader_of

    if not settings:
        with as_options():
            return reader_of(file, form, num_requests)
    from mist_sim.scenario.plugins import trace_reader

    options = {"path": file, "num_requests": num_requests, **overrides_of(settings)}
    return trace_reader(form or form_of(file), options, "--set")


def writer(to: str) -> Callable[[Iterable[TraceRow]], Iterator[str]]:
    """Return what writes a form. Raises ScenarioError for one that is not written."""
    from mist_sim.errors import ScenarioError, brief, did_you_mean
    from mist_sim.traces.writers import WRITERS

    if to not in WRITERS:
        raise ScenarioError(
            f"--to must be one of {', '.join(WRITERS)}, got {brief(to)}{did_you_mean(to, WRITERS)}"
        )
    return WRITERS[to]


_OPTION = re.compile(r"\b(skip|time_unit): (\w+)")


@contextmanager
def by_settings() -> Iterator[None]:
    """Write the options of a form that an error names as these verbs take them."""
    from mist_sim.errors import TraceError

    try:
        yield
    except TraceError as error:
        text = _OPTION.sub(r"--set \1=\2", error.problem)
        raise TraceError(error.path, error.line, text) from None


@contextmanager
def as_options() -> Iterator[None]:
    """Turn the ValueError of a parameter into a ScenarioError that names the option."""
    from mist_sim.errors import ScenarioError

    try:
        yield
    except ValueError as error:
        if isinstance(error, ScenarioError):
            raise
        name, _, rest = str(error).partition(" ")
        raise ScenarioError(f"--{name.replace('_', '-')} {rest}") from None


def _require_picture(plot: Path, force: bool) -> None:
    """Raise ScenarioError where no picture can be drawn into the file."""
    from mist_sim.errors import ScenarioError
    from mist_sim.report.pictures.picture import FORMS
    from mist_sim.report.pictures.style import require_matplotlib

    if plot.suffix.removeprefix(".") not in FORMS:
        raise ScenarioError(f"--plot must name a .png, .svg or .pdf file, got {plot}")
    require_matplotlib()
    if plot.exists() and not force:
        raise ScenarioError(f"{plot}: is there already; --force replaces it")
    if not plot.parent.is_dir():
        raise ScenarioError(f"{plot}: there is no folder {plot.parent}; make it")


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
