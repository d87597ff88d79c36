"""Client traits: the record that all code outside `clients` reads, and the roles."""

from mist_sim.clients.traits.record import (
    ClientTraits,
    EngineGroup,
    KvForm,
    Slider,
    TimesOrigin,
)
from mist_sim.clients.traits.roles import FLOWING_ROLES, ROLES, SENDING_ROLES, Role

__all__ = [
    "FLOWING_ROLES",
    "ROLES",
    "SENDING_ROLES",
    "ClientTraits",
    "EngineGroup",
    "KvForm",
    "Role",
    "Slider",
    "TimesOrigin",
]
