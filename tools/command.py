"""How a tool of the command line ends."""

from __future__ import annotations

import sys
from collections.abc import Callable

from mist_sim.errors import MistError

BAD_INPUT = 2


def run(main: Callable[[], object]) -> None:
    """Call what a tool does; bad input leaves as a message on stderr and exit code 2."""
    try:
        main()
    except MistError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(BAD_INPUT)
