"""What clients are: the record that everything outside `clients` reads, and their roles."""

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
