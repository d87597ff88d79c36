"""Names of checkpoints: a model of the catalog, and how its weights are stored, by rule.

Publishers name quantized checkpoints after the model: `Qwen3-32B-FP8`, `Qwen2.5-72B-Instruct-AWQ`,
`Llama-3.3-70B-Instruct-FP4`, `Meta-Llama-3.1-8B-Instruct-quantized.w8a8`. A path that does not
exist on this machine is a folder on the server, usually named after the model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from mist_sim.errors import MistError
from mist_sim.models.model_loading import load_model, model_names, names_of
from mist_sim.models.quantization import WeightDtype

_IN_A_CACHE = re.compile(r"models--(.+?)--([^/]+)(?:/snapshots/[^/]+)?")

# Suffixes, and the format of `QUANTIZATIONS` that they mean. GPTQ of 8 bits, GGUF and bitsandbytes
# are none of them.
_NAMES: tuple[tuple[str, WeightDtype], ...] = (
    (r"(?:w8a8[-_])?fp8[-_]block(?:[-_]v\d)?", "fp8_block"),
    (r"(?:quantized[.-])?(?:w8a8[-_])?fp8(?:[-_](?:dynamic|static|kv|tensor|v\d))*", "fp8"),
    (r"(?:nv)?fp4(?:[-_](?:dynamic|v\d))*", "nvfp4"),
    (r"awq(?:[-_](?:int4|4bit|marlin|g128))*", "int4"),
    (r"gptq(?:[-_]marlin)?[-_](?:int4|4bit)(?:[-_]g?\d+g?)?", "int4"),
    (r"(?:quantized\.)?w4a16(?:[-_]g128)?", "int4"),
    (r"int4(?:[-_](?:awq|gptq|w4a16))?", "int4"),
    (r"(?:quantized\.)?w8a8(?:[-_]int8)?", "int8"),
    (r"int8(?:[-_]w8a8)?", "int8"),
)
_SUFFIXES = tuple(
    (re.compile(rf"[-_.]{pattern}$", re.IGNORECASE), dtype) for pattern, dtype in _NAMES
)
_NVIDIA = "nvidia/"
_QWEN = "qwen/"  # whose FP8 checkpoints have weight_block_size [128, 128], as the catalog's do


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint.

    model: what a scenario calls it. quantization: how it stores weights, if the catalog does not
    say. kv_cache_dtype: the same for the cache. why: the assumptions; empty if the catalog or a
    file settles everything.
    """

    model: str
    quantization: WeightDtype | None = None
    kv_cache_dtype: str | None = None
    why: str = ""


def checkpoint_of(name: str) -> Checkpoint | None:
    """Return the checkpoint of a name or path; None if no rule matches."""
    if _is_known(name):
        return Checkpoint(name)
    cached = _IN_A_CACHE.search(name)
    base = cached[2] if cached else name.rstrip("/").rpartition("/")[2]
    model = _of_the_catalog(base)
    if model is not None:
        return Checkpoint(model, why=f"by its name it is the catalog's {model}")
    for suffix, dtype in _SUFFIXES:
        found = suffix.search(base)
        model = _of_the_catalog(base[: found.start()]) if found else None
        if model is not None:
            return _stored_as(name, model, dtype)
    return None


def _stored_as(name: str, model: str, dtype: WeightDtype) -> Checkpoint:
    """Return a quantized checkpoint; NVIDIA's in the catalog all have an FP8 cache as well."""
    if dtype == "fp8" and name.lower().startswith(_QWEN):
        dtype = "fp8_block"
    kv_cache_dtype = "fp8" if name.startswith(_NVIDIA) else None
    cache = ", and its KV cache in fp8" if kv_cache_dtype else ""
    why = f"by its name it is the catalog's {model} with weights in {dtype}{cache}"
    return Checkpoint(model, dtype, kv_cache_dtype, why)


def _is_known(name: str) -> bool:
    try:
        load_model(name)
    except MistError:
        return False
    return True


def _of_the_catalog(base: str) -> str | None:
    """Return the catalog's name of the model whose last part of a name is `base`, in any case."""
    return _by_last_part().get(base.lower())


@cache
def _by_last_part() -> Mapping[str, str]:
    """Return the catalog's names by the last parts of all their names."""
    found: dict[str, str] = {}
    for model in model_names():
        for name in names_of(model):
            found.setdefault(name.rpartition("/")[2].lower(), model)
    return found
