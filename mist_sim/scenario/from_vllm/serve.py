"""From `vllm serve ...` to a client of a scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mist_sim.errors import ScenarioError, brief, cut
from mist_sim.scenario.from_vllm.arguments import (
    HONOURED,
    REFUSED,
    SWITCHES_WITHOUT_EFFECT,
    WITHOUT_EFFECT,
    mapping,
)
from mist_sim.scenario.from_vllm.command_line import Parser

_COMMAND = "vllm serve"
_TRANSFER = "--kv-transfer-config"

KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
"""`kv_role` of vLLM's `KVTransferConfig` (vllm/config/kv_transfer.py) for a client's role."""

_SEVERAL = ("--api-key", "--served-model-name")
# `AWQConfig` in vllm/model_executor/layers/quantization/awq.py takes 4 bits alone.
_STORED_AS = {"fp8": "fp8", "awq": "int4", "awq_marlin": "int4"}


def client_of(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the client that a server's arguments describe, and the flags that change nothing.

    Raises ScenarioError for an argument that cannot be honoured, with what to write instead.
    """
    said = _parser().parsed(words)
    _check(said)
    client: dict[str, Any] = {}
    model = said.pop("model_tag", None)
    if model is not None:
        said = {"--model": model, **said}
    if "--model" not in said:
        raise ScenarioError(f"{_COMMAND}: the model is missing; write {_COMMAND} MODEL ...")
    for flag, value in said.items():
        if flag in HONOURED:
            _set(client, HONOURED[flag].key, _value(flag, value))
    if _TRANSFER in said:
        client["role"] = _role(said[_TRANSFER])
    left_out = [flag for flag in said if flag in (*WITHOUT_EFFECT, *SWITCHES_WITHOUT_EFFECT)]
    return client, left_out


def _parser() -> Parser:
    parser = Parser(_COMMAND)
    parser.add_argument("model_tag", nargs="?")
    for flag, honoured in HONOURED.items():
        short = [honoured.short] if honoured.short else []
        if honoured.read is None:
            parser.add_switches([flag], *short)
        else:
            nargs = "+" if honoured.many else None
            parser.add_argument(
                flag, *short, type=honoured.read, nargs=nargs, choices=honoured.choices
            )
    for flag, refused in REFUSED.items():
        short = [refused.short] if refused.short else []
        if set(refused.neutral) <= {"True", "False"} and refused.neutral:
            parser.add_switches([flag], *short)
        else:
            parser.add_argument(flag, *short)
    parser.add_argument(_TRANSFER, type=mapping)
    for flag in WITHOUT_EFFECT:
        parser.add_argument(flag, nargs="+" if flag in _SEVERAL else None)
    parser.add_switches(SWITCHES_WITHOUT_EFFECT)
    return parser


def _check(said: Mapping[str, object]) -> None:
    for flag, refused in REFUSED.items():
        value = said.get(flag)
        if value is not None and str(value) not in refused.neutral:
            raise ScenarioError(
                f"{_COMMAND} {_written(flag, value)}: {refused.reason}; instead: {refused.instead}"
            )


def _written(flag: str, value: object) -> str:
    if isinstance(value, bool):
        return flag if value else f"--no-{flag[2:]}"
    return f"{flag} {cut(str(value))}"


def _value(flag: str, value: Any) -> Any:
    """Return what a scenario says for an argument's value."""
    if flag == "--quantization":
        if value not in _STORED_AS:
            known = ", ".join(_STORED_AS)
            raise ScenarioError(
                f"{_COMMAND} --quantization {cut(value)}: of vLLM's names {known} alone say how "
                "weights are stored; leave it out where the model's config.json says it, or write "
                "quantization: fp8, int8 or int4 in the scenario"
            )
        return _STORED_AS[value]
    if flag == "--speculative-config":
        _check_drafts(value)
    if flag == "--kv-offloading-size":
        return [{"name": "cpu", "capacity": f"{value:g} GiB"}]
    if flag == "--long-prefill-token-threshold":
        return value or None
    return value


def _role(said: Mapping[str, Any]) -> str:
    """Return the role of a server that hands over KV entries, or takes them.

    Raises ScenarioError where the command line does not say which of the two.
    """
    for role, name in KV_ROLES.items():
        if said.get("kv_role") == name:
            return role
    raise ScenarioError(
        f"{_COMMAND} {_TRANSFER}: kv_role must be {' or '.join(KV_ROLES.values())}, which say who "
        f"computes prompts, got {brief(said.get('kv_role'))}; instead: role and network in the "
        "scenario"
    )


def _check_drafts(said: Mapping[str, Any]) -> None:
    """Raise ScenarioError for words of vLLM's speculation that a scenario writes otherwise."""
    method = str(said.get("method"))
    instead = ""
    if method == "eagle3" or (method == "eagle" and "model" in said):
        instead = "a head is timed as one more layer; write method eagle, without model"
    elif method.endswith("_mtp"):
        instead = "write method mtp"
    for key in ("prompt_lookup_max", "prompt_lookup_min"):
        if key in said:
            instead = f"{key} has no effect beside an acceptance rate; leave it out"
    if instead:
        raise ScenarioError(f"{_COMMAND} --speculative-config, method {cut(method)}: {instead}")


def _set(client: dict[str, Any], key: str, value: Any) -> None:
    """Set a value at a dotted path; mappings grow on the way."""
    *path, last = key.split(".")
    for step in path:
        client = client.setdefault(step, {})
    client[last] = value
