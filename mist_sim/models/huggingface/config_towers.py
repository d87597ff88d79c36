"""Counts the parameters of towers of images and sound that `config_vision` does not read.

An engine loads them with the language model. Source of the keys: the configuration files of the
`transformers` library, and the config.json of InternVL, DeepSeek-VL2 and VILA.
"""

from __future__ import annotations

from collections.abc import Mapping

from mist_sim.bounds import MODEL_SIZE

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
    per_layer = 4 * hidden**2 + (3 if gated else 2) * hidden * inner
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
    """Return the first of some keys that is a size; 0 without any."""
    sizes = (config.get(key) for key in keys)
    return next((n for n in sizes if type(n) is int and 0 < n <= MODEL_SIZE), 0)
