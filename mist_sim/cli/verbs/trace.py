"""`mist trace`: the contents of a trace, its conversion, more of it, and public ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from mist_sim.cli.options import option_of
from mist_sim.cli.session import note, saving
from mist_sim.cli.values import overrides_of
from mist_sim.errors import ScenarioError, TraceError, brief, did_you_mean, printable

if TYPE_CHECKING:
    from mist_sim.traces import TraceReader, TraceRow

Seed = Annotated[int, {"min": 0}]


def inspect(
    file: str,
    *,
    form: str | None = None,
    columns: Sequence[str] = (),
    num_requests: int | None = None,
    as_json: bool = False,
    plot: Path | None = None,
    replace: bool = False,
) -> None:
    """Print the statistics of a trace: lengths, arrivals, conversations, prefixes in common.

    as_json --json: Print JSON in place of the tables.
    plot FILE: Draw tails, rate and reuse into this .png, .svg or .pdf file (pip install
        'mist-sim[report]').
    """
    from mist_sim.output import json_text
    from mist_sim.report.elements import show
    from mist_sim.report.trace import trace_table
    from mist_sim.traces.readers.opening import FileReader, form_of
    from mist_sim.traces.statistics import Figures, statistics

    if plot is not None:
        _require_picture(plot, replace)
    name = form or form_of(file)
    source = reader(file, name, num_requests, columns)
    with by_settings():
        figures = Figures(source.rows())
    found = statistics(figures)
    if as_json:
        left = {"left_out": source.left_out.data} if isinstance(source, FileReader) else {}
        typer.echo(json_text({"format": name, **found, **left}), nl=False)
    else:
        show(f"{file}: {name}", trace_table(found))
        _tell_left_out(source)
    if plot is not None:
        from mist_sim.report.pictures.findings import trace_picture
        from mist_sim.report.pictures.picture import bytes_of

        title = printable(f"{Path(file).name}: {name}")
        picture = bytes_of([(title, trace_picture(figures))], plot.suffix.removeprefix("."))
        plot.write_bytes(picture)
        note(f"Written to {plot}")


def convert(
    file: str,
    *,
    to: str,
    out: Path,
    form: str | None = None,
    columns: Sequence[str] = (),
    num_requests: int | None = None,
    rate: float | None = None,
    seed: int = 0,
    without_prefixes: bool = False,
    replace: bool = False,
) -> None:
    """Write a trace in another form.

    out FILE: Write this file.
    rate R: Draw Poisson arrivals at this many a second in place of the trace's times.
    seed: Seed of these arrivals.
    without_prefixes: Leave out common prefixes of prompts.
    """
    lines = _writer(to)
    source = reader(file, form, num_requests, columns)
    rows = source.rows()
    if rate is not None:
        rows = _drawn(rows, rate, seed)
    if without_prefixes:
        rows = (row._replace(content=()) for row in rows)
    dropped = _Dropped()
    with by_settings(), saving(out, replace=replace) as target:
        target.write(lines(dropped.noting(rows)))
    _tell_left_out(source)
    dropped.tell(to, source)


def synth(
    file: str,
    *,
    to: str,
    out: Path,
    requests: int,
    rate: float | None = None,
    seed: Seed = 0,
    form: str | None = None,
    columns: Sequence[str] = (),
    num_requests: int | None = None,
    replace: bool = False,
) -> None:
    """Make more requests like those of a trace, and list which of its figures they keep.

    out FILE: Write this file.
    requests N: Make N requests.
    rate R: Requests a second in place of the trace's.
    seed: Seed of the random numbers.
    """
    from mist_sim.rng import Streams
    from mist_sim.traces.synthesis import KEPT, NOT_KEPT, fit_trace

    lines = _writer(to)
    with _as_options():
        source = reader(file, form, num_requests, columns)
        found = fit_trace(source.rows())
        if rate is not None and not 0 < rate < float("inf"):
            raise ScenarioError(f"--rate must be finite and > 0 /s, got {rate:g}")
        rows = found.rows(requests, Streams(seed).generator("synth"), rate)
        with saving(out, replace=replace) as target:
            target.write(lines(rows))
    _tell_left_out(source)
    note(f"Learnt from {found.num_requests:,} requests. Kept: {'; '.join(KEPT)}.")
    note(f"Not kept: {'; '.join(NOT_KEPT)}.")
    if found.known is not None and to in _HASHED:
        note(f"Its blocks have {found.block_size} tokens: hash_block_size: {found.block_size}")


def sample(
    file: str,
    *,
    to: str,
    out: Path,
    share: float,
    seed: Seed = 0,
    form: str | None = None,
    columns: Sequence[str] = (),
    num_requests: int | None = None,
    replace: bool = False,
) -> None:
    """Keep a random part of a trace: whole conversations, or requests that stand alone.

    Times stay, so that the rate falls to about the share.

    out FILE: Write this file.
    share S: Keep each conversation with this probability.
    seed: Seed of the random numbers.
    """
    from mist_sim.traces.workload import sampled

    lines, dropped = _writer(to), _Dropped()
    with _as_options():
        source = reader(file, form, num_requests, columns)
        rows = dropped.noting(sampled(source.rows(), share, seed))
        with saving(out, replace=replace) as target:
            target.write(lines(_some(rows)))
    _tell_left_out(source)
    dropped.tell(to, source)


def fetch(
    name: str = "",
    *,
    out: Path | None = None,
    sha256: str = "",
    timeout: float = 3_600.0,
    replace: bool = False,
    quiet: bool = False,
) -> None:
    """Download a public trace; a call that was stopped goes on where it was.

    name NAME_OR_URL: A known trace, or a URL; by default, list the known ones.
    out FILE: Write this file; by default the name at its source.
    sha256 HEX: The checksum that it must have.
    timeout SECONDS: Stop after so many seconds; another call goes on.
    """
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    from mist_sim.report.elements import Terminal, listed
    from mist_sim.traces.downloads import fetch as download
    from mist_sim.traces.sources import SOURCES, TraceSource

    if not name:
        rows = [
            (known, each.form, each.about, "yes" if each.sha256 else "-")
            for known, each in SOURCES.items()
        ]
        Terminal().print(listed(("trace", "reader", "", "checksum"), rows))
        return
    if name not in SOURCES and "://" not in name:
        raise ScenarioError(
            f"no known trace {brief(name)}{did_you_mean(name, SOURCES)} Known: "
            f"{', '.join(SOURCES)}; or give a URL"
        )
    if not 0 < timeout < float("inf"):
        raise ScenarioError(f"--timeout must be > 0 s and finite, got {timeout:g}")
    source = SOURCES.get(name) or TraceSource(name, "", "")
    target = out or Path(source.file_name or "trace")
    if target.exists() and not replace:
        raise ScenarioError(
            f"{target}: is there already; --force replaces it, or name another file with --out"
        )
    if not target.parent.is_dir():
        raise ScenarioError(f"{target}: there is no folder {target.parent}; make it")
    console = Terminal(stderr=True)
    columns = BarColumn(), DownloadColumn(), TransferSpeedColumn()
    hidden = quiet or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=None)
        found = download(
            source.url,
            target,
            sha256=sha256 or source.sha256,
            timeout=timeout,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    is_known = sha256 or source.sha256
    told = "as expected" if is_known else "no checksum is known to compare with"
    if not (is_known or found.ends):
        told += ", and the server did not say where the file ends"
    if found.url != source.url:
        note(f"{source.url} is redirected to {found.url}")
    next_step = f"mist trace inspect {quote(str(target))}"
    note(f"Written to {target}; sha256 {found.sha256} ({told}); next: {next_step}")


_HASHED = ("mooncake", "timed_trace")  # forms that say what prompts share


class _Dropped:
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


def _tell_left_out(source: TraceReader) -> None:
    """Say which rows of a trace that was read are left out."""
    from mist_sim.traces.base import LeavesOut

    if isinstance(source, LeavesOut) and (text := source.left_out.sentence(source.path)):
        note(text)


def reader(
    file: str, form: str | None, num_requests: int | None, columns: Sequence[str]
) -> TraceReader:
    """Return the reader of a file; raises ScenarioError that names options."""
    from mist_sim.traces.readers.opening import form_of, reader_of

    if not columns:
        with _as_options():
            return reader_of(file, form, num_requests)
    from mist_sim.scenario.plugins import trace_reader

    options = {"path": file, "num_requests": num_requests, **overrides_of(columns)}
    return trace_reader(form or form_of(file), options, "--set")


def _writer(to: str) -> Callable[[Iterable[TraceRow]], Iterator[str]]:
    """Return what writes a form. Raises ScenarioError for one that is not written."""
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
    try:
        yield
    except TraceError as error:
        text = _OPTION.sub(r"--set \1=\2", error.problem)
        raise TraceError(error.path, error.line, text) from None


@contextmanager
def _as_options() -> Iterator[None]:
    """Turn the ValueError of a parameter into a ScenarioError that names the option."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, ScenarioError):
            raise
        name, _, rest = str(error).partition(" ")
        raise ScenarioError(f"{option_of(name)} {rest}") from None


def _require_picture(plot: Path, replace: bool) -> None:
    """Raise ScenarioError where no picture can be drawn into the file."""
    from mist_sim.report.pictures.picture import FORMS
    from mist_sim.report.pictures.style import require_matplotlib

    if plot.suffix.removeprefix(".") not in FORMS:
        raise ScenarioError(f"--plot must name a .png, .svg or .pdf file, got {plot}")
    require_matplotlib()
    if plot.exists() and not replace:
        raise ScenarioError(f"{plot}: is there already; --force replaces it")
    if not plot.parent.is_dir():
        raise ScenarioError(f"{plot}: there is no folder {plot.parent}; make it")


def _drawn(rows: Iterator[TraceRow], rate: float, seed: int) -> Iterator[TraceRow]:
    """Yield the rows with the Poisson arrivals of a run with this seed."""
    from mist_sim.rng import Streams
    from mist_sim.traces import PoissonArrivals

    with _as_options():
        arrivals = PoissonArrivals(rate=rate)
    times = arrivals.times(Streams(seed).generator("arrivals"))
    return (row._replace(arrival_time=time) for row, time in zip(rows, times, strict=False))


def _some(rows: Iterator[TraceRow]) -> Iterator[TraceRow]:
    """Pass rows on. Raises ScenarioError for none."""
    is_empty = True
    for row in rows:
        is_empty = False
        yield row
    if is_empty:
        raise ScenarioError("--share must leave at least one request, and leaves none; raise it")
