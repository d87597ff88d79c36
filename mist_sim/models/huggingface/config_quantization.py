"""Reads `quantization_config`: FP8, GPTQ, AWQ, MXFP4, compressed-tensors, modelopt checkpoints.

Source of keys: the quantization documents of the `transformers` library, and vLLM's readers in
`model_executor/layers/quantization`. Scales of a whole tensor or channel are left out (less than
0.1 % of the weights); those of a block or a group are counted.

Formats of the matrices of a model with layers of different kinds, part by part.

A checkpoint may store attention in FP8, experts in NVFP4 and a few layers plain. A part that is
stored in several formats is taken in the commonest one, with the mean of the bytes: bytes are exact
where its matrices have equal sizes, times lie between.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mist_sim.errors import ScenarioError, brief
from mist_sim.models.huggingface.config_exceptions import (
    PATIENCE,
    patterns,
    plain_name,
    plain_parts,
    search,
)
from mist_sim.models.huggingface.config_reader import ConfigReader
from mist_sim.models.layers import Layers
from mist_sim.models.mixers import CompressedMixer, LatentMixer, LinearMixer, Mixer, MlaSpec
from mist_sim.models.moe import MoeSpec
from mist_sim.models.quantization import LAYER_PARTS, QUANTIZATIONS, Part, Quantization

_METHODS = ("fp8", "gptq", "awq", "compressed-tensors", "mxfp4", "modelopt")
_SCALE_BYTES = 2  # 16-bit scales of groups; blocks of FP8 have 32-bit ones (DeepSeek-V3, §3.3)
_BLOCK_SCALE_BYTES = 4
# OCP Microscaling Formats v1.0: blocks of 32 values of 4 bits share a scale of 8 bits. vLLM's
# `Mxfp4Config` applies it to routed experts only; kernels widen to 16 bits before they multiply
# (Triton and Marlin on Hopper).
MXFP4 = Quantization(
    name="mxfp4", bytes_per_param=0.5 + 1 / 32, parts=frozenset({"routed_experts"})
)
_NVFP4, _FP8 = QUANTIZATIONS["nvfp4"], QUANTIZATIONS["fp8"]
# `quant_algo` of NVIDIA's Model Optimizer, as vLLM's `modelopt.py` reads it.
_MODELOPT: Mapping[str, Quantization] = {
    "FP8": replace(_FP8, static_inputs=True),
    "FP8_PER_CHANNEL_PER_TOKEN": _FP8,
    "NVFP4": _NVFP4,
    "W4A16_NVFP4": replace(_NVFP4, compute="bf16"),
    # 32 values share a scale of 8 bits (OCP Microscaling Formats v1.0)
    "MXFP8": replace(_FP8, bytes_per_param=1 + 1 / 32),
}
_MIXED = "MIXED_PRECISION"  # `quantized_layers` gives the format of each module


def read_quantization(
    reader: ConfigReader, num_layers: int, moe: MoeSpec | None, mla: MlaSpec | None
) -> tuple[Quantization | None, str]:
    """Return how a checkpoint stores its matrices (None: in 16 bits) and its KV cache."""
    table = reader.table("quantization_config")
    if table is None:
        return None, "auto"
    quantization, kv_cache_dtype = stored_format(reader, table)
    table = table.table("quantization") or table  # as in hf_quant_config.json
    if quantization is None:  # it names the format of every module
        raise _unknown_algorithm(table)
    if quantization is MXFP4:
        return quantization, kv_cache_dtype
    parts = quantization.parts - plain_parts(table, num_layers, moe, mla)
    return replace(quantization, parts=parts) if parts else None, kv_cache_dtype


def stored_format(reader: ConfigReader, table: ConfigReader) -> tuple[Quantization | None, str]:
    """Return a `quantization_config`'s format of unnamed matrices, and of the cache.

    No format if it names every quantized matrix (`is_mixed`).
    """
    method = table.config.get("quant_method")
    if method is None and "quant_algo" in table.config:
        method = "modelopt"
    if method not in (*_METHODS, "modelopt_fp4"):
        raise reader.error(
            f"quantization_config means quantized weights; quant_method {brief(method)} is not "
            f"simulated yet. Known: {', '.join(_METHODS)}"
        )
    if method == "mxfp4":
        return MXFP4, "auto"
    if "modelopt" in str(method):
        table = table.table("quantization") or table
        default = None
        if not is_mixed(table):
            is_fp8 = str(table.config.get("quant_algo")).startswith("FP8")  # not MXFP8
            default = replace(algorithm_format(table), by_modelopt=is_fp8)
        return default, _modelopt_kv_cache(table)
    if method == "compressed-tensors":
        return _compressed_tensors(table), _kv_cache_dtype(table)
    if method == "fp8":
        return _fp8(table), "auto"
    return _groups(table, method == "awq"), "auto"


def is_mixed(table: ConfigReader) -> bool:
    """Whether a `quantization_config` names every module that has a format."""
    return table.config.get("quant_algo") == _MIXED


def algorithm_format(table: ConfigReader) -> Quantization:
    """Return the format of a `quant_algo` of NVIDIA's Model Optimizer."""
    algorithm = table.config.get("quant_algo")
    if str(algorithm) not in _MODELOPT:
        raise _unknown_algorithm(table)
    return _MODELOPT[str(algorithm)]


def _unknown_algorithm(table: ConfigReader) -> ScenarioError:
    algorithm = table.config.get("quant_algo")
    return table.error(
        f"quant_algo {brief(algorithm)} is not simulated yet. Known: {', '.join(_MODELOPT)}"
    )


def _modelopt_kv_cache(table: ConfigReader) -> str:
    """Read `kv_cache_scheme`, a table or a name, or the older `kv_cache_quant_algo`."""
    if isinstance(table.config.get("kv_cache_scheme"), dict):
        return _kv_cache_dtype(table)
    name = table.config.get("kv_cache_scheme") or table.config.get("kv_cache_quant_algo")
    if name not in (None, "FP8"):
        raise table.error(f"kv_cache_quant_algo must be FP8 or absent, got {brief(name)}")
    return "fp8" if name else "auto"


def _fp8(table: ConfigReader) -> Quantization:
    if not table.items("weight_block_size"):
        return replace(_FP8, static_inputs=table.config.get("activation_scheme") == "static")
    return _in_blocks(table, "weight_block_size")


def _in_blocks(table: ConfigReader, key: str) -> Quantization:
    """Return FP8 with a scale for each block of a matrix."""
    block = table.items(key)
    if len(block) != 2 or not all(isinstance(side, int) and 0 < side < 2**20 for side in block):
        raise table.error(f"{key} must be two integers > 0, got {block}")
    rows, columns = (side for side in block if isinstance(side, int))
    size = 1 + _BLOCK_SCALE_BYTES / (rows * columns)
    return replace(_FP8, bytes_per_param=size, block=(rows, columns))


def _groups(table: ConfigReader, zero_point: bool) -> Quantization:
    """GPTQ and AWQ: integers of few bits; a scale, and perhaps a zero point, for each group.

    vLLM drops the zero points of a symmetric GPTQ checkpoint when it repacks for Marlin.
    """
    zeros = table.flag("zero_point", True) if zero_point else not table.flag("sym", True)
    quantization = _integers(
        table,
        bits=table.size("bits", "w_bit"),
        group_size=_group_size(table, "group_size", "q_group_size"),
        zeros=zeros,
    )
    if table.flag("lm_head", False):
        quantization = replace(quantization, parts=quantization.parts | {"lm_head"})
    return quantization


def _compressed_tensors(table: ConfigReader) -> Quantization:
    sparsity = table.table("sparsity_config")
    if sparsity and sparsity.config.get("format", "dense") != "dense":
        raise table.error("sparsity_config means sparse weights, which are not simulated yet")
    groups = table.table("config_groups")
    group = groups.table(next(iter(groups.config))) if groups else None
    weights = group.table("weights") if group else None
    if groups is None or len(groups.config) != 1 or group is None or weights is None:
        raise table.error("config_groups must hold one group with weights")
    if group.config.get("targets") not in (["Linear"], None):
        raise group.error(f"targets other than Linear are not simulated yet: {group.config}")
    kind, bits = weights.config.get("type", "int"), weights.size("num_bits")
    inputs = group.table("input_activations")
    if kind == "float" and bits == 8:
        if inputs is None:
            return replace(_FP8, compute="bf16")
        if weights.config.get("strategy") == "block":
            return _in_blocks(weights, "block_structure")
        return replace(_FP8, static_inputs=not inputs.flag("dynamic", False))
    size = _group_size(weights, "group_size")
    if kind == "float" and bits == 4 and size == 16:
        return _NVFP4 if inputs else replace(_NVFP4, compute="bf16")
    if kind == "float" and bits == 4 and size == 32 and not inputs:
        return replace(MXFP4, parts=LAYER_PARTS)
    if kind != "int":
        raise weights.error(f"type {brief(kind)} of {bits} bits is not simulated yet")
    return _integers(
        weights,
        bits=bits,
        group_size=_group_size(weights, "group_size"),
        zeros=not weights.flag("symmetric", True),
        compute="int8" if bits == 8 and inputs else "bf16",
    )


def _group_size(table: ConfigReader, *keys: str) -> int | None:
    """Weights that share a scale; None (written -1 or absent) shares it over a whole channel."""
    given = [table.config.get(key) for key in keys]
    return None if all(size in (None, -1) for size in given) else table.size(*keys)


def _integers(
    table: ConfigReader,
    *,
    bits: int,
    group_size: int | None,
    zeros: bool,
    compute: str = "bf16",
) -> Quantization:
    if bits not in (4, 8):
        raise table.error(f"bits must be 4 or 8, got {bits}")
    group_bytes = _SCALE_BYTES + (bits / 8 if zeros else 0)
    size = bits / 8 + (group_bytes / group_size if group_size else 0)
    block = (1, group_size) if group_size else None
    return Quantization(name=f"int{bits}", bytes_per_param=size, compute=compute, block=block)


def _kv_cache_dtype(table: ConfigReader) -> str:
    scheme = table.table("kv_cache_scheme")
    if scheme is None:
        return "auto"
    if scheme.size("num_bits") != 8:
        raise scheme.error(f"num_bits must be 8, got {scheme.config['num_bits']}")
    return "int8" if scheme.config.get("type") == "int" else "fp8"


_TO_LAYERS = re.compile(r"^(?:(?:model|language_model|backbone)\.)+(?=layers\.)")
_FP4_EXPERTS = "fp4"  # `expert_dtype` of DeepSeek-V4: MXFP4


@dataclass(frozen=True, slots=True)
class Names:
    """A checkpoint's names of the blocks of a layer."""

    mixer: str = "self_attn"
    linear: str = "self_attn"
    mlp: str = "mlp"
    experts: str = "mlp.experts"
    shared: str = "mlp.shared_experts"


def read_formats(reader: ConfigReader, layers: Layers, names: Names) -> dict[str, Any]:
    """Return the fields of a model that say how its matrices and its cache are stored."""
    table = reader.table("quantization_config")
    if table is None:
        return {}
    default, kv_cache_dtype = stored_format(reader, table)
    table = table.table("quantization") or table
    found = _formats(reader, table, default, layers, names)
    quantizations: list[Quantization] = []
    for part, quantization in found.items():
        if quantization is None:
            continue
        at = next((n for n, each in enumerate(quantizations) if _alike(each, quantization)), None)
        if at is None:
            quantizations.append(replace(quantization, parts=frozenset({part})))
        else:
            each = quantizations[at]
            quantizations[at] = replace(each, parts=each.parts | {part})
    quantizations.sort(key=lambda each: "routed_experts" not in each.parts)
    return {
        "quantization": quantizations[0] if quantizations else None,
        "more_quantizations": tuple(quantizations[1:]),
        "kv_cache_dtype": kv_cache_dtype,
    }


def _alike(one: Quantization, other: Quantization) -> bool:
    return replace(one, parts=other.parts) == other


def _formats(
    reader: ConfigReader,
    table: ConfigReader,
    default: Quantization | None,
    layers: Layers,
    names: Names,
) -> dict[Part, Quantization | None]:
    matrices = _matrix_names(layers, names)
    said = _named_formats(table)
    below = {prefix: form for name, form in said.items() for prefix in _prefixes(name)}
    plain = set() if is_mixed(table) else _plain(table, matrices)
    found: dict[Part, Quantization | None] = {}
    for part, all_names in matrices.items():
        forms = [
            None if name in plain else _form_of(name, said, below, default) for name in all_names
        ]
        found[part] = _mean(forms)
    if "lm_head" in said:
        found["lm_head"] = said["lm_head"]
    experts = reader.config.get("expert_dtype") or table.config.get("expert_dtype")
    if experts == _FP4_EXPERTS and not said:
        found["routed_experts"] = MXFP4
    return found


def _form_of(
    name: str,
    said: Mapping[str, Quantization],
    below: Mapping[str, Quantization],
    default: Quantization | None,
) -> Quantization | None:
    """Return the format of a matrix: its own, that of a block above it, or that of a part of it."""
    for above in reversed(list(_prefixes(name))):
        if above in said:
            return said[above]
    return below.get(name, default)


def _prefixes(name: str) -> Iterator[str]:
    pieces = name.split(".")
    for number in range(1, len(pieces) + 1):
        yield ".".join(pieces[:number])


def _named_formats(table: ConfigReader) -> dict[str, Quantization]:
    """Return the formats of `quantized_layers`, by the names of modules from "layers" on."""
    listed = table.table("quantized_layers")
    if listed is None:
        return {}
    found = {}
    for name in listed.config:
        each = listed.table(name)
        if each is not None:
            found[_from_layers(name)] = algorithm_format(each)
    return found


def _plain(table: ConfigReader, matrices: Mapping[Part, list[str]]) -> set[str]:
    """Return the matrices that a checkpoint leaves in 16 bits.

    Names of modules that are no matrix of a layer here (convolutions, norms, other towers) are
    passed over: they are in 16 bits anyway.
    """
    names = [name for all_names in matrices.values() for name in all_names]
    named, hits = set(), set()
    deadline = time.process_time() + PATIENCE
    for key, pattern in patterns(table):
        name = _from_layers(plain_name(pattern))
        if re.fullmatch(r"[\w.]+", name):
            named.add(name)
        else:
            hits |= set(search(table, key, _from_layers(pattern), names, deadline))
    hits |= {name for name in names if any(above in named for above in _prefixes(name))}
    return hits


def _from_layers(name: str) -> str:
    """Return a name from "layers" on, in one of the spellings that publishers have."""
    name = re.sub(r"\bshared_expert\b", "shared_experts", name.replace("block_sparse_moe", "mlp"))
    return _TO_LAYERS.sub("", name)


def _mean(forms: list[Quantization | None]) -> Quantization | None:
    counted = Counter(forms)
    if len(counted) == 1:
        return forms[0]
    commonest = max((each for each in counted if each), key=lambda each: counted[each])
    size = sum(number * (each.bytes_per_param if each else 2) for each, number in counted.items())
    return replace(commonest, bytes_per_param=size / len(forms))


def _matrix_names(layers: Layers, names: Names) -> dict[Part, list[str]]:
    """Return the names of the matrices by part, one expert standing for all."""
    found: dict[Part, list[str]] = {}

    def add(part: Part, number: int, block: str, leaves: list[str]) -> None:
        all_names = (_from_layers(f"layers.{number}.{block}.{leaf}") for leaf in leaves)
        found.setdefault(part, []).extend(all_names)

    for number, layer in enumerate(layers):
        if layer.mixer is not None:
            is_linear = isinstance(layer.mixer, LinearMixer)
            inputs, output = _leaves(layer.mixer)
            block = names.linear if is_linear else names.mixer
            add("linear_attention" if is_linear else "attention", number, block, inputs)
            add("linear_output" if is_linear else "attention_output", number, block, [output])
        if layer.mlp_size:
            add("mlp", number, names.mlp, ["up_proj", "down_proj"])
        if layer.has_experts:
            add("routed_experts", number, names.experts, ["0"])
            add("shared_experts", number, names.shared, ["up_proj", "down_proj"])
    return found


def _leaves(mixer: Mixer) -> tuple[list[str], str]:
    """Return the names of a mixer's matrices before and behind it."""
    if isinstance(mixer, CompressedMixer):
        return ["wq_a", "wq_b", "wkv"], "wo_b"
    if isinstance(mixer, LatentMixer):
        query = ["q_a_proj", "q_b_proj"] if mixer.mla.q_lora_rank else ["q_proj"]
        return [*query, "kv_a_proj_with_mqa", "kv_b_proj"], "o_proj"
    if isinstance(mixer, LinearMixer) and mixer.kind == "gdn":
        return ["in_proj_qkv", "in_proj_z"], "out_proj"
    if isinstance(mixer, LinearMixer) and mixer.kind == "mamba2":
        return ["in_proj"], "out_proj"
    return ["q_proj", "k_proj", "v_proj"], "o_proj"
