"""Flags that say which model is served, and how it is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mist_sim.errors import MistError, brief, cut
from mist_sim.inputs import is_there
from mist_sim.models import ModelSpec, load_model
from mist_sim.models.huggingface.config_text import LANGUAGE_KEYS
from mist_sim.scenario.engines.server_start import length_problem
from mist_sim.scenario.from_vllm.checkpoints import Checkpoint, checkpoint_of
from mist_sim.scenario.from_vllm.flags import Flag
from mist_sim.scenario.from_vllm.handlers.json_values import entries_of
from mist_sim.scenario.from_vllm.server import Server
from mist_sim.user_paths import user_path

_OTHER = "--set model=PATH of its config.json, from the checkpoint's page or folder"

# Names of methods by the format that they mean for every checkpoint. `AWQConfig` in
# vllm/model_executor/layers/quantization/awq.py takes 4 bits alone.
_STORED_AS: Mapping[str, str] = {
    "fp8": "fp8",
    "awq": "int4",
    "awq_marlin": "int4",
    "modelopt_fp4": "nvfp4",
}
# Methods that read from the checkpoint how it is stored.
_BY_CHECKPOINT = ("compressed-tensors", "gptq", "gptq_marlin", "modelopt", "mxfp4", "fbgemm_fp8")
_CHANGES = ("--hf-overrides", "--rope-scaling", "--rope-theta")
_POSITIONS = ("rope_scaling", "rope-scaling", "rope_parameters", "rope_theta")


def model(name: str, flag: str, server: Server) -> None:
    """Set the model of a server, by the catalog, a file, or the rules of names."""
    said = server.is_set_elsewhere("model")
    found = None if said else checkpoint_of(name)
    if said:
        server.client["model"] = name
        server.account.applied(flag, "model, in place of which stands that of --set")
    elif found is None and "approximate" in server.overrides and is_there(user_path(name)):
        server.client["model"] = name
        server.account.taken(flag, f"model: {name}, as the nearest known one where it is not known")
    elif found is None:
        server.client["model"] = name
        server.account.refused(flag, _unknown(name))
    else:
        _set_checkpoint(found, flag, server)


def _set_checkpoint(found: Checkpoint, flag: str, server: Server) -> None:
    server.client["model"] = found.model
    if found.quantization:
        server.client["quantization"] = found.quantization
    if found.kv_cache_dtype and "--kv-cache-dtype" not in server.said:
        server.client.setdefault("kv_cache", {})["kv_cache_dtype"] = found.kv_cache_dtype
    if found.why:
        server.account.taken(flag, f"model: {found.model}; {found.why}")
    else:
        server.account.applied(flag, f"model: {found.model}")


def _unknown(name: str) -> str:
    if is_there(user_path(name)):
        try:
            load_model(name)
        except MistError as error:
            return str(error)
    return f"the catalog (mist list models) does not know it; instead: {_OTHER}"


_LONG = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
_LENGTH = "--max-model-len"


def check_length(server: Server) -> None:
    """Refuse a longest context beyond the model's own, unless the environment allows it."""
    flag, spec = server.said.get(_LENGTH), spec_of(server)
    said = server.client.get("max_model_len")
    allowed = server.variables.get(_LONG, "0").strip().lower() in ("1", "true")
    changed = any(name in server.said for name in _CHANGES)
    if flag is None or spec is None or allowed or changed or not isinstance(said, int):
        return
    if problem := length_problem(said, spec.max_position_embeddings):
        server.account.refused(flag.written, problem)


def quantization(flag: Flag, server: Server) -> None:
    """Apply --quantization if it, or the checkpoint, says how weights are stored."""
    value, stored = flag.value, server.client.get("quantization")
    own = _own_format(server)
    if stored or (own and own == _STORED_AS.get(value, own)):
        if value in (*_STORED_AS, *_BY_CHECKPOINT):
            server.account.no_effect(
                flag.written, f"the checkpoint's own format is {stored or own}"
            )
            return
    elif value in _STORED_AS:
        server.set("quantization", _STORED_AS[value], flag)
        return
    server.account.refused(
        flag.written,
        f"of vLLM's names {', '.join(_STORED_AS)} alone say how weights are stored; leave it out "
        "where the model's config.json says it, or --set clients.0.quantization=fp8, fp8_block, "
        "int8, int4 or nvfp4",
    )


def _own_format(server: Server) -> str | None:
    """Return how the model's own checkpoint stores weights; None: in 16 bits, or not known."""
    spec = spec_of(server)
    return spec.quantization.name if spec and spec.quantization else None


def spec_of(server: Server) -> ModelSpec | None:
    """Return the model of a server; None where it cannot be read."""
    try:
        return load_model(str(server.client.get("model")))
    except MistError:
        return None


def hf_overrides(flag: Flag, server: Server) -> None:
    """Accept changes of positions; refuse other changes of the model."""
    for key, value in entries_of(flag, server).items():
        inner = value if (key,) in LANGUAGE_KEYS and isinstance(value, dict) else {key: value}
        written = cut(f"{flag.name} {key}")
        if not set(inner) <= {*_POSITIONS, "max_position_embeddings"}:
            server.account.refused(
                written,
                "a model is a config.json; instead: --set model=PATH of one with the changes",
            )
        else:
            _longer(inner, written, server)


def rope(flag: Flag, server: Server) -> None:
    """Honour --rope-scaling and --rope-theta of vLLM up to 0.11."""
    values = {} if flag.name == "--rope-theta" else entries_of(flag, server)
    _longer({"rope_scaling": values} if values else {}, flag.name, server)


def _longer(values: Mapping[str, Any], written: str, server: Server) -> None:
    """Note a change of positions, which changes the longest context and no time."""
    length = values.get("max_position_embeddings")
    if "--max-model-len" in server.said or server.is_set_elsewhere("max_model_len"):
        server.account.no_effect(written, "positions take no time, and max_model_len is given")
    elif isinstance(length, int):
        server.set("max_model_len", length, f"{written} {length}")
    elif any("factor" in value for value in values.values() if isinstance(value, dict)):
        server.account.refused(
            written,
            f"{brief(dict(values))} makes the context longer than the model's own; say how long: "
            "--max-model-len",
        )
    else:
        server.account.no_effect(written, "positions take no time")


def windows(flag: Flag, server: Server) -> None:
    """Honour switches that change sliding windows, of models that have none."""
    spec = spec_of(server)
    if not flag.is_on:
        server.account.no_effect(flag.written, "that is so by default")
    elif spec is not None and spec.kv_groups.sliding_window is None:
        server.account.no_effect(flag.name, "the model has no sliding windows")
    else:
        server.account.refused(
            flag.name,
            "sliding windows are part of the model, with pages of their own; instead: leave it "
            "out, or --set model=PATH of a config.json without",
        )
