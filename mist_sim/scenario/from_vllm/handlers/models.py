"""Flags that say which model is served, how it is stored, and what of it: towers, adapters.

Publishers name quantized checkpoints after the model: `Qwen3-32B-FP8`, `Qwen2.5-72B-Instruct-AWQ`,
`Llama-3.3-70B-Instruct-FP4`, `Meta-Llama-3.1-8B-Instruct-quantized.w8a8`. A path that does not
exist on this machine is a folder on the server, usually named after the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from mist_sim.errors import MistError, brief, cut
from mist_sim.inputs import is_there
from mist_sim.models import ModelSpec, load_model
from mist_sim.models.huggingface.config_text import LANGUAGE_KEYS
from mist_sim.models.model_loading import model_names, names_of
from mist_sim.models.quantization import WeightDtype
from mist_sim.scenario.engines.server_start import length_problem
from mist_sim.scenario.engines.versions import VERSIONS
from mist_sim.scenario.from_vllm.flags import Flag
from mist_sim.scenario.from_vllm.server import Server, entries_of, handler
from mist_sim.scenario.from_vllm.tables import table_of
from mist_sim.user_paths import user_path

_IN_A_CACHE = re.compile(r"models--(.+?)--([^/]+)(?:/snapshots/[^/]+)?")

_FORMATS = table_of("formats")
_SUFFIXES: Sequence[tuple[re.Pattern[str], WeightDtype]] = [
    (re.compile(rf"[-_.]{pattern}$", re.IGNORECASE), dtype)
    for pattern, dtype in _FORMATS["suffixes"]
]
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
    if _fault_of(name) is None:
        return Checkpoint(name)
    cached = _IN_A_CACHE.search(name)
    base = (cached[2] if cached else name.rstrip("/").rpartition("/")[2]).lower()
    model = _by_last_part().get(base)
    if model is not None:
        return Checkpoint(model, why=f"by its name it is the catalog's {model}")
    for suffix, dtype in _SUFFIXES:
        found = suffix.search(base)
        model = _by_last_part().get(base[: found.start()]) if found else None
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


def _fault_of(name: str) -> str | None:
    """Return why a model cannot be read; None: it can."""
    try:
        load_model(name)
    except MistError as error:
        return str(error)
    return None


@cache
def _by_last_part() -> Mapping[str, str]:
    """Return the catalog's names by the last parts of all their names, in lower case."""
    found: dict[str, str] = {}
    for model in model_names():
        for name in names_of(model):
            found.setdefault(name.rpartition("/")[2].lower(), model)
    return found


def model(name: str, flag: str, server: Server) -> None:
    """Set the model of a server, by the catalog, a file, or the rules of names."""
    said = server.is_set_elsewhere("model")
    found = None if said else checkpoint_of(name)
    server.client["model"] = found.model if found else name
    is_file = is_there(user_path(name)) if found is None and not said else False
    if said:
        server.applied(flag, "model, in place of which stands that of --set")
    elif found is not None:
        _note_checkpoint(found, flag, server)
    elif is_file and "approximate" in server.overrides:
        server.taken(flag, f"model: {name}, as the nearest known one where it is not known")
    else:
        unknown = (
            "the catalog (mist list models) does not know it; instead: --set model=PATH of its "
            "config.json, from the checkpoint's page or folder"
        )
        server.refused(flag, (_fault_of(name) if is_file else None) or unknown)


def _note_checkpoint(found: Checkpoint, flag: str, server: Server) -> None:
    if found.quantization:
        server.client["quantization"] = found.quantization
    if found.kv_cache_dtype and "--kv-cache-dtype" not in server.said:
        server.client.setdefault("kv_cache", {})["kv_cache_dtype"] = found.kv_cache_dtype
    if found.why:
        server.taken(flag, f"model: {found.model}; {found.why}")
    else:
        server.applied(flag, f"model: {found.model}")


_LENGTH = "--max-model-len"
_CHANGES = ("--hf-overrides", "--rope-scaling", "--rope-theta")


def check_length(server: Server) -> None:
    """Refuse a longest context beyond the model's own, unless the environment allows it."""
    flag, spec = server.said.get(_LENGTH), server.spec
    said = server.client.get("max_model_len")
    allowed = server.variables.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0").strip().lower()
    changed = any(name in server.said for name in _CHANGES)
    is_free = allowed in ("1", "true") or changed
    if flag is None or spec is None or is_free or not isinstance(said, int):
        return
    if problem := length_problem(said, spec.max_position_embeddings):
        server.refused(flag, problem)


_STORED_AS: Mapping[str, str] = _FORMATS["methods"]


@handler
def quantization(flag: Flag, server: Server) -> None:
    """Apply --quantization if it, or the checkpoint, says how weights are stored."""
    value, stored, spec = flag.value, server.client.get("quantization"), server.spec
    own = spec.quantization.name if spec and spec.quantization else None
    if stored or (own and own == _STORED_AS.get(value, own)):
        if value in (*_STORED_AS, *_FORMATS["by_checkpoint"].split()):
            server.no_effect(flag, f"the checkpoint's own format is {stored or own}")
            return
    elif value in _STORED_AS:
        server.set("quantization", _STORED_AS[value], flag)
        return
    server.refused(
        flag,
        f"of vLLM's names {', '.join(_STORED_AS)} alone say how weights are stored; leave it out "
        "where the model's config.json says it, or --set clients.0.quantization=fp8, fp8_block, "
        "int8, int4 or nvfp4",
    )


_POSITIONS = ("rope_scaling", "rope-scaling", "rope_parameters", "rope_theta")


@handler
def hf_overrides(flag: Flag, server: Server) -> None:
    """Accept changes of positions; refuse other changes of the model."""
    for key, value in entries_of(flag, server).items():
        inner = value if (key,) in LANGUAGE_KEYS and isinstance(value, dict) else {key: value}
        written = cut(f"{flag.name} {key}")
        if not set(inner) <= {*_POSITIONS, "max_position_embeddings"}:
            server.refused(
                written,
                "a model is a config.json; instead: --set model=PATH of one with the changes",
            )
        else:
            _longer(inner, written, server)


@handler
def rope(flag: Flag, server: Server) -> None:
    """Honour --rope-scaling and --rope-theta of vLLM up to 0.11."""
    values = {} if flag.name == "--rope-theta" else entries_of(flag, server)
    _longer({"rope_scaling": values} if values else {}, flag.name, server)


def _longer(values: Mapping[str, Any], written: str, server: Server) -> None:
    """Note a change of positions, which changes the longest context and no time."""
    length = values.get("max_position_embeddings")
    if _LENGTH in server.said or server.is_set_elsewhere("max_model_len"):
        server.no_effect(written, "positions take no time, and max_model_len is given")
    elif isinstance(length, int):
        server.set("max_model_len", length, f"{written} {length}")
    elif any("factor" in value for value in values.values() if isinstance(value, dict)):
        server.refused(
            written,
            f"{brief(dict(values))} makes the context longer than the model's own; say how long: "
            "--max-model-len",
        )
    else:
        server.no_effect(written, "positions take no time")


@handler
def windows(flag: Flag, server: Server) -> None:
    """Honour switches that change sliding windows, of models that have none."""
    if server.spec is not None and server.spec.kv_groups.sliding_window is None:
        server.no_effect(flag.name, "the model has no sliding windows")
    else:
        server.refused(
            flag.name,
            "sliding windows are part of the model, with pages of their own; instead: leave it "
            "out, or --set model=PATH of a config.json without",
        )


# --- towers -------------------------------------------------------------------------------------
# Source: `MultiModalConfig` in vllm/config/multimodal.py and `_mark_tower_model` in
# vllm/model_executor/models/interfaces.py, for every model since vllm-project/vllm#32757 (January
# 2026, after 0.14); before it vllm-project/vllm#22299 for models that exist with a tower alone.

_ONLY = "language_model_only"
_LAST_WITH_FEW = "vllm-0.14"
_FEW = ("llama4", "mistral")
_OF_IMAGES = ("gemma3", "kimi", "llama4", "mistral")  # other towers read videos, too
_NO_TOWER = "no tower of the model is known"


@handler
def language_model_only(flag: Flag, server: Server) -> None:
    """Leave out the towers."""
    if server.spec is not None and not _has_tower(server.spec):
        server.no_effect(flag, _NO_TOWER)
    else:
        server.set(_ONLY, True, flag)


@handler
def limit_mm_per_prompt(flag: Flag, server: Server) -> None:
    """Leave out the towers where a server takes nothing that they read."""
    spec, said = server.spec, _counts(flag, server)
    if not any(count == 0 for count in said.values()):
        server.no_effect(flag, "requests say what they bring (workload.images)")
    elif spec is None or not _has_tower(spec):
        server.no_effect(flag, _NO_TOWER)
    elif missing := [name for name in _read_by(spec) if said.get(name) != 0]:
        server.no_effect(flag, f"its tower is loaded while {missing[0]} is not 0, too")
    elif _is_old(server.engine) and not spec.architecture.startswith(_FEW):
        server.no_effect(flag, f"{server.engine} loads this model's tower all the same")
    else:
        server.set(_ONLY, True, flag)


def _has_tower(spec: ModelSpec) -> bool:
    return bool(spec.vision or spec.tower_parameters or spec.unsized_towers)


def _read_by(spec: ModelSpec) -> tuple[str, ...]:
    """Return the kinds of input that the model's towers read."""
    if spec.architecture.startswith(_OF_IMAGES):
        return ("image",)
    return ("image", "video") if spec.vision else ("image", "video", "audio")


def _is_old(engine: str | None) -> bool:
    order = list(VERSIONS)
    return engine in order and order.index(engine) <= order.index(_LAST_WITH_FEW)


def _counts(flag: Flag, server: Server) -> dict[str, object]:
    """Return the limit of each kind; `image=0,video=0` is how vLLM before 0.9 wrote it."""
    if "=" in flag.value and not flag.value.lstrip().startswith("{"):
        pairs = (each.partition("=") for each in flag.value.split(","))
        text = json.dumps({k.strip(): int(n) if n.strip().isdecimal() else n for k, _, n in pairs})
        flag = Flag(flag.name, (text,))
    return {
        kind: limit.get("count") if isinstance(limit, dict) else limit
        for kind, limit in entries_of(flag, server).items()
    }


# --- LoRA adapters ------------------------------------------------------------------------------
# Source: `LoRAConfig` in `vllm/config/lora.py`, `EngineArgs.add_cli_args` in
# `vllm/engine/arg_utils.py`.

_SIZES = ("--max-loras", "--max-lora-rank", "--max-cpu-loras")


@handler
def enable_lora(flag: Flag, server: Server) -> None:
    """Serve adapters; the other flags say how many."""
    server.client.setdefault("lora", {})
    server.applied(flag, "lora")


@handler
def of_adapters(flag: Flag, server: Server) -> None:
    """Set what adapters are like, or how many, or of which rank, have room."""
    key = "lora." + flag.name.removeprefix("--").replace("-", "_")
    if not server.is_on("--enable-lora"):
        server.no_effect(flag, "without --enable-lora there are no adapters")
    elif flag.name == "--fully-sharded-loras":
        server.set(key, True, flag)
    elif flag.name == "--lora-modules":
        server.no_effect(
            flag,
            "requests name adapters: --set workload.adapters, or --lora-modules of vllm bench "
            "serve",
        )
    elif flag.name not in _SIZES:
        server.assumed(
            flag, "all matrices of attention, MLPs and experts have adapters, in 16 bits"
        )
    elif not flag.value.isdecimal():
        server.refused(flag, f"must be a number, got {flag.value[:40]!r}")
    elif flag.name == _SIZES[-1] and not server.is_set_elsewhere("lora.storage_bandwidth"):
        server.no_effect(
            flag,
            "reading adapters from storage takes no time; --set clients.0.lora.storage_bandwidth "
            "says how long it does",
        )
    else:
        server.set(key, int(flag.value), flag)
