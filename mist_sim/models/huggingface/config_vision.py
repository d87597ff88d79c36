"""Reads the vision tower of a multimodal config.

The layout of the config tells the kind: configs of one tower name their `model_type` differently,
or not at all. Values missing from a `config.json` are the defaults of the publisher's image
processor.

Source: the configuration files and image processors of the `transformers` library and of vLLM.

Counts the parameters of towers of images and sound that `config_vision` does not read.

An engine loads them with the language model. Source of the keys: the configuration files of the
`transformers` library, and the config.json of InternVL, DeepSeek-VL2 and VILA.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mist_sim.bounds import MODEL_SIZE
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

_TOWERS = ("vision_config", "visual", "vision_tower_cfg", "audio_config")
_IMAGES = frozenset(_TOWERS[:3])
_HIDDEN = ("embed_dim", "d_model", "width", "hidden_size")  # Qwen2-VL's hidden_size is the output's
_LAYERS = ("num_hidden_layers", "depth", "encoder_layers", "layers", "num_layers")
_INNER = ("intermediate_size", "encoder_ffn_dim", "ffn_dim")
_GATED = frozenset({"pixtral", "qwen2_5_vl", "qwen2_5_omni_vision_encoder"})
_COLOURS = 3


def count_towers(
    config: Mapping[str, object], hidden_size: int, *, has_vision: bool
) -> tuple[int, tuple[str, ...]]:
    """Return the parameters of the towers of a config, and the keys of those without sizes.

    hidden_size: of the language model. has_vision: `config_vision` reads its tower of images.
    """
    total, unsized = 0, []
    thinker = config.get("thinker_config")  # Qwen-Omni
    for whole in (config, thinker if isinstance(thinker, Mapping) else {}):
        for key in _TOWERS:
            tower = whole.get(key)
            if not tower or (has_vision and key in _IMAGES):
                continue
            found = _parameters(tower, whole, hidden_size) if isinstance(tower, Mapping) else 0
            total += found
            unsized += [] if found else [key]
    return total, tuple(unsized)


_KV_HEADS = "num_key_value_heads"


def _parameters(tower: Mapping[str, object], whole: Mapping[str, object], text: int) -> int:
    """Return the parameters of a tower and its projector; 0: the config does not give its sizes.

    The projector is an MLP of two matrices, as most are.
    """
    hidden, layers, inner = (_size(tower, *keys) for keys in (_HIDDEN, _LAYERS, _INNER))
    ratio = tower.get("mlp_ratio")
    if not inner and isinstance(ratio, int | float) and 0 < ratio < MODEL_SIZE:
        inner = int(hidden * ratio)
    if not (hidden and layers and inner):
        return 0
    gated = tower.get("model_type") in _GATED or tower.get("hidden_act") == "silu"
    layers += _size(tower, "num_global_layers")  # Mllama
    heads, kv_heads = _size(tower, "num_heads", "num_attention_heads"), _size(tower, _KV_HEADS)
    keys = hidden * kv_heads // heads if 0 < kv_heads < heads else hidden
    per_layer = 2 * hidden * (hidden + keys) + (3 if gated else 2) * hidden * inner
    patch, frames = _size(tower, "patch_size"), _size(tower, "temporal_patch_size") or 1
    positions = (_size(tower, "image_size") // patch) ** 2 if patch else 0
    inputs = hidden * (_COLOURS * frames * patch**2 + positions)
    merged = hidden * _merged(tower, whole)
    return layers * per_layer + inputs + merged * text + text**2


def _merged(tower: Mapping[str, object], whole: Mapping[str, object]) -> int:
    """Return the patches that become one token, as far as a config says."""
    ratio = whole.get("downsample_ratio")  # InternVL
    if isinstance(ratio, float) and 0.01 < ratio < 1:
        return round(1 / ratio) ** 2
    return (_size(tower, "spatial_merge_size") or _size(whole, "spatial_merge_size") or 1) ** 2


def _size(config: Mapping[str, object], *keys: str) -> int:
    sizes = (config.get(key) for key in keys)
    return next((n for n in sizes if type(n) is int and 0 < n <= MODEL_SIZE), 0)


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
