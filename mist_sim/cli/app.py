"""The `mist` command and its verbs; every error leaves here as one message and an exit code."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from mist_sim.cli.options import as_command
from mist_sim.cli.session import note
from mist_sim.cli.signals import Saved, interruption_of, take_leave
from mist_sim.errors import InvariantError, MistError

BAD_INPUT = 2
BUG = 70  # EX_SOFTWARE of sysexits.h
_MOST_LINES, _LONGEST_LINE = 100, 2_000  # of a message; excerpts of input in it are shorter


class Verbs(TyperGroup):
    """Runs a verb and turns its exceptions into a message on stderr and an exit code."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Read the words of the command line."""
        Saved.latest = None  # of a command before, in the same process
        try:
            return super().make_context(*args, **kwargs)
        except MistError as error:
            typer.echo(_message(error), err=True)
            raise typer.Exit(BAD_INPUT) from error
        except KeyboardInterrupt as stop:
            raise typer.Exit(take_leave(stop)) from stop

    def invoke(self, ctx: Any) -> Any:
        """Run a verb; end with a message and an exit code instead of a traceback.

        An interruption turned into another error on its way is still one.
        """
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, Exception) as error:
            if (stop := interruption_of(error)) is not None:
                raise typer.Exit(take_leave(stop)) from stop
            if isinstance(error, typer.Abort | BrokenPipeError) or hasattr(error, "exit_code"):
                raise  # Typer's own way to end; or the reader has seen enough
            text, code = _told(error)
            note(text)
            raise typer.Exit(code) from error


def _told(error: BaseException) -> tuple[str, int]:
    """Return what is said of an error, and the exit code; a user never sees a traceback."""
    if isinstance(error, InvariantError):
        return f"error: {error}\n\n{_REPORT}", BUG
    if isinstance(error, MistError):
        return "\n".join([_message(error), *getattr(error, "__notes__", ())]), BAD_INPUT
    if isinstance(error, OSError):
        where = f": {error.filename}" if error.filename else ""
        return f"error: {error.strerror or error}{where}", BAD_INPUT
    if isinstance(error, MemoryError):
        return _NO_MEMORY, BAD_INPUT
    problem = _cut(f"error: unexpected {type(error).__name__}: {error}")
    return f"{problem}\n\n{_REPORT}", BUG


def _message(error: MistError) -> str:
    """Return the text to print: one line per problem."""
    lines = [_cut(line) for line in str(error).split("\n")[:_MOST_LINES]]
    return f"error: {lines[0]}" if len(lines) == 1 else "\n  ".join(("errors:", *lines))


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}..."


_NO_MEMORY = (
    "error: this takes more memory than there is, or than a limit allows; take fewer requests or "
    "clients, or --jobs 1 where several runs go on at a time"
)
_REPORT = (
    "This is a bug in mist-sim, or in a plugin, and not your mistake. Please report it with the\n"
    "scenario and this message."
)

_VERBS = {  # the module of each, and its function
    "demo": "run:demo",
    "run": "run:run",
    "from-vllm": "from_vllm:from_vllm",
    "list": "catalog:list_",
    "schema": "catalog:schema",
    "help": "catalog:help_",
    "fit": "calibrate:fit",
    "calibrate": "calibrate:calibrate",
    "profile": "profile:profile",
    "observe": "observe:observe",
    "validate": "validate:validate",
    "trace": "trace",
    "timeline": "saved:timeline",
    "plot": "saved:plot",
    "report": "saved:report",
    "afd": "afd:afd",
    "goodput": "goodput:goodput",
    "sliders": "goodput:sliders",
    "bestserve": "bestserve:bestserve",
    "compare": "compare:compare",
    "plan": "plan:plan",
    "search": "search:search",
    "sweep": "search:sweep",
    "reshard": "explain:reshard",
    "explain": "explain:explain",
}
_OF_TRACE = ("inspect", "convert", "synth", "sample", "fetch")
_TRACE_HELP = "Look at a trace, write it in another form, make more of it, or download one."
_LOOK: dict[str, Any] = {
    "no_args_is_help": True,
    "rich_markup_mode": None,  # boxes would cut the names of options
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


def _add(app: typer.Typer, name: str, place: str) -> None:
    """Add a verb to a command. place: its module, and its function; or a module of several."""
    module, _, function = place.partition(":")
    if function:
        verb = getattr(import_module(f"mist_sim.cli.verbs.{module}"), function)
        app.command(name)(as_command(verb))
        return
    inner = typer.Typer(help=_TRACE_HELP, **_LOOK)
    for each in _OF_TRACE:
        _add(inner, each, f"{module}:{each}")
    app.add_typer(inner, name=name)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        from mist_sim.cli.listings.catalog_dates import catalog_lines
        from mist_sim.compiled import state

        core = f"engine core: {state()}"
        typer.echo("\n".join([f"mist-sim {version('mist-sim')}", core, *catalog_lines()]))
        raise typer.Exit


def options(
    show_version: bool = typer.Option(
        False,
        "--version",
        callback=_print_version,
        is_eager=True,
        help="Print the version, whether the core is compiled, and how new the catalogs are.",
    ),
) -> None:
    """Take the options that stand before a verb."""


def app_for(words: Sequence[str]) -> typer.Typer:
    """Return the command for these words: only their verb, since the others take time to read."""
    made = typer.Typer(
        name="mist",
        cls=Verbs,
        help="Simulate LLM serving: what latency, throughput and goodput would a deployment have?",
        pretty_exceptions_enable=False,
        **_LOOK,
    )
    for name in words[:1] if words and words[0] in _VERBS else _VERBS:
        _add(made, name, _VERBS[name])
    made.callback()(options)
    return made


def __getattr__(name: str) -> typer.Typer:
    if name == "app":  # the command with all verbs
        return app_for(())
    raise AttributeError(name)
