"""Readers of models with layers of different kinds, a module per family of configs.

Source of keys and rules: the configuration and modeling files of the publishers, of the
`transformers` library and of vLLM for each `model_type`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mist_sim.models.huggingface.config_reader import ConfigReader
from mist_sim.models.huggingface.families.base import Fields
from mist_sim.models.huggingface.families.blocks import minimax_m3, nemotron_nas
from mist_sim.models.huggingface.families.delta import kimi_linear, qwen_next
from mist_sim.models.huggingface.families.mamba import nemotron_h
from mist_sim.models.huggingface.families.sparse import deepseek_sparse, deepseek_v4, glm5_next
from mist_sim.models.huggingface.families.windows import (
    gemma4,
    llama4,
    mimo_v2,
    muse_glimmer,
    step3,
)

FAMILIES: Mapping[str, Callable[[ConfigReader], Fields]] = {
    "deepseek_ref": deepseek_v4,
    "deepseek_v32": deepseek_sparse,
    "deepseek_v4": deepseek_v4,
    "gemma4_text": gemma4,
    "glm5_next_text": glm5_next,
    "glm_moe_dsa": deepseek_sparse,
    "kimi_linear": kimi_linear,
    "llama4_text": llama4,
    "mimo_v2_flash": mimo_v2,
    "minimax_m3": minimax_m3,
    "muse_glimmer_text": muse_glimmer,
    "nemotron-nas": nemotron_nas,
    "nemotron_h": nemotron_h,
    "qwen3_5_moe_text": qwen_next,
    "qwen3_5_text": qwen_next,
    "qwen3_next": qwen_next,
    "step3p5": step3,
    "step3p7": step3,
}
"""What reads a config, by the `model_type` of its language model."""

__all__ = ["FAMILIES", "Fields"]
