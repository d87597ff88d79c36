"""The `mist` command and its verbs; every error leaves here as one message and an exit code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
        """Run a verb; end with a message and an exit code instead of a traceback."""
        try:
            return self._invoke(ctx)
        except InvariantError as error:
            note(f"error: {error}\n\n{_REPORT}")
            raise typer.Exit(BUG) from error
        except MistError as error:
            note("\n".join([_message(error), *getattr(error, "__notes__", ())]))
            raise typer.Exit(BAD_INPUT) from error
        except BrokenPipeError:  # the reader has seen enough; Typer ends quietly
            raise
        except OSError as error:
            where = f": {error.filename}" if error.filename else ""
            note(f"error: {error.strerror or error}{where}")
            raise typer.Exit(BAD_INPUT) from error
        except MemoryError as error:
            note(_NO_MEMORY)
            raise typer.Exit(BAD_INPUT) from error
        except Exception as error:  # a user never sees a traceback
            if isinstance(error, typer.Abort) or hasattr(error, "exit_code"):
                raise  # Typer's own way to end
            problem = _cut(f"error: unexpected {type(error).__name__}: {error}")
            note(f"{problem}\n\n{_REPORT}")
            raise typer.Exit(BUG) from error
        except KeyboardInterrupt as stop:
            raise typer.Exit(take_leave(stop)) from stop

    def _invoke(self, ctx: Any) -> Any:
        """Run a verb. An interruption turned into another error on its way is restored."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            stop = interruption_of(error)
            if stop is None:
                raise
            raise stop from None


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


def _app_of(names: Iterable[str]) -> typer.Typer:
    """Return the command with these verbs."""
    made = typer.Typer(
        name="mist",
        cls=Verbs,
        help="Simulate LLM serving: what latency, throughput and goodput would a deployment have?",
        pretty_exceptions_enable=False,
        **_LOOK,
    )
    for name in names:
        _add(made, name, _VERBS[name])
    made.callback()(options)
    return made


app = _app_of(_VERBS)


def app_for(words: Sequence[str]) -> typer.Typer:
    """Return the command for these words: only their verb, since Typer reads every signature."""
    return _app_of(words[:1]) if words and words[0] in _VERBS else app
