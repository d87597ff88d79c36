"""`--speculative-config`, and the flags that are entries of it, in the scenario's words.

Sources: `SpeculativeConfig.__post_init__` in vllm/config/speculative.py (0.19), which also finds
out the method where none is given; `EngineArgs.create_speculative_config` in
vllm/engine/arg_utils.py (0.33) for `--spec-method`, `--spec-model` and `--spec-tokens`.
"""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mist_sim.errors import brief
from mist_sim.models.acceptance import assumed_acceptance
from mist_sim.scenario.from_vllm.flags import Entry, Flag
from mist_sim.scenario.from_vllm.handlers.kernels import ngrams
from mist_sim.scenario.from_vllm.handlers.models import checkpoint_of
from mist_sim.scenario.from_vllm.server import Server, entries, handler
from mist_sim.scenario.from_vllm.tables import mapping

_FLAG = "--speculative-config"
_METHODS = {name: name for name in ("ngram", "eagle", "eagle3", "draft_model")} | {
    "[ngram]": "ngram",
    "ngram_gpu": "ngram",
}
_KEYS: Mapping[str, str] = {
    "--spec-method": "method",
    "--spec-model": "model",
    "--spec-tokens": "num_speculative_tokens",
}


def merged(flags: Sequence[Flag]) -> list[Flag]:
    """Return flags with `--spec-...` as entries of the config; a fault where both say one."""
    own = {_KEYS[flag.name]: flag.value for flag in flags if flag.name in _KEYS and not flag.fault}
    if not own:
        return list(flags)
    configs = [flag for flag in flags if flag.name == _FLAG and not flag.fault]
    try:
        config = mapping(configs[-1].value) if configs else {}
    except (ArgumentTypeError, RecursionError):  # which its handler says
        return [flag for flag in flags if flag.name not in _KEYS or flag.fault]
    last = {flag.name: flag for flag in flags}
    others = []
    for flag in flags:
        key = None if flag.fault else _KEYS.get(flag.name)
        if key in config:
            others.append(replace(flag, fault=f"{_FLAG} says {key}, too; leave one out"))
        elif key is not None and last[flag.name] is not flag:
            others.append(replace(flag, fault="is given again behind it; leave one out"))
        elif key is None and flag not in configs:
            others.append(flag)
    values = {key: int(said) if said.isdecimal() else said for key, said in own.items()}
    return [*others, Flag(_FLAG, (json.dumps({**config, **values}),))]


@handler
def speculative_config(flag: Flag, server: Server) -> None:
    """Honour a speculative config, each key for itself."""
    entries(flag, server)
    try:
        said = mapping(flag.value)
    except (ArgumentTypeError, RecursionError):
        return
    method = _method(said)
    if said and "method" not in said and method is None:
        server.refused(_FLAG, "the method is missing; write method, or a draft model")
    elif said and "method" not in said:
        server.client.setdefault("speculative_config", {})["method"] = method
    number = said.get("num_speculative_tokens")
    if "acceptance_rate" not in said and method is not None and isinstance(number, int):
        what = assumed_acceptance(method, "chat", max(number, 1))
        server.applied(  # the result names it as assumed, as long as it is
            f"{_FLAG} without acceptance_rate",
            f"speculative_config.acceptance_rate, as published unless you set it: {what}",
        )


@handler
def drafting_method(entry: Entry, server: Server) -> None:
    """Set the method, or refuse one that is not simulated."""
    method = _method(entry.of)
    if method is None:
        server.refused(entry, "not simulated; instead: ngram, draft_model, mtp, eagle or eagle3")
    else:
        server.set("speculative_config.method", method, entry)
        ngrams(entry, server)


@handler
def drafting_model(entry: Entry, server: Server) -> None:
    """Set a draft model of the catalog; other methods need none."""
    method = _method(entry.of)
    if method != "draft_model":
        own = method == "ngram" or _FLAG not in server.said
        head = "a head is timed as one more layer of the model"
        server.no_effect(entry, "n-grams need no model" if own else head)
        return
    found = checkpoint_of(str(entry.value))
    if found is None or found.quantization:
        server.refused(
            entry,
            "the catalog (mist list models) does not know it; instead: model: the path of a "
            "config.json",
        )
    else:
        server.set("speculative_config.model", found.model, entry)


@handler
def drafting_width(entry: Entry, server: Server) -> None:
    """Set over how many ranks a draft model is split; drafting layers are on all."""
    method = _method(entry.of)
    if method == "draft_model":
        server.set("speculative_config.draft_tensor_parallel_size", entry.value, entry)
    elif method == "ngram":
        server.no_effect(entry, "n-grams are no model")
    elif entry.value in (server.number("--tensor-parallel-size"), None):
        server.no_effect(entry, "the drafting layer is on all ranks")
    else:
        server.assumed(entry, f"the drafting layer is on all ranks, not on {brief(entry.value)}")


def _method(said: Mapping[str, Any]) -> str | None:
    """Return the drafting method; None if it is not simulated or not given."""
    method, model = said.get("method"), str(said.get("model", ""))
    if method is None:
        if model in ("ngram", "[ngram]"):
            return "ngram"
        method = "draft_model" if model else None
    if method == "draft_model":
        named = {"eagle-": "eagle", "eagle3": "eagle3"}
        method = next((head for part, head in named.items() if part in model.lower()), method)
    if method == "mtp" or str(method).endswith("_mtp"):
        return "mtp"
    return _METHODS.get(str(method))
