"""Bundles of attention and FFN workers in a scenario file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from mist_sim.clients import AfdClient
from mist_sim.scenario.format.parts import Part, part_type
from mist_sim.scenario.format.problems import Problem
from mist_sim.scenario.sections.clients.base import ClientPart
from mist_sim.scenario.sections.clients.keys import GpuName, ModelName
from mist_sim.stages import Decode

_ANY_MODEL = "llama-3.1-8b"  # where the scenario's is not known yet
_UNPLACED = {"place": None, "ffn_place": None}
_UNNAMED = {"attention_gpus": 1, "ffn_gpus": 1}
"""Keys that only a topology gives a meaning, or the name of the GPUs; their values without one."""


class AfdPart(ClientPart):
    """A client of type afd, which decodes what clients with role prefill began."""

    needs_model: ClassVar[bool] = True

    if TYPE_CHECKING:
        model: str | None
        gpu: str | None
        gpu_price: float | None
        ffn_gpu_price: float | None
        communication: str

    @property
    def stages(self) -> Sequence[str]:
        """Decode alone."""
        return [Decode.kind]

    def said(self, model: str | None, *, guesses: bool = False) -> dict[str, Any]:
        """Return what a copy is made of, but its name. model: the scenario's."""
        known = model or (_ANY_MODEL if guesses else None)
        return {**self.parameters(), "model": self.model or known}

    def needing_topology(self) -> Iterable[Problem]:
        """Yield places, GPUs that take them, and communication over links."""
        without = _UNPLACED | (_UNNAMED if self.gpu is None else {})
        for key, unsaid in without.items():
            if getattr(self, key) != unsaid:
                yield Problem((key,), "has no effect: the network has no topology")
        if self.communication == "topology":
            text = "must be coefficients, since the network has no topology, got topology"
            yield Problem(("communication",), text)

    @property
    def prices(self) -> Mapping[str, float | None]:
        """Dollars an hour of its GPUs, by key; None where the file does not say."""
        return {"gpu_price": self.gpu_price, "ffn_gpu_price": self.ffn_gpu_price}


def afd_part(name: str) -> type[Part]:
    """Return the schema of a bundle."""
    return part_type(
        AfdClient,
        name,
        needs=("name",),
        meanings={"model": ModelName | None, "gpu": GpuName | None, "ffn_gpu": GpuName | None},
        defaults={"model": None},
        base=AfdPart,
    )
