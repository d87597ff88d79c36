"""The command line: `mist VERB`. Each verb is a module and imports its needs when it runs."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from mist_sim.cli.signals import interruption_of, stopping_signals, take_leave
from mist_sim.garbage import OBJECTS_BETWEEN_COLLECTIONS


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line; leaves with SystemExit.

    args: words after `mist`; those of the process when None. Exit codes: 0 done, 2 bad input,
    70 a bug; 130, 143 and 129 where Ctrl-C, SIGTERM or SIGHUP ended it.
    """
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)  # what imports make stays
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal without some letter shows a `?`
            stream.reconfigure(errors="replace")
    with stopping_signals():
        try:
            from mist_sim.cli.app import app_for

            words = list(sys.argv[1:] if args is None else args)
            app_for(words)(words, prog_name="mist")
        except (KeyboardInterrupt, Exception) as error:
            stop = interruption_of(error)
            if stop is None:
                raise
            sys.exit(take_leave(stop))
