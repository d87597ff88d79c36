"""Options of an engine that go together."""

from __future__ import annotations

from dataclasses import dataclass

from mist_sim.clients.engine_checks import check_options
from mist_sim.clients.engine_options import EngineOptions


@dataclass(frozen=True, kw_only=True)
class EngineConfig(EngineOptions):  # noqa: D101 - `EngineOptions` says what each option means
    __doc__ = EngineOptions.__doc__

    def __post_init__(self) -> None:
        check_options(self)
