"""`mist trace`: its verbs together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Self

import typer

from mist_sim.cli.options import Quiet
from mist_sim.cli.verbs.trace import (
    Columns,
    Dropped,
    File,
    Force,
    Form,
    Number,
    To,
    as_options,
    convert,
    inspect,
    reader,
    tell_left_out,
    writer,
)

if TYPE_CHECKING:
    from mist_sim.traces import TraceRow


Out = Annotated[Path, typer.Option("--out", metavar="FILE", help="Write this file.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the random numbers.")]


def synth(
    file: File,
    to: To,
    out: Out,
    requests: int = typer.Option(
        ..., "--requests", metavar="N", help="Make N requests.", show_default=False
    ),
    rate: float | None = typer.Option(
        None, metavar="R", help="Requests a second in place of the trace's.", show_default=False
    ),
    seed: Seed = 0,
    form: Form = None,
    settings: Columns = [],  # noqa: B006 - typer makes a new list
    num_requests: Number = None,
    force: Force = False,
) -> None:
    """Make more requests like those of a trace, and list which of its figures they keep."""
    from mist_sim.cli.session import note
    from mist_sim.rng import Streams
    from mist_sim.traces.synthesis import KEPT, NOT_KEPT, fit_trace

    lines = writer(to)
    with as_options():
        source = reader(file, form, num_requests, settings)
        found = fit_trace(source.rows())
        _require_rate(rate)
        rows = found.rows(requests, Streams(seed).generator("synth"), rate)
        _written(lines(rows), out, force)
    tell_left_out(source)
    note(f"Learnt from {found.num_requests:,} requests. Kept: {'; '.join(KEPT)}.")
    note(f"Not kept: {'; '.join(NOT_KEPT)}.")
    if found.known is not None and to in ("mooncake", "timed_trace"):
        note(f"Its blocks have {found.block_size} tokens: hash_block_size: {found.block_size}")


def sample(
    file: File,
    to: To,
    out: Out,
    share: float = typer.Option(
        ..., metavar="S", help="Keep each conversation with this probability.", show_default=False
    ),
    seed: Seed = 0,
    form: Form = None,
    settings: Columns = [],  # noqa: B006 - typer makes a new list
    num_requests: Number = None,
    force: Force = False,
) -> None:
    """Keep a random part of a trace: whole conversations, or requests that stand alone.

    Times stay, so that the rate falls to about the share.
    """
    from mist_sim.traces.workload import sampled

    lines, dropped = writer(to), Dropped()
    with as_options():
        source = reader(file, form, num_requests, settings)
        rows = dropped.noting(sampled(source.rows(), share, seed))
        _written(lines(_some(rows)), out, force)
    tell_left_out(source)
    dropped.tell(to, source)


def fetch(
    name: str = typer.Argument(
        "", metavar="NAME_OR_URL", help="A known trace, or a URL; by default, list the known ones."
    ),
    out: Path | None = typer.Option(
        None, metavar="FILE", help="Write this file; by default the name at its source."
    ),
    sha256: str = typer.Option("", metavar="HEX", help="The checksum that it must have."),
    timeout: float = typer.Option(
        3_600.0, metavar="SECONDS", help="Stop after so many seconds; another call goes on."
    ),
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Download a public trace; a call that was stopped goes on where it was."""
    from mist_sim.cli.session import note
    from mist_sim.errors import ScenarioError, brief, did_you_mean
    from mist_sim.traces.downloads import fetch as download
    from mist_sim.traces.sources import SOURCES, TraceSource

    if not name:
        _print_sources()
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
    if target.exists() and not force:
        raise ScenarioError(
            f"{target}: is there already; --force replaces it, or name another file with --out"
        )
    if not target.parent.is_dir():
        raise ScenarioError(f"{target}: there is no folder {target.parent}; make it")
    with _Bar(quiet) as bar:
        found = download(
            source.url,
            target,
            sha256=sha256 or source.sha256,
            timeout=timeout,
            progress=bar.show,
        )
    is_known = sha256 or source.sha256
    told = "as expected" if is_known else "no checksum is known to compare with"
    if not (is_known or found.ends):
        told += ", and the server did not say where the file ends"
    if found.url != source.url:
        note(f"{source.url} is redirected to {found.url}")
    next_step = f"mist trace inspect {quote(str(target))}"
    note(f"Written to {target}; sha256 {found.sha256} ({told}); next: {next_step}")


class _Bar:
    """A bar of bytes on stderr, where that is a terminal."""

    def __init__(self, quiet: bool) -> None:
        from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

        from mist_sim.report.elements import Terminal

        console = Terminal(stderr=True)
        self._bar = Progress(
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, done: int, total: int | None) -> None:
        """Show how many bytes are there."""
        self._bar.update(self._task, completed=done, total=total)


def _print_sources() -> None:
    from mist_sim.report.elements import Terminal, listed
    from mist_sim.traces.sources import SOURCES

    rows = [
        (name, source.form, source.about, "yes" if source.sha256 else "-")
        for name, source in SOURCES.items()
    ]
    Terminal().print(listed(("trace", "reader", "", "checksum"), rows))


def _require_rate(rate: float | None) -> None:
    if rate is not None and not 0 < rate < float("inf"):
        raise ValueError(f"rate must be finite and > 0 /s, got {rate:g}")


def _some(rows: Iterator[TraceRow]) -> Iterator[TraceRow]:
    """Pass rows on. Raises ScenarioError for none."""
    from mist_sim.errors import ScenarioError

    is_empty = True
    for row in rows:
        is_empty = False
        yield row
    if is_empty:
        raise ScenarioError("--share must leave at least one request, and leaves none; raise it")


def _written(lines: Iterator[str], out: Path, force: bool) -> None:
    from mist_sim.cli.signals import Saved
    from mist_sim.output import output_file

    with Saved() as saved, output_file(out, replace=force) as target:
        saved.output = target
        target.write(lines)


trace = typer.Typer(
    help="Look at a trace, write it in another form, make more of it, or download one.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (inspect, convert, synth, sample, fetch):
    trace.command()(verb)
