"""VisionTower: the encoder that makes tokens of images, and what connects it to the model."""

from __future__ import annotations

from dataclasses import dataclass

from mist_sim.core.images import Image
from mist_sim.models.vision.resizing import Resizing


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
