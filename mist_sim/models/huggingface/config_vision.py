"""Reads the vision tower of a multimodal config.

The layout of the config tells the kind: configs of one tower name their `model_type` differently,
or not at all. Values missing from a `config.json` are the defaults of the publisher's image
processor.

Source: the configuration files and image processors of the `transformers` library and of vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mist_sim.models.huggingface.config_reader import ConfigReader
from mist_sim.models.huggingface.config_text import language_config
from mist_sim.models.vision import (
    FillBudget,
    FixedSize,
    InTiles,
    PaddedUp,
    Resizing,
    VisionTower,
    WithinLimits,
)

_COLOURS = 3
# Pixels of an image: `size` of Qwen3-VL's preprocessor_config.json, in squares of 32 x 32
_QWEN3_PIXELS = (65_536, 16_777_216)
# `in_patch_limit` and `patch_limit_on_one_side` of Kimi-K2.5's preprocessor_config.json
_KIMI_PATCHES = (16_384, 512)
_LLAMA4_TILES = 16  # `max_patches` of its preprocessor_config.json


def read_vision(config: Mapping[str, object], where: str) -> VisionTower | None:
    """Return the tower of a config; None: it has none, or one that is not simulated.

    Raises ScenarioError for a size that is missing or wrong.
    """
    whole = ConfigReader(config, where)
    vision = whole.table("vision_config")
    if vision is None:
        return None
    hidden = _text_size(whole)
    for keys, read in _KINDS.items():
        if hidden and all(vision.config.get(key) is not None for key in keys):
            return read(vision, hidden)
    return None


def _text_size(whole: ConfigReader) -> int:
    text = language_config(whole.config)
    return whole.part(text, whole.where).count("hidden_size")


def _qwen3(vision: ConfigReader, hidden: int) -> VisionTower:
    """Read Qwen3-VL's and Qwen3.5's; each deepstack layer has its own merger."""
    size, patch = vision.size("hidden_size"), vision.size("patch_size")
    merge, frames = vision.size("spatial_merge_size"), vision.size("temporal_patch_size")
    wide, square = size * merge**2, (patch * merge) ** 2
    mergers = 1 + len(vision.items("deepstack_visual_indexes"))
    fewest, most = _QWEN3_PIXELS
    return _tower(
        vision,
        size,
        layers=vision.size("depth"),
        heads=vision.size("num_heads"),
        merge=merge,
        frames=frames,
        positions=vision.size("num_position_embeddings"),
        products=((wide, wide), (wide, vision.size("out_hidden_size"))) * mergers,
        resizing=WithinLimits(fewest // square, most // square),
    )


def _kimi(vision: ConfigReader, hidden: int) -> VisionTower:
    """Read MoonViT of Kimi-K2.5 and K3."""
    size, heads = vision.size("vt_hidden_size"), vision.size("vt_num_attention_heads")
    merge, wide = 2, 4 * size  # merge_kernel_size [2, 2]
    inner = vision.size("qkv_hidden_size", default=size)
    height, width = vision.size("init_pos_emb_height"), vision.size("init_pos_emb_width")
    return VisionTower(
        num_layers=vision.size("vt_num_hidden_layers"),
        hidden_size=size,
        intermediate_size=vision.size("vt_intermediate_size"),
        num_heads=heads,
        head_dim=inner // heads,
        patch_size=vision.size("patch_size"),
        patch_values=_COLOURS * vision.size("patch_size") ** 2,
        merge=merge,
        positions=height * width,
        products=((wide, wide), (wide, hidden)),
        resizing=PaddedUp(*_KIMI_PATCHES, vision.size("patch_size")),
    )


def _llama4(vision: ConfigReader, hidden: int) -> VisionTower:
    """Read Llama 4's, over tiles; squares of patches go through a small MLP and a projector."""
    size, patch, image = (vision.size(f"{key}_size") for key in ("hidden", "patch", "image"))
    merge = 2  # pixel_shuffle_ratio 0.5
    inner, out = vision.size("projector_input_dim"), vision.size("projector_output_dim")
    return _tower(
        vision,
        size,
        layers=vision.size("num_hidden_layers"),
        heads=vision.size("num_attention_heads"),
        merge=merge,
        positions=(image // patch) ** 2 + 1,
        products=((size * merge**2, inner), (inner, out), (out, hidden)),
        resizing=InTiles(image, _LLAMA4_TILES),
    )


def _gemma4(vision: ConfigReader, hidden: int) -> VisionTower:
    """Read Gemma 4's, whose squares are means; its MLPs are gated."""
    size = vision.size("hidden_size")
    return _tower(
        vision,
        size,
        layers=vision.size("num_hidden_layers"),
        heads=vision.size("num_attention_heads"),
        merge=vision.size("pooling_kernel_size"),
        positions=2 * vision.size("position_embedding_size"),  # rows and columns
        products=((size, hidden),),
        resizing=FillBudget(vision.size("default_output_length")),
        gated=True,
    )


def _gemma3(vision: ConfigReader, hidden: int) -> VisionTower:
    """Read SigLIP of Gemma 3: every image has 896 x 896 pixels, and becomes 256 tokens."""
    size, patch, image = (vision.size(f"{key}_size") for key in ("hidden", "patch", "image"))
    merge = 4  # image_size / patch_size / sqrt(mm_tokens_per_image), 256 by default
    side = image // patch
    return _tower(
        vision,
        size,
        layers=vision.size("num_hidden_layers"),
        heads=vision.size("num_attention_heads"),
        merge=merge,
        positions=side**2,
        products=((size, hidden),),
        resizing=FixedSize((side // merge) ** 2),
    )


def _tower(
    vision: ConfigReader,
    size: int,
    *,
    layers: int,
    heads: int,
    merge: int,
    positions: int,
    products: tuple[tuple[int, int], ...],
    resizing: Resizing,
    frames: int = 1,
    gated: bool = False,
) -> VisionTower:
    patch = vision.size("patch_size")
    return VisionTower(
        num_layers=layers,
        hidden_size=size,
        intermediate_size=vision.size("intermediate_size"),
        num_heads=heads,
        head_dim=vision.size("head_dim", default=size // heads),
        patch_size=patch,
        patch_values=_COLOURS * frames * patch**2,
        merge=merge,
        products=products,
        resizing=resizing,
        positions=positions,
        gated_mlp=gated,
    )


_KINDS: Mapping[tuple[str, ...], Callable[[ConfigReader, int], VisionTower]] = {
    ("deepstack_visual_indexes", "spatial_merge_size"): _qwen3,
    ("vt_hidden_size", "merge_kernel_size"): _kimi,
    ("pixel_shuffle_ratio", "projector_input_dim"): _llama4,
    ("pooling_kernel_size", "default_output_length"): _gemma4,
    ("vision_use_head", "image_size"): _gemma3,
}
"""What reads a tower, by keys that its config alone has."""
