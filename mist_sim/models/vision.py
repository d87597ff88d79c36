"""Vision towers: their sizes, and how many tokens an image becomes.

How image processors resize an image: its grid of tokens, by height and width in pixels.

Source: the image processors of the `transformers` library and of vLLM, by class below.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, sqrt
from typing import Literal, Protocol

from mist_sim.checks import Checked
from mist_sim.core.request import Image


class Resizing(Protocol):
    """Cuts an image into squares, each of which becomes a token. height, width, side: in pixels."""

    def squares(self, height: int, width: int, side: int) -> int:
        """Return the squares of an image. side: of one."""

    def parts(self, height: int, width: int) -> int:
        """Return the parts of equal size that do not see one another."""
        return 1


@dataclass(frozen=True, slots=True)
class WithinLimits(Resizing):
    """An image keeps its size, rounded to whole squares, unless it has too few or too many.

    fewest, most: squares (`smart_resize` of Qwen2-VL).
    """

    fewest: int
    most: int

    def squares(self, height: int, width: int, side: int) -> int:
        """Return the squares."""
        rows, columns = max(1, round(height / side)), max(1, round(width / side))
        area = height * width
        if rows * columns > self.most:
            scale = sqrt(area / (self.most * side * side))
            rows, columns = floor(height / scale / side), floor(width / scale / side)
        elif rows * columns < self.fewest:
            scale = sqrt(self.fewest * side * side / area)
            rows, columns = ceil(height * scale / side), ceil(width * scale / side)
        return max(1, rows) * max(1, columns)


@dataclass(frozen=True, slots=True)
class PaddedUp(Resizing):
    """An image keeps its size unless it is too large, and is padded to whole squares.

    most, most_on_side: patches of an image, and along a side. patch: its side in pixels.
    `navit_resize_image` of Kimi-K2.5.
    """

    most: int
    most_on_side: int
    patch: int

    def squares(self, height: int, width: int, side: int) -> int:
        """Return the squares."""
        patches = max(1, height // self.patch) * max(1, width // self.patch)
        longest = self.most_on_side * self.patch
        scale = min(1.0, sqrt(self.most / patches), longest / height, longest / width)
        rows, columns = (max(1, int(pixels * scale)) for pixels in (height, width))
        return ceil(rows / side) * ceil(columns / side)


@dataclass(frozen=True, slots=True)
class FillBudget(Resizing):
    """Every image is scaled, up or down, until it has as many squares as the budget lets it.

    most: squares. `get_aspect_ratio_preserving_size` of Gemma 4.
    """

    most: int

    def squares(self, height: int, width: int, side: int) -> int:
        """Return the squares."""
        scale = sqrt(self.most * side * side / (height * width))
        rows, columns = floor(scale * height / side), floor(scale * width / side)
        return min(self.most, max(1, rows) * max(1, columns))


@dataclass(frozen=True, slots=True)
class FixedSize(Resizing):
    """Every image has the same squares. number: of them (Gemma 3's `mm_tokens_per_image`)."""

    number: int

    def squares(self, height: int, width: int, side: int) -> int:
        """Return the squares."""
        return self.number


@dataclass(frozen=True, slots=True)
class InTiles(Resizing):
    """An image is cut into square tiles, and stands before them as one more tile if it has several.

    tile: its side in pixels. most: tiles of an image. Of all grids that hold the image without
    shrinking it, the one that enlarges it least is taken, otherwise the one that shrinks it least;
    of equals the smallest (`get_best_fit` of Llama 4).
    """

    tile: int
    most: int

    def squares(self, height: int, width: int, side: int) -> int:
        """Return the squares of all tiles."""
        return self.parts(height, width) * (self.tile // side) ** 2

    def parts(self, height: int, width: int) -> int:
        """Return the tiles, with that of the whole image."""
        tiles = self._tiles(height, width)
        return tiles + (tiles > 1)

    def _tiles(self, height: int, width: int) -> int:
        best, found = None, 1
        for rows in range(1, self.most + 1):
            for columns in range(1, self.most // rows + 1):
                scale = min(rows * self.tile / height, columns * self.tile / width)
                rank = (scale < 1, abs(scale - 1) if scale >= 1 else -scale, rows * columns)
                if best is None or rank < best:
                    best, found = rank, rows * columns
        return found


TowerSplit = Literal["weights", "data"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagesConfig(Checked):
    """Images that an engine encodes with its model's vision tower; the name is vLLM's.

    mm_encoder_tp_mode: weights splits each layer of the tower over the tensor-parallel GPUs; data
        has all of it on each, which encodes its part of the images of a step.
    """

    mm_encoder_tp_mode: TowerSplit = "weights"

    @property
    def is_spread(self) -> bool:
        """Whether each GPU has the whole tower."""
        return self.mm_encoder_tp_mode == "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionTower:
    """A transformer over the patches of an image, each of which sees all others of it.

    num_layers, hidden_size, intermediate_size, num_heads, head_dim: as of a model.
    gated_mlp: whether an MLP has three matrices.
    patch_size: side of a patch in pixels. patch_values: values of one (3 colours, times the frames
        that share a patch).
    merge: patches along the side of the square that becomes one token.
    positions: rows of the learned table of positions; 0: positions are rotated in.
    products: (inputs, outputs) of the matrices behind it that each token goes through.
    resizing: how many tokens an image becomes.
    """

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    head_dim: int
    patch_size: int
    patch_values: int
    merge: int
    products: tuple[tuple[int, int], ...]
    resizing: Resizing
    positions: int = 0
    gated_mlp: bool = False

    def image(self, height: int, width: int) -> Image:
        """Return what an image of so many pixels becomes (>= 1 each).

        Start and end marks around it are not counted.
        """
        tokens = self.resizing.squares(height, width, self.patch_size * self.merge)
        parts = self.resizing.parts(height, width)
        return Image(tokens * self.merge**2 // parts, tokens, parts)

    @property
    def num_parameters(self) -> int:
        """Parameters of the tower, its table of positions, and the products behind it."""
        attention = 4 * self.hidden_size * self.num_heads * self.head_dim
        mlp = (3 if self.gated_mlp else 2) * self.hidden_size * self.intermediate_size
        norms = 4 * self.hidden_size
        inputs = (self.patch_values + self.positions) * self.hidden_size
        behind = sum(inputs * outputs for inputs, outputs in self.products)
        return self.num_layers * (attention + mlp + norms) + inputs + behind
