"""Sampling defaults of a server: `generation_config.json`, and flags that replace it.

Source: `ModelConfig.try_get_generation_config` and `get_diff_sampling_param` in
vllm/config/model.py (0.19): the folder of the model, unless `--generation-config` names another one
or says `vllm`; `--override-generation-config` goes before the file, and requests before both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mist_sim.bounds import CONFIG_BYTES
from mist_sim.errors import MistError
from mist_sim.hardware.sampling import said_by_vllm
from mist_sim.inputs.files import text_of
from mist_sim.scenario.from_vllm.flags import Flag
from mist_sim.scenario.from_vllm.handlers.json_values import entries_of
from mist_sim.scenario.from_vllm.server import Server
from mist_sim.user_paths import user_path

FILE = "generation_config.json"
_FLAG = "--generation-config"
_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
_PENALTY = "requests are sampled without penalties, which take time of a real server"


def override(flag: Flag, server: Server) -> None:
    """Apply a flag's sampling parameters, and `max_new_tokens`, which caps all answers.

    `get_max_tokens` in vllm/entrypoints/utils.py takes the least of the caps.
    """
    _take(entries_of(flag, server), server, lambda key, value: f"{flag.name} {key}={value}")


def source(flag: Flag, server: Server) -> None:
    """Note which file has the defaults; `defaults` reads it when all flags are known."""
    if flag.value == "vllm":
        server.account.no_effect(flag.written, "vLLM's own defaults sample without top-p and top-k")
    elif flag.value == "auto":
        server.account.no_effect(flag.written, "that is so by default")
    elif not _file(flag.value):
        server.account.assumed(
            flag.written,
            f"no {FILE} is there on this machine; say what it asks for: --set "
            "clients.0.sampling.top_p=...",
        )


def defaults(server: Server) -> None:
    """Apply the file's parameters that no flag overrides."""
    flag = server.said.get(_FLAG)
    folder = flag.value if flag and flag.value != "auto" else str(server.client.get("model", ""))
    path = None if folder == "vllm" else _file(folder)
    if path is None:
        return
    try:
        found = json.loads(text_of(path, CONFIG_BYTES))
    except MistError as error:
        server.account.refused(FILE, str(error))
        return
    except (ValueError, RecursionError) as error:
        server.account.refused(FILE, f"{path}: is no JSON: {error}")
        return
    if not isinstance(found, dict):
        server.account.refused(FILE, f"{path}: must be an object")
        return
    said = server.client.get("sampling", {})
    relevant = {key: value for key, value in found.items() if key in _READ and key not in said}
    if "max_tokens" in server.workload:
        relevant.pop("max_new_tokens", None)
    _take(relevant, server, lambda key, value: f"{FILE} {key}={value}")


_READ = ("temperature", "top_p", "top_k", "max_new_tokens", *_PENALTIES)


def _take(entries: Mapping[str, Any], server: Server, written: Callable[[str, Any], str]) -> None:
    sampling = said_by_vllm(entries)
    for key, value in entries.items():
        name = written(key, value)
        if key in sampling:
            server.set(f"sampling.{key}", sampling[key], name)
        elif key in _PENALTIES and value not in (0, 1):
            server.account.assumed(name, _PENALTY)
        elif key != "max_new_tokens":
            server.account.no_effect(name, "it takes no time here")
        elif isinstance(value, int) and value > 0:
            server.workload["max_tokens"] = value
            server.account.applied(name, f"workload.max_tokens: {value}")
        else:
            server.account.refused(name, "must be a whole number > 0")


def _file(folder: str) -> Path | None:
    """Return the file beside a model's config, if it is on this machine."""
    if not folder:
        return None
    try:
        path = user_path(folder)
    except MistError:
        return None
    found = (path if path.is_dir() else path.parent) / FILE
    is_model = path.is_dir() or path.name.endswith(".json")
    return found if is_model and found.is_file() else None
