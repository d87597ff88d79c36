"""Images in a workload: how many a prompt has, and how large they are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from mist_sim.checks import Positive, check_fields
from mist_sim.core.request import Image, Images
from mist_sim.errors import ScenarioError
from mist_sim.models.vision import VisionTower
from mist_sim.traces.base import TraceRow

_SIZE = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})")
_BLOCK = 4096  # draws at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptImages:
    """Images that stand before the text of prompts, all of a prompt of one size.

    sizes: share of the prompts whose images have each size in pixels, width x height, such as
        {1024x768: 0.8, 1920x1080: 0.2}.
    numbers: share of the prompts that have each number of images, such as {0: 0.6, 1: 0.4}; without
        it, as many as the trace says (NumImages of Azure's trace of 2025).
    model: whose vision tower makes tokens of them; by default the scenario's model.
    Raises ValueError for a size that is none, a share that is not > 0, or a number below 0.
    """

    sizes: Mapping[str, Positive[float]]
    numbers: Mapping[int, Positive[float]] | None = None
    model: str | None = None

    def __post_init__(self) -> None:
        if not self.sizes or self.numbers == {}:
            raise ValueError("sizes and numbers must have at least one entry, got {}")
        for size in self.sizes:
            if not _SIZE.fullmatch(size):
                raise ValueError(
                    f"sizes must be WIDTHxHEIGHT in pixels, such as 1024x768, got {size}"
                )
        for number in self.numbers or ():
            if number < 0:
                raise ValueError(f"numbers must be >= 0 images, got {number}")
        check_fields(self)


@dataclass(frozen=True, slots=True)
class ImageLaw:
    """Images of prompts as a model sees them. tower: says how many tokens each becomes."""

    said: PromptImages
    tower: VisionTower
    _images: tuple[Image, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        known = (_SIZE.fullmatch(size) for size in self.said.sizes)
        found = [self.tower.image(int(each[2]), int(each[1])) for each in known if each]
        object.__setattr__(self, "_images", tuple(found))

    def applied(self, rows: Iterator[TraceRow], rng: np.random.Generator) -> Iterator[TraceRow]:
        """Yield the rows with images, whose tokens come before those of the row.

        Raises ScenarioError for a row with content, whose blocks images would move.
        """
        sizes = _drawn(np.arange(len(self._images)), list(self.said.sizes.values()), rng)
        shares = self.said.numbers
        if shares is None:
            numbers = None
        else:
            numbers = _drawn(np.array(list(shares)), list(shares.values()), rng)
        for row in rows:
            number = row.num_images if numbers is None else next(numbers)
            image = self._images[next(sizes)]
            if not number:
                yield row
                continue
            if row.content:
                raise ScenarioError(
                    "workload.images must be left out where prompts share content: prefixes with "
                    "images are not simulated"
                )
            images = Images(number, image)
            yield row._replace(
                num_prompt_tokens=row.num_prompt_tokens + images.num_tokens, images=images
            )


def _drawn(
    values: np.ndarray[tuple[int], np.dtype[np.int64]],
    shares: list[float],
    rng: np.random.Generator,
) -> Iterator[int]:
    while True:
        yield from rng.choice(values, _BLOCK, p=np.array(shares) / sum(shares)).tolist()
