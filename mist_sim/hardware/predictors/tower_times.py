"""Seconds in which a vision tower makes tokens of images: its layers, and the products behind them.

The layers are those of an encoder, timed by the roofline, with attention of their own kernels and
without CUDA graphs, as vLLM runs them by default; all images that are encoded together are one
batch.

Seconds of the attention of a vision tower: the patches of an image to one another.

The kernel is one of vLLM's flash attention, as of prompts, with three differences. It pads heads to
the sizes that it was compiled for. Its queries, keys and values were just written by the product
before it, and come from the GPU's cache; an image that is too large for that has so many pairs that
they take the time. And it has figures of its own, since it looks up no blocks of a KV cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import sqrt
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.request import Image
from mist_sim.errors import ScenarioError
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.predictors.analytic.attention_time import PromptAttention
from mist_sim.hardware.predictors.analytic.compile import (
    Phase,
    of_all_pairs,
    phase_time,
    prompt_times,
)
from mist_sim.hardware.predictors.analytic.cuda_graphs import launch_time
from mist_sim.hardware.predictors.analytic.phase_time import Term
from mist_sim.models.operators import Operator
from mist_sim.models.spec import ModelSpec
from mist_sim.models.vision import VisionTower

_COMPILED = np.array([64, 96, 128, 192, 256])

Sizes = TypeVar("Sizes", int, NDArray[np.int64])


def computed_head(head_dim: Sizes) -> Sizes:
    """Return the values of a head that a kernel computes: those of the next larger kernel.

    Kernels are compiled for heads of 64, 96, 128, 192 and 256 values; larger heads, which none of
    them takes, count as they are. Source: `round_up_headdim` in flash-attention's
    `hopper/flash_api.cpp`.
    """
    place = np.minimum(np.searchsorted(_COMPILED, head_dim), len(_COMPILED) - 1)
    found: Sizes = np.maximum(_COMPILED[place], head_dim)
    return found


def tower_attention(phase: Phase, layers: int, heads: float, head_dim: int) -> PromptAttention:
    """Return the times of so many layers. heads: of a rank."""
    size = int(computed_head(head_dim))

    def attention(_queries: float, _keys: float, pairs: float) -> Operator:
        return Operator("attention", 4 * heads * size * pairs, 0.0)

    return of_all_pairs(prompt_times(phase, "tower_attention", layers, attention, heads=heads))


Measured = Callable[[int, int, int, int], float]
"""Seconds of a layer's attention (`PredictorTraits.tower_attention`)."""

_ONE_IMAGE = 1024  # patches: every table has such an image
_WIDTH = 2  # bytes of a value; towers are kept in 16 bits


def tower_bytes(tower: VisionTower, ranks: int) -> float:
    """Return the bytes of a tower on each of the ranks that share it."""
    return _WIDTH * tower.num_parameters / ranks


class TowerTimes:
    """Times the passes of a tower.

    name: of its model. ranks: that share each layer; with `is_spread` each has the whole tower, and
    encodes its part of the images (vLLM's `mm_encoder_tp_mode: data`).
    measured: times its attention in place of the roofline (`PredictorTraits.tower_attention`).
    encoder: its layers, as those of a model. assumed: what results name: why `measured` has no
        times of its heads.
    Raises ScenarioError where its heads cannot be split over the ranks.
    """

    def __init__(
        self,
        name: str,
        tower: VisionTower,
        cluster: Cluster,
        *,
        is_spread: bool = False,
        measured: Measured | None = None,
    ) -> None:
        ranks = cluster.tensor_parallel_size
        self._num_lots = ranks if is_spread else 1
        one = Cluster(cluster.gpu, 1 if is_spread else ranks)
        self.encoder = encoder = _encoder(name, tower)
        encoder.check_tensor_parallel(one.tensor_parallel_size)
        phase = Phase(cluster.gpu, cluster.gpu.prefill)
        shared, layers = one.tensor_parallel_size, tower.num_layers
        self._matrices = phase_time(encoder, one, prefill=True)
        heads, head_dim = tower.num_heads // shared, tower.head_dim
        self._attention = tower_attention(phase, layers, heads, head_dim)
        self._sizes = heads, head_dim
        self._measured = measured
        self.assumed: tuple[str, ...] = ()
        if measured is not None and (reason := _why_no_times(measured, heads, head_dim)):
            self._measured = None
            self.assumed = (f"images: their attention is the roofline's, as {reason}",)
        self._launch = launch_time(cluster.gpu.dispatch, layers, eager=True)
        first = (tower.patch_values, tower.hidden_size)
        per_patch, per_token = _terms(phase, [first], 1), _terms(phase, tower.products, shared)
        self._behind = [(term, tower.merge**2) for term in per_patch]
        self._behind += [(term, 1) for term in per_token]

    def seconds(self, images: Sequence[Image]) -> float:
        """Return the seconds in which some images are encoded together; 0.0 without any."""
        if not images:
            return 0.0
        lots = [images[first :: self._num_lots] for first in range(self._num_lots)]
        return max([self._pass(lot) for lot in lots if lot])

    def _pass(self, images: Sequence[Image]) -> float:
        parts = [(each.patches, 0) for each in images for _ in range(each.parts)]
        tokens = sum([each.tokens for each in images])
        patches = sum([number for number, _ in parts])
        matrices = self._matrices.time(patches, len(parts))
        found = max(self._with_attention(matrices, parts), self._launch)
        for term, rows in self._behind:
            compute = tokens * rows * term.work
            memory = term.weights + tokens * rows * term.traffic
            found += term.fixed + tokens * rows * term.per_token
            found += sqrt(compute * compute + memory * memory)
        return found

    def _with_attention(self, seconds: float, parts: Sequence[tuple[int, int]]) -> float:
        """Return `seconds` with the attention of all layers.

        parts: patches of each image, and 0.
        """
        if self._measured is None:
            return self._attention.of_step(seconds, parts)
        counts = Counter([patches for patches, _ in parts])
        return seconds + self.encoder.num_layers * self._measured_layer(self._measured, counts)

    def _measured_layer(self, measured: Measured, counts: Counter[int]) -> float:
        """Return the seconds of the attention of images in one layer, of measured equal images.

        counts: images by their patches. Each of `n` images of different sizes takes 1 / `n` of the
        time of `n` images of its size. The time of a set is at least that of any subset, so that an
        additional image never makes a pass shorter.
        """
        longest = 0.0
        for number in range(1, counts.total() + 1):
            shares = [(measured(*self._sizes, number, size) / number, size) for size in counts]
            seconds, left = 0.0, number
            for share, size in sorted(shares, reverse=True):  # the slowest `number` of them
                taken = min(left, counts[size])
                seconds += taken * share
                left -= taken
            longest = max(longest, seconds)
        return longest


def _why_no_times(measured: Measured, heads: int, head_dim: int) -> str:
    """Return why a source has no times of a tower's heads, as it says; empty if it has them."""
    try:
        measured(heads, head_dim, 1, _ONE_IMAGE)
    except ScenarioError as error:
        return str(error)
    return ""


def _encoder(name: str, tower: VisionTower) -> ModelSpec:
    return ModelSpec(
        name=f"the vision tower of {name}",
        num_layers=tower.num_layers,
        hidden_size=tower.hidden_size,
        intermediate_size=tower.intermediate_size,
        num_attention_heads=tower.num_heads,
        num_key_value_heads=tower.num_heads,
        head_dim=tower.head_dim,
        vocab_size=1,
        max_position_embeddings=1,
        gated_mlp=tower.gated_mlp,
        has_embedding=False,
        has_head=False,
        is_encoder=True,
    )


def _terms(phase: Phase, products: Sequence[tuple[int, int]], ranks: int) -> list[Term]:
    found: list[Term] = []
    for inputs, outputs in products:
        weights, moved = _WIDTH * inputs * outputs / ranks, _WIDTH * (inputs + outputs / ranks)
        none = Operator("tower_product", 0.0, weights, "bf16", "bf16", inputs, 0.0)
        flops = 2 * inputs * outputs / ranks
        one = none._replace(flops=flops, bytes=weights + moved, inputs=float(inputs))
        found += phase.terms(1, [none], [one])
    return found
