"""`--speculative-config`, in the scenario's words.

Source: `SpeculativeConfig.__post_init__` in vllm/config/speculative.py (0.19), which also finds out
the method where none is given.
"""

from __future__ import annotations

from typing import Any

from mist_sim.errors import brief, cut
from mist_sim.models.acceptance import assumed_acceptance
from mist_sim.scenario.from_vllm.checkpoints import checkpoint_of
from mist_sim.scenario.from_vllm.flags import Flag
from mist_sim.scenario.from_vllm.handlers import planning_ahead
from mist_sim.scenario.from_vllm.handlers.json_values import entries_of
from mist_sim.scenario.from_vllm.server import Server

_FLAG = "--speculative-config"
_METHODS = {
    "ngram": "ngram",
    "[ngram]": "ngram",
    "ngram_gpu": "ngram",
    "eagle": "eagle",
    "eagle3": "eagle3",
    "draft_model": "draft_model",
}
_AS_THEY_ARE = ("num_speculative_tokens", "acceptance_rate", "drafting_time")
_HEAD = "a head is timed as one more layer of the model"
_RATE = "how many drafts are right is the acceptance_rate"
_WITHOUT_EFFECT = {
    "prompt_lookup_max": _RATE,
    "prompt_lookup_min": _RATE,
    "rejection_sample_method": _RATE,
    "revision": "it is over before the first request",
    "code_revision": "it is over before the first request",
    "max_model_len": "drafts are as long as answers",
}
_KERNELS = "step times are those of vLLM's default kernels"
_ASSUMED = {
    "quantization": "the drafting layers are stored as the model, a draft model as its checkpoint",
    "use_local_argmax_reduction": _KERNELS,
    "attention_backend": _KERNELS,
    "moe_backend": _KERNELS,
    "enforce_eager": _KERNELS,
}


def drafts(flag: Flag, server: Server) -> None:
    """Honour a speculative config, each key for itself."""
    said = entries_of(flag, server)
    method = _method(said)
    for key, value in said.items():
        _entry(key, value, method, server)
    if not said:
        return
    if "method" not in said:
        if method is None:
            server.account.refused(_FLAG, "the method is missing; write method, or a draft model")
        else:
            server.client.setdefault("speculative_config", {})["method"] = method
    number = said.get("num_speculative_tokens")
    if "acceptance_rate" not in said and method is not None and isinstance(number, int):
        what = assumed_acceptance(method, "chat", max(number, 1))
        server.account.applied(  # the result names it as assumed, as long as it is
            f"{_FLAG} without acceptance_rate",
            f"speculative_config.acceptance_rate, as published unless you set it: {what}",
        )


def _entry(key: str, value: Any, method: str | None, server: Server) -> None:
    written = f"{_FLAG} {key}={cut(str(value))}"
    if key == "method":
        if method is None:
            server.account.refused(
                written, "not simulated; instead: ngram, draft_model, mtp, eagle or eagle3"
            )
        else:
            server.set("speculative_config.method", method, written)
            planning_ahead.ngrams(str(value), written, server)
    elif key == "model":
        _model(str(value), method, written, server)
    elif key in ("draft_tensor_parallel_size", "tensor_parallel_size"):
        _width(value, method, written, server)
    elif key == "disable_padded_drafter_batch":
        planning_ahead.padded_drafts(value, written, server)
    elif key in _AS_THEY_ARE:
        server.set(f"speculative_config.{key}", value, written)
    elif key in _WITHOUT_EFFECT:
        server.account.no_effect(written, _WITHOUT_EFFECT[key])
    elif key in _ASSUMED:
        server.account.assumed(written, _ASSUMED[key])
    else:
        server.account.refused(written, "not simulated; leave it out")


def _model(name: str, method: str | None, written: str, server: Server) -> None:
    if method != "draft_model":
        own = method == "ngram" or "--speculative-config" not in server.said
        server.account.no_effect(written, "n-grams need no model" if own else _HEAD)
        return
    found = checkpoint_of(name)
    if found is None or found.quantization:
        server.account.refused(
            written,
            "the catalog (mist list models) does not know it; instead: model: the path of a "
            "config.json",
        )
        return
    server.set("speculative_config.model", found.model, written)


def _width(value: Any, method: str | None, written: str, server: Server) -> None:
    if method == "draft_model":
        server.set("speculative_config.draft_tensor_parallel_size", value, written)
    elif method == "ngram":
        server.account.no_effect(written, "n-grams are no model")
    elif value in (server.number("--tensor-parallel-size"), None):
        server.account.no_effect(written, "the drafting layer is on all ranks")
    else:
        server.account.assumed(
            written, f"the drafting layer is on all ranks, not on {brief(value)}"
        )


def _method(said: dict[str, Any]) -> str | None:
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
