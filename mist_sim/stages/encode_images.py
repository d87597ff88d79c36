"""The stage in which a separate client encodes the images of a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mist_sim.core.request import Image, Images, Stage
from mist_sim.stages.stage_kinds import STAGES


@STAGES.register("encode_images")
@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeImages(Stage):
    """Turn a prompt's images into tokens before prefill (encode, prefill and decode apart).

    num_images: of the prompt; in a template, the class stands for those of the row.
    patches, tokens, parts: of each (see `Image`).
    """

    kind: ClassVar[str] = "encode_images"
    num_images: int = 0
    patches: int = 0
    tokens: int = 0
    parts: int = 1

    def __post_init__(self) -> None:
        for name in ("num_images", "patches", "tokens"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}")
        if self.parts < 1:
            raise ValueError(f"parts must be >= 1, got {self.parts}")

    @property
    def is_empty(self) -> bool:
        """Whether the prompt has no images."""
        return not self.num_images

    @property
    def image(self) -> Image:
        """Each of the images."""
        return Image(self.patches, self.tokens, self.parts)

    @classmethod
    def of(cls, images: Images | None) -> EncodeImages:
        """Return the stage for a row's images."""
        if images is None:
            return cls()
        return cls(num_images=images.number, **images.each._asdict())
