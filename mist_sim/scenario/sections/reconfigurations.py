"""TaiChi's sliders that move during a run, in a scenario file."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Annotated

from pydantic import BeforeValidator

from mist_sim.clients.traits import FLOWING_ROLES
from mist_sim.reconfiguration import Change, OnChange, Reconfigure
from mist_sim.scenario.format.families import Settings
from mist_sim.scenario.format.fields import as_tuple
from mist_sim.scenario.format.parts import Part, part_type
from mist_sim.scenario.format.problems import Problem

_CHANGE = part_type(Change)
_ON_CHANGE = part_type(OnChange)
RECONFIGURE = part_type(
    Reconfigure,
    meanings={
        "schedule": Annotated[
            tuple[Annotated[Part, Settings(_CHANGE)], ...], BeforeValidator(as_tuple)
        ],
        "on_change": Annotated[Part, Settings(_ON_CHANGE)] | None,
    },
)
PARTS = {"schedule": _CHANGE, "on_change": _ON_CHANGE}
"""The mappings that lie in it, by key; `schedule` is a list of them."""


def problems_of_sliders(
    part: Part | None, roles: Collection[str | None], *, has_slo: bool, has_polls: bool
) -> Iterable[Problem]:
    """Yield problems that keep the sliders of a scenario from moving.

    roles: of its clients. has_slo: whether it has limits. has_polls: whether routers see polled
    views.
    """
    if part is None:
        return
    if not FLOWING_ROLES.intersection(roles):
        text = "has no effect: no client has role p_heavy or d_heavy"
        yield Problem(("reconfigure",), text)
    if has_polls:
        text = (
            "must be left out with reconfigure: the gateway that changes roles knows them at once"
        )
        yield Problem(("view_interval",), text)
    if getattr(part, "on_change", None) is not None and not has_slo:
        text = "must have a limit, which the search of reconfigure.on_change goes by"
        yield Problem(("slo",), text)
