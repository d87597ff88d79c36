"""JSON objects that flags take."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import Any

from mist_sim.scenario.from_vllm.flags import Flag
from mist_sim.scenario.from_vllm.server import Server
from mist_sim.scenario.from_vllm.tables import mapping


def entries_of(flag: Flag, server: Server) -> dict[str, Any]:
    """Return the entries of a flag's JSON; none, and a fault in the account, where it is none."""
    try:
        found = mapping(flag.value)
    except (ArgumentTypeError, RecursionError) as error:
        server.account.refused(flag.name, str(error))
        return {}
    if not found:
        server.account.no_effect(flag.name, "it says nothing")
    return found
