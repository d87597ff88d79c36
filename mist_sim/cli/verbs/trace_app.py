"""`mist trace`: its verbs together."""

from __future__ import annotations

import typer

from mist_sim.cli.verbs.trace import convert, inspect
from mist_sim.cli.verbs.trace_making import fetch, sample, synth

trace = typer.Typer(
    help="Look at a trace, write it in another form, make more of it, or download one.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (inspect, convert, synth, sample, fetch):
    trace.command()(verb)
