"""ImagesConfig: options of an engine that serves images and text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TowerSplit = Literal["weights", "data"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagesConfig:
    """Images that an engine encodes with its model's vision tower; the name is vLLM's.

    mm_encoder_tp_mode: weights splits each layer of the tower over the tensor-parallel GPUs; data
        has all of it on each, which encodes its part of the images of a step.
    """

    mm_encoder_tp_mode: TowerSplit = "weights"

    def __post_init__(self) -> None:
        if self.mm_encoder_tp_mode not in ("weights", "data"):
            raise ValueError(
                f"mm_encoder_tp_mode must be weights or data, got {self.mm_encoder_tp_mode}"
            )

    @property
    def is_spread(self) -> bool:
        """Whether each GPU has the whole tower."""
        return self.mm_encoder_tp_mode == "data"
