"""The states of a client that may fail, start, and leave."""

from __future__ import annotations

from typing import Literal, get_args

State = Literal["off", "starting", "up", "draining", "failed"]
"""States of a client.

off: it is not reserved, and draws nothing. starting: it loads weights and starts its engines.
up: it takes visits. draining: it finishes those it has and takes no others. failed: it is reserved
and draws nothing, until it is repaired.
"""

STATES: tuple[State, ...] = get_args(State)
