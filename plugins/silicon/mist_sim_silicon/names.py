"""Names in NVIDIA's packages of our models, GPUs, splits and number formats."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Literal

from mist_sim.errors import ScenarioError
from mist_sim.hardware.cluster import Cluster
from mist_sim.models.quantization import LAYER_PARTS, UNQUANTIZED
from mist_sim.models.spec import ModelSpec

Package = Literal["aiconfigurator-core", "aisimulate"]
"""The packages that have the tables; aisimulate's are newer (vLLM 0.24 to 0.31)."""

Files = Mapping[str, Mapping[str, Any]]
"""A checkpoint's JSON files by name: `config.json`, and what modelopt keeps beside it."""

_CONFIGS: Mapping[Package, str] = {
    "aiconfigurator-core": "aiconfigurator_core.model_configs",
    "aisimulate": "aisimulate_core.model_configs",
}

_SYSTEMS = {
    "a100-80gb-sxm": "a100_sxm",
    "b200": "b200_sxm",
    "b300": "b300_sxm",
    "gb200": "gb200",
    "gb300": "gb300",
    "h100-sxm": "h100_sxm",
    "h200": "h200_sxm",
    "l40s": "l40s",
    "rtx-pro-6000": "rtx_pro_6000_server",
}

# Keys that do not affect the operators of a step.
_NOT_COMPARED = {
    "name",
    "max_position_embeddings",
    "tie_word_embeddings",
    "vector_params_per_layer",
    "vector_params_outside_layers",
    "tower_parameters",
    "unsized_towers",
    "num_nextn_predict_layers",
    "quantization",
    "kv_cache_dtype",
    "source",
}


def system(cluster: Cluster) -> str:
    """Return the name of a GPU's measurements. Raises ScenarioError with the known GPUs."""
    name = cluster.gpu.name
    if name not in _SYSTEMS:
        raise ScenarioError(
            f"silicon has no measurements of the GPU {name}. Known: {', '.join(_SYSTEMS)}"
        )
    return _SYSTEMS[name]


def files_of(model: ModelSpec, package: Package) -> Files:
    """Return the package's files of a model whose layers equal ours.

    Files in our number format are preferred to those in 16 bits. Without either, a dense model is
    timed as a Llama of its sizes. Raises ScenarioError, with the known models, for models of other
    kinds.
    """
    alike = _alike(model, package)
    return alike[1] if alike else {"config.json": _as_llama(model, package)}


def _alike(model: ModelSpec, package: Package) -> tuple[ModelSpec, Files] | None:
    found = [known for known in _known_models(package) if _layers(known[0]) == _layers(model)]
    for quantization in (model.quantization, None):
        for known in found:
            if known[0].quantization == quantization:
                return known
    return None


def _as_llama(model: ModelSpec, package: Package) -> Mapping[str, Any]:
    if model.moe or model.mla or model.sliding_window or model.layers or not model.gated_mlp:
        names = ", ".join(known.name for known, _ in _known_models(package))
        raise ScenarioError(
            f"silicon has no measurements for the layers of {model.name} in {package}: models with "
            f"experts, latent attention, states, windows or plain MLPs must be like one of {names}"
        )
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_key_value_heads,
        "head_dim": model.head_dim,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.max_position_embeddings,
    }


def split(model: ModelSpec, cluster: Cluster) -> dict[str, int]:
    """Return how a model is split over ranks."""
    ranks = cluster.tensor_parallel_size
    if model.moe and cluster.enable_expert_parallel:
        whole = {"moe_tp_size": 1, "moe_ep_size": cluster.expert_parallel_size}
        return {"tp_size": ranks, "attention_dp_size": cluster.data_parallel_size, **whole}
    return {"tp_size": ranks, "moe_tp_size": ranks, "moe_ep_size": 1}  # of dense models, too


def dtypes(model: ModelSpec, package: Package) -> dict[str, str]:
    """Return the number formats that differ from those of `files_of` the model.

    Raises ScenarioError for a model of which only some matrices are quantized.
    """
    formats = {}
    stored, alike = model.quantization, _alike(model, package)
    if stored and not (alike and stored == alike[0].quantization):
        if LAYER_PARTS - stored.parts:
            raise ScenarioError(
                f"silicon has no measurements for {model.name}, of which only "
                f"{', '.join(sorted(stored.parts))} is in {stored.name}"
            )
        # "sq" multiplies in int8 too, as vLLM does; "int4_wo" widens the weights
        names = {"fp8": "fp8", "int8": "sq", "int4": "int4_wo"}
        formats["gemm_quant_mode"] = names.get(stored.name, stored.name)
        if model.moe:
            formats["moe_quant_mode"] = formats["gemm_quant_mode"]
    if model.kv_cache_dtype in UNQUANTIZED:
        formats["kvcache_quant_mode"] = "bfloat16"
    elif model.kv_cache_dtype != "auto":
        formats["kvcache_quant_mode"] = model.kv_cache_dtype.split("_")[0]
    return formats


def _layers(model: ModelSpec) -> dict[str, Any]:
    return {
        item.name: getattr(model, item.name)
        for item in fields(ModelSpec)
        if item.name not in _NOT_COMPARED
    }


@cache
def _known_models(package: Package) -> Sequence[tuple[ModelSpec, Files]]:
    """Return the models whose configs are in the package, as far as we can simulate them."""
    return list(_read_models(package))


def _read_models(package: Package) -> Iterator[tuple[ModelSpec, Files]]:
    ends, beside = "_config.json", "_hf_quant_config.json"
    configs = {entry.name: entry for entry in files(_CONFIGS[package]).iterdir()}
    for file, entry in sorted(configs.items()):
        stem = file.removesuffix(ends)
        if file == stem or file.endswith(beside):
            continue  # not a config
        found = {"config.json": _read(entry)}
        if formats := configs.get(stem + beside):
            found["hf_quant_config.json"] = _read(formats)
        if package == "aiconfigurator-core" and (
            len(found) > 1 or "text_config" in found["config.json"]
        ):
            continue  # it would be timed with its tower for images, or in 16 bits
        name = stem.replace("--", "/")
        try:
            yield ModelSpec.from_config(_whole(found), name=name, source=name), found
        except ScenarioError:
            continue  # has layers that we do not simulate


def _read(entry: Traversable) -> Mapping[str, Any]:
    content: Mapping[str, Any] = json.loads(entry.read_text("utf-8"))
    return content


def _whole(found: Files) -> Mapping[str, Any]:
    """Return a config with the number formats from the file next to it."""
    config, beside = found["config.json"], found.get("hf_quant_config.json")
    if beside is None or config.get("quantization_config"):
        return config
    return {**config, "quantization_config": {"quant_method": "modelopt", **beside}}
