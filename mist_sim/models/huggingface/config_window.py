"""Reads which layers of a config attend to a sliding window only.

Source of keys and defaults: the configuration files of the `transformers` library. `layer_types`
says it layer by layer; older configs have a rule for each `model_type`.
"""

from __future__ import annotations

from mist_sim.models.huggingface.config_reader import ConfigReader

_OFF_BY_DEFAULT = {"qwen2", "qwen3", "qwen2_moe", "qwen3_moe"}
_KINDS = {"full_attention": False, "sliding_attention": True}
_NAMES = tuple(_KINDS)
# Every n-th layer has full attention, all other layers a window.
_PATTERN = {"gemma2": 2, "gemma3_text": 6, "gpt_oss": 2}


def read_window(
    reader: ConfigReader, num_layers: int, max_context: int
) -> tuple[int | None, frozenset[int]]:
    """Return the window in tokens and its layers; (None, empty) without a window.

    Qwen models set a window and switch it off; a window as long as the context counts as none.
    """
    layers = _window_layers(reader, num_layers)
    if not layers:
        return None, frozenset()
    window = reader.size("sliding_window")
    return (None, frozenset()) if window >= max_context else (window, layers)


def _window_layers(reader: ConfigReader, num_layers: int) -> frozenset[int]:
    config = reader.config
    model_type = config.get("model_type")
    named = config.get("sliding_window") is not None
    if not reader.flag("use_sliding_window", named and model_type not in _OFF_BY_DEFAULT):
        return frozenset()
    kinds = reader.items("layer_types")
    if kinds:
        return _listed(reader, kinds, num_layers)
    if model_type in _OFF_BY_DEFAULT:
        return frozenset(range(reader.size("max_window_layers", default=28), num_layers))
    pattern = _PATTERN.get(str(model_type), 0)
    keys = ("sliding_window_pattern", "_sliding_window_pattern")
    every = reader.size(*keys, default=pattern or num_layers + 1)
    return frozenset(layer for layer in range(num_layers) if (layer + 1) % every)


def _listed(reader: ConfigReader, kinds: list[object], num_layers: int) -> frozenset[int]:
    if len(kinds) != num_layers:
        raise reader.error(f"layer_types must have {num_layers} entries, got {len(kinds)}")
    return frozenset(
        layer
        for layer, kind in enumerate(kinds)
        if _KINDS[str(kind if kind in _KINDS else reader.known_kind("layer_types", kind, _NAMES))]
    )


def check_layer_types(reader: ConfigReader) -> None:
    """Raise ScenarioError for layers that are neither full nor sliding attention."""
    for kind in reader.items("layer_types"):
        if kind not in _KINDS:
            reader.known_kind("layer_types", kind, _NAMES)
