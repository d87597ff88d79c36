"""Figures of one kind of kernels on a GPU: shares of its peaks, and times on top.

A kernel takes

    floor + serial x depth + per_input x values put in + sqrt(compute^2 + memory^2)

with compute = FLOPs / (mfu x peak) and memory = bytes / (mbu x bandwidth): the two overlap, but
for the ramps at both ends, and the root of the sum of squares is nearer to measured kernels than
the longer of the two. Every figure comes from a table of measured kernels (`mist calibrate
kernels`), by architecture: what two cards of one architecture reach differs by their peaks alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from mist_sim.units import Seconds

PRODUCTS = ("bf16", "fp8", "fp8_block", "int8", "int4", "nvfp4", "mxfp4")
"""Formats of a matrix that have kernels of their own."""

STATES = ("gdn", "kda", "mamba2")
"""Layers with a state that have kernels of their own."""

_CHOSEN = ("sparse", "compressed", "blocks", "index", "block_index")

KERNELS = (
    *PRODUCTS,
    "fp8_widened",
    *(f"experts_{name}" for name in PRODUCTS),
    "vector",
    "prefill_attention",
    "decode_attention",
    "prefill_attention_fp8",
    "decode_attention_fp8",
    "latent_prefill_attention",
    "latent_decode_attention",
    "tower_attention",
    *(f"{kind}_{phase}_attention" for kind in _CHOSEN for phase in ("prefill", "decode")),
    *(f"{kind}_{phase}" for kind in STATES for phase in ("prefill", "decode")),
)
"""Kinds of kernels. `fp8_widened`: products of FP8 weights where the GPU multiplies no FP8;
`experts_*`: grouped products of experts; `vector`: norms, activations,
embeddings, rotary embeddings; `*_attention_fp8`: with cache entries of 8 bits; `tower_attention`:
of the patches of an image to one another; `sparse_*`: attention to entries that were chosen;
`compressed_*`: to a window and to entries of several tokens; `blocks_*`: to blocks of keys;
`index_*`, `block_index_*`: scores of entries and the choice among them; `gdn_*`, `kda_*`,
`mamba2_*`: recurrences over a state."""

DIFFERING = frozenset(
    name for name in KERNELS if name.startswith(_CHOSEN) or name.startswith(STATES)
)
"""Kernels that only models whose layers differ use."""

# if a kind has no figures, those of the next are used
_INSTEAD = {
    "fp8_block": "fp8",
    "int8": "fp8",
    "nvfp4": "fp8",
    "fp8": "bf16",
    "int4": "bf16",
    "mxfp4": "int4",
    "fp8_widened": "int4",
    "prefill_attention_fp8": "prefill_attention",
    "decode_attention_fp8": "decode_attention",
    "latent_prefill_attention": "prefill_attention",
    "latent_decode_attention": "decode_attention",
    "tower_attention": "prefill_attention",
    "kda_prefill": "gdn_prefill",
    "kda_decode": "gdn_decode",
    "mamba2_prefill": "gdn_prefill",
    "mamba2_decode": "gdn_decode",
    "gdn_prefill": "vector",
    "gdn_decode": "vector",
    "blocks_prefill_attention": "prefill_attention",
    "blocks_decode_attention": "decode_attention",
    "block_index_prefill_attention": "index_prefill_attention",
    "block_index_decode_attention": "index_decode_attention",
    "index_prefill_attention": "sparse_prefill_attention",
    "index_decode_attention": "sparse_decode_attention",
    "compressed_prefill_attention": "sparse_prefill_attention",
    "compressed_decode_attention": "sparse_decode_attention",
    "sparse_prefill_attention": "latent_prefill_attention",
    "sparse_decode_attention": "latent_decode_attention",
}
_INSTEAD |= {
    f"experts_{name}": f"experts_{_INSTEAD[name]}" for name in PRODUCTS if name in _INSTEAD
}
_INSTEAD["experts_bf16"] = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """Figures of one kind of kernels; by default no time is added to the shares of a phase.

    mfu, mbu: shares of the peaks, in (0, 1]; None: those of the phase (`prefill`, `decode`).
    floor: seconds of the shortest kernel.
    serial: seconds for each 1,000 steps that a block takes one after the other: inputs of a
        product that is not split along them, keys of a prompt's last token, new tokens of a prompt
        that go through a state, keys of a decode whose heads have no groups (of 128 values; of
        other heads in proportion), where the kernel splits contexts for groups alone.
    per_input: seconds for each million values put in, which are brought into another format
        first (activations of FP8 products).
    padding: rows more that a product computes for every expert that it reaches, and keys more
        that each token of a prompt attends to: kernels work in tiles.
    padding_from: rows of an expert with which it has half of that padding, where a kernel takes
        larger tiles for more rows; 0: any number of rows has all of it.
    filled: rows more that a product computes for every expert on the GPU, reached or not.
    per_pair: FLOPs per (query, key) pair and head beyond its two products (exponentials).
    beside_prompts: how many times as long decodes take in a step with prompts (>= 1), where one
        kernel computes both and does not split the contexts of decodes.
    """

    mfu: float | None = None
    mbu: float | None = None
    floor: Seconds = 0.0
    serial: Seconds = 0.0
    per_input: Seconds = 0.0
    padding: float = 0.0
    padding_from: float = 0.0
    filled: float = 0.0
    per_pair: float = 0.0
    beside_prompts: float = 1.0

    def __post_init__(self) -> None:
        for name in ("mfu", "mbu"):
            share = getattr(self, name)
            if share is not None and not 0 < share <= 1:
                raise ValueError(f"{name} must be in (0, 1], got {share}")
        for name in (
            "floor",
            "serial",
            "per_input",
            "padding",
            "padding_from",
            "filled",
            "per_pair",
        ):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be >= 0 and finite, got {value}")
        if not 1 <= self.beside_prompts < math.inf:
            raise ValueError(f"beside_prompts must be >= 1 and finite, got {self.beside_prompts}")


_PLAIN = Kernel()


def kernel_of(kernels: Mapping[str, Kernel], name: str) -> Kernel:
    """Return the figures of a kind of kernels, or those of the nearest kind that has some."""
    return kernels.get(figures_of(kernels, name), _PLAIN)


def figures_of(kernels: Mapping[str, Kernel], name: str) -> str:
    """Return the nearest kind of kernels with figures; empty if there is none."""
    while name not in kernels:
        if name not in _INSTEAD:
            return ""
        name = _INSTEAD[name]
    return name


FIGURES = tuple(item.name for item in fields(Kernel))

_EXPERTS = tuple(name for name in KERNELS if name.startswith("experts_"))
_PROMPTS = (*(name for name in KERNELS if "prefill_attention" in name), "tower_attention")
_DECODES = tuple(name for name in KERNELS if "decode_attention" in name)
_ONLY_OF = {
    "serial": (
        *(*PRODUCTS, *_EXPERTS, *_PROMPTS, *(f"{name}_prefill" for name in STATES)),
        "decode_attention",
    ),
    "per_input": (*PRODUCTS, *_EXPERTS),
    "padding": (*_EXPERTS, *_PROMPTS),
    "padding_from": _EXPERTS,
    "filled": _EXPERTS,
    "per_pair": _PROMPTS,
    "beside_prompts": _DECODES,
}


def check_figures(name: str, kernel: Kernel) -> None:
    """Raise ValueError for a figure without effect on kernels of a kind."""
    for figure, kinds in _ONLY_OF.items():
        value = getattr(kernel, figure)
        if name not in kinds and value != getattr(_PLAIN, figure):
            raise ValueError(
                f"kernels.{name}: {figure} must be left out, got {value:g}; it counts for "
                f"{', '.join(kinds)}"
            )
