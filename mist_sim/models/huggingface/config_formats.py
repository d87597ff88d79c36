"""Formats of the matrices of a model with layers of different kinds, part by part.

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

from mist_sim.models.huggingface.config_exceptions import PATIENCE, patterns, plain_name, search
from mist_sim.models.huggingface.config_quantization import (
    MXFP4,
    algorithm_format,
    is_mixed,
    stored_format,
)
from mist_sim.models.huggingface.config_reader import ConfigReader
from mist_sim.models.layers import Layers
from mist_sim.models.mixers import CompressedMixer, LatentMixer, LinearMixer, Mixer
from mist_sim.models.quantization import Part, Quantization

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
    """Return the format of each part, the output head's where it is named."""
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
    """Yield the modules that a name lies in, and the name itself."""
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
