"""The sizes of a bundle, and the times of its batches' phases."""

from __future__ import annotations

from dataclasses import dataclass

from mist_sim.bounds import BUNDLE, LAYERS
from mist_sim.hardware.afd import AfdCoefficients


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleConfig:
    """A bundle of attention and FFN workers.

    coefficients: of its phases; times have their unit.
    attention_workers, ffn_workers: x and y of xA-yF.
    slots: requests of an attention worker in one batch (B).
    batches: in flight (m), each with slots of its own.
    static_graph: whether an empty slot costs FFN and communication as much as a full one, as it
        does where CUDA graphs of one size are replayed.
    layers: a step is divided into them evenly, and each goes to the FFN and back; None: a step goes
        there and back once.
    joint_steps: whether all batches begin each of their steps together, as parts of one batch of an
        engine do; else each begins its next step when it is back from the last.
    Raises ValueError for numbers below 1 and beyond the bounds (`mist_sim.bounds.BUNDLE`), and for
    joint steps without layers.
    """

    coefficients: AfdCoefficients
    attention_workers: int
    ffn_workers: int = 1
    slots: int
    batches: int = 2
    static_graph: bool = True
    layers: int | None = None
    joint_steps: bool = False

    def __post_init__(self) -> None:
        for name, most in BUNDLE.items():
            value = getattr(self, name)
            if not 1 <= value <= most:
                raise ValueError(f"{name} must be from 1 to {most}, got {value}")
        if self.layers is not None and not 1 <= self.layers <= LAYERS:
            raise ValueError(f"layers must be from 1 to {LAYERS}, got {self.layers}")
        if self.joint_steps and self.layers is None:
            raise ValueError(
                "layers are required with joint_steps: without them no batch would be in attention "
                "while another one is in the FFN of the layer before; set layers, such as 61"
            )

    @property
    def slots_per_batch(self) -> int:
        """Slots of all attention workers in one batch."""
        return self.slots * self.attention_workers

    @property
    def num_workers(self) -> int:
        """Workers of both kinds."""
        return self.attention_workers + self.ffn_workers

    @property
    def num_slots(self) -> int:
        """Slots of all batches."""
        return self.slots_per_batch * self.batches
