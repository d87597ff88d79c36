"""Reads the experts and the latent attention of a config.

Source of keys and rules: the configuration and modeling files of the `transformers` library for
each `model_type`, and DeepSeek's own for `deepseek_v3`.
"""

from __future__ import annotations

from mist_sim.errors import brief
from mist_sim.models.huggingface.config_reader import ConfigReader
from mist_sim.models.mixers import MlaSpec
from mist_sim.models.moe import MoeSpec

MOE_TYPES = (
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "gpt_oss",
    "minimax_m2",
    "deepseek_v2",
    "deepseek_v3",
    "glm4_moe",
    "glm4_moe_lite",
    "kimi_k2",
)
_MLA_TYPES = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "kimi_k2")
# Types whose routers have a bias unless `topk_method` says otherwise.
_BIASED = ("deepseek_v3", "glm4_moe", "glm4_moe_lite", "kimi_k2")
_NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


def read_moe(reader: ConfigReader, num_layers: int, hidden_size: int) -> MoeSpec | None:
    """Return the experts of a config, None for a dense model."""
    key = next((key for key in _NUM_EXPERTS if reader.config.get(key)), None)
    if key is None:
        return None
    model_type = reader.config.get("model_type")
    if model_type not in MOE_TYPES:
        reader.leave_out(
            f"{key} means a mixture of experts, which is not simulated yet for model_type "
            f"{brief(model_type)}. Known: {', '.join(MOE_TYPES)}",
            f"{key} (experts as one MLP)",
        )
        return None
    num_experts = reader.size(key)
    whole = model_type in {"mixtral", "gpt_oss", "minimax_m2"}  # no layer has an ordinary MLP
    size_key = "intermediate_size" if whole else "moe_intermediate_size"
    size = reader.size(size_key)
    shared = reader.count("n_shared_experts") * size
    vector_params = num_experts if _has_router_bias(reader) else 0
    if model_type == "minimax_m2":
        shared = reader.count("shared_intermediate_size")
    if model_type == "qwen2_moe":
        shared = reader.size("shared_expert_intermediate_size")
        vector_params += hidden_size  # shared_expert_gate
    biases = 0
    if model_type == "gpt_oss":  # of the router, and of both products of an expert
        vector_params += num_experts
        biases = 2 * size + hidden_size
    return MoeSpec(
        num_experts=num_experts,
        num_experts_per_token=reader.size("num_experts_per_tok"),
        intermediate_size=size,
        shared_intermediate_size=shared,
        dense_layers=_dense_layers(reader, num_layers),
        router_vector_params=vector_params,
        expert_vector_params=biases,
        experts_reached=_experts_reached(reader),
    )


def _experts_reached(reader: ConfigReader) -> tuple[tuple[int, float], ...]:
    """Return `experts_reached`, a key of mist-sim's: {"8": 41.5, "64": 110}, experts by tokens."""
    table = reader.table("experts_reached")
    points = []
    for tokens, experts in table.config.items() if table else ():
        number = isinstance(experts, int | float) and not isinstance(experts, bool)
        if not (tokens.isdecimal() and number):
            raise reader.error(
                f"experts_reached must give numbers of experts by numbers of tokens, got "
                f"{brief(tokens)}: {brief(experts)}"
            )
        points.append((int(tokens), float(str(experts))))
    return tuple(sorted(points))


def _has_router_bias(reader: ConfigReader) -> bool:
    """DeepSeek-V3 corrects each expert's score by a bias (`topk_method` "noaux_tc")."""
    if reader.config.get("model_type") == "minimax_m2":
        return reader.flag("use_routing_bias", True)
    by_default = "noaux_tc" if reader.config.get("model_type") in _BIASED else None
    return reader.config.get("topk_method", by_default) == "noaux_tc"


def _dense_layers(reader: ConfigReader, num_layers: int) -> frozenset[int]:
    """DeepSeek: the first ones and all but every n-th. Qwen: a list, and all but every n-th.

    GLM-4: the first one by default, or a list of kinds.
    """
    first = reader.count("first_k_dense_replace")
    if "glm4" in str(reader.config.get("model_type")):
        kinds = reader.items("mlp_layer_types")
        if kinds and len(kinds) < num_layers:
            raise reader.error(f"mlp_layer_types must have {num_layers} entries, got {len(kinds)}")
        if kinds:
            return frozenset(layer for layer in range(num_layers) if kinds[layer] == "dense")
        first = first if "first_k_dense_replace" in reader.config else 1
    frequency = reader.size("moe_layer_freq", default=1)
    step = reader.size("decoder_sparse_step", default=1)
    listed = reader.items("mlp_only_layers")
    return frozenset(
        layer
        for layer in range(num_layers)
        if layer < first or layer % frequency or (layer + 1) % step or layer in listed
    )


def read_mla(reader: ConfigReader) -> MlaSpec | None:
    """Return the latent attention of a config, None where each KV head is cached."""
    if not reader.config.get("kv_lora_rank"):
        return None
    model_type = reader.config.get("model_type")
    if model_type not in _MLA_TYPES:
        reader.leave_out(
            "kv_lora_rank means multi-head latent attention, which is not simulated yet for "
            f"model_type {brief(model_type)}. Known: {', '.join(_MLA_TYPES)}",
            "kv_lora_rank (latent attention as plain heads)",
        )
        return None
    if reader.flag("attention_bias", False):
        reader.leave_out(
            "attention_bias is not simulated with multi-head latent attention", "attention_bias"
        )
    return mla_of(reader, reader.size("qk_rope_head_dim"))


def mla_of(reader: ConfigReader, rope_head_dim: int | None = None) -> MlaSpec:
    """Return the sizes of latent attention. rope_head_dim: None: from the config, or 0."""
    rope = reader.count("qk_rope_head_dim") if rope_head_dim is None else rope_head_dim
    return MlaSpec(
        q_lora_rank=reader.count("q_lora_rank") or None,
        kv_lora_rank=reader.size("kv_lora_rank"),
        qk_nope_head_dim=reader.size("qk_nope_head_dim"),
        qk_rope_head_dim=rope,
        v_head_dim=reader.size("v_head_dim"),
    )
