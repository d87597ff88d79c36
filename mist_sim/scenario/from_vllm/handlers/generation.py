"""Sampling defaults of a server: `generation_config.json`, and flags that replace it.

Source: `ModelConfig.try_get_generation_config` and `get_diff_sampling_param` in
vllm/config/model.py (0.19): the folder of the model, unless `--generation-config` names another one
or says `vllm`; `--override-generation-config` goes before the file, and requests before both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mist_sim.errors import MistError
from mist_sim.hardware.sampling import said_by_vllm
from mist_sim.models.generation import FILE, beside, read
from mist_sim.scenario.from_vllm.flags import Flag
from mist_sim.scenario.from_vllm.server import Server, entries_of, handler

_READ = ("temperature", "top_p", "top_k", "max_new_tokens", "repetition_penalty")


@handler
def override_generation_config(flag: Flag, server: Server) -> None:
    """Apply a flag's sampling parameters, and `max_new_tokens`, which caps all answers.

    `get_max_tokens` in vllm/entrypoints/utils.py takes the least of the caps.
    """
    _take(entries_of(flag, server), flag.name, server)


@handler
def generation_config(flag: Flag, server: Server) -> None:
    """Note a folder without the file of defaults; `defaults` reads it when all flags are known."""
    if not beside(flag.value):
        server.assumed(
            flag,
            f"no {FILE} is there on this machine; say what it asks for: --set "
            "clients.0.sampling.top_p=...",
        )


def defaults(server: Server) -> None:
    """Apply the parameters of a file on this machine that no flag overrides."""
    flag = server.said.get("--generation-config")
    folder = flag.value if flag and flag.value != "auto" else str(server.client.get("model", ""))
    path = None if folder == "vllm" else beside(folder)
    if path is None:
        return
    try:
        found = read(path)
    except MistError as error:
        server.refused(FILE, str(error))
        return
    said = server.client.get("sampling", {})
    relevant = {key: value for key, value in found.items() if key in _READ and key not in said}
    if "max_tokens" in server.workload:
        relevant.pop("max_new_tokens", None)
    _take(relevant, FILE, server)


def _take(parameters: Mapping[str, Any], source: str, server: Server) -> None:
    sampling = said_by_vllm(parameters)
    for key, value in parameters.items():
        written = f"{source} {key}={value}"
        if key in sampling:
            server.set(f"sampling.{key}", sampling[key], written)
        elif key != "max_new_tokens":
            server.no_effect(written, "it takes no time here")
        elif isinstance(value, int) and value > 0:
            server.workload["max_tokens"] = value
            server.applied(written, f"workload.max_tokens: {value}")
        else:
            server.refused(written, "must be a whole number > 0")
