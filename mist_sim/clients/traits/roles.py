"""Roles of clients: the stages that each serves, and whether it sends or takes KV entries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from mist_sim.stages import Decode, Prefill

Role = Literal["prefill", "decode", "p_heavy", "d_heavy"]

ROLES: Mapping[Role | None, frozenset[str]] = {
    None: frozenset({Prefill.kind, Decode.kind}),
    "prefill": frozenset({Prefill.kind}),
    "decode": frozenset({Decode.kind}),
    "p_heavy": frozenset({Prefill.kind, Decode.kind}),
    "d_heavy": frozenset({Prefill.kind, Decode.kind}),
}
"""The stages that a client of each role serves."""

FLOWING_ROLES: frozenset[Role | None] = frozenset({"p_heavy", "d_heavy"})
"""Roles of clients between which answers flow (TaiChi)."""

SENDING_ROLES: frozenset[Role | None] = FLOWING_ROLES | {"prefill"}
"""Roles of clients that hand KV entries over."""
