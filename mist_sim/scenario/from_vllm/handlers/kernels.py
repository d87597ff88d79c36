"""Flags and variables that select kernels, graphs, and whether steps are planned ahead.

Sources: `CompilationConfig` in vllm/config/compilation.py and `OPTIMIZATION_LEVEL_TO_CONFIG` in
vllm/config/vllm.py (0.19): level 3 is level 2, the default, and level 0 is without compiled code
and graphs, as --enforce-eager is. `VllmConfig.__post_init__` in vllm/config/vllm.py,
`Executor.supports_async_scheduling` and its overrides in vllm/v1/executor (0.14 to 0.33).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from mist_sim.errors import MistError
from mist_sim.hardware import load_gpu
from mist_sim.models.attention_backends import AttentionBackend, check_attention_backend
from mist_sim.models.moe_backends import MoeBackend, check_moe_backend, expert_format, stored_name
from mist_sim.scenario.engines.versions import version_of
from mist_sim.scenario.from_vllm.flags import Entry, Flag
from mist_sim.scenario.from_vllm.server import DEFAULT, ELSEWHERE, Server, entries, handler, settle
from mist_sim.scenario.from_vllm.tables import row_of_entry, table_of

_TIMED = "step times are those of the kernels that vLLM takes by default"
_ON = ("1", "true")
_ATTENTION = "VLLM_ATTENTION_BACKEND"
_LATENCY = "VLLM_FLASHINFER_MOE_BACKEND"


@handler
def moe_backend(said: Flag | Entry, server: Server) -> None:
    """Take the kernels of experts, where the model has some and they run on its GPU."""
    _backend("moe_backend", str(said.value).lower().replace("-", "_"), said, server)


@handler
def attention_backend(said: Flag | Entry, server: Server) -> None:
    """Take the kernels of attention."""
    _backend("attention_backend", str(said.value).upper(), said, server)


def _backend(key: str, name: str, said: Flag | Entry, server: Server) -> None:
    if name.lower() == "auto":
        server.no_effect(said, DEFAULT)
    elif _is_known(key, name, server):
        server.set(key, name, said)
    else:
        server.assumed(said, _TIMED)


def from_variables(server: Server) -> None:
    """Apply the kernels that environment variables name; flags take precedence."""
    name = server.variables.get(_ATTENTION, "").upper()
    if name and "attention_backend" not in server.client:
        _take("attention_backend", name, _ATTENTION, server)
    model = server.spec
    if model is None or "moe_backend" in server.client:
        return
    asking = table_of("variables")["experts"].get(stored_name(expert_format(model)), {})
    for variable, backend in asking.items():
        if server.variables.get(variable, "").lower() in _ON:
            _take("moe_backend", _of_flashinfer(backend, server), variable, server)
            return


def _of_flashinfer(backend: str, server: Server) -> str:
    """Return FlashInfer's TensorRT-LLM kernels for its CUTLASS ones if these do not run.

    A variable may also ask for them.

    `VLLM_FLASHINFER_MOE_BACKEND` selects them: latency (TensorRT-LLM) or throughput (CUTLASS). On
    B200s FP8 with block scales, and MXFP4 with 16-bit activations, have only TensorRT-LLM's.
    """
    if backend != "flashinfer_cutlass":
        return backend
    if server.variables.get(_LATENCY, "").lower() == "latency":
        server.handled.add(_LATENCY)
        return "flashinfer_trtllm"
    return backend if _is_known("moe_backend", backend, server) else "flashinfer_trtllm"


def _take(key: str, name: str, variable: str, server: Server) -> None:
    """Set a back end that a variable asks for, if it runs; otherwise leave the variable open."""
    if _is_known(key, name, server):
        server.set(key, name, variable)
        server.handled.add(variable)


_CHECKS: Mapping[str, Callable[..., Any]] = {
    "moe_backend": check_moe_backend,
    "attention_backend": check_attention_backend,
}


def _is_known(key: str, name: str, server: Server) -> bool:
    """Whether a back end has a name here, suits the model, and runs on its GPU."""
    model = server.spec
    if model is None or name not in get_args(MoeBackend) + get_args(AttentionBackend):
        return False
    try:
        gpu = load_gpu(server.gpu) if server.gpu else None
        _CHECKS[key](name, model, gpu.name if gpu else "", gpu.architecture if gpu else "")
    except (MistError, ValueError):
        return False
    return True


@handler
def compilation_config(flag: Flag, server: Server) -> None:
    """Honour the sizes of graphs; assume vLLM's own kernels elsewhere. A number is a mode."""
    if flag.value.isdecimal():
        mode = row_of_entry("compilation-config", "mode")
        settle(mode, Entry(flag.written, flag.value), server)
    else:
        entries(flag, server)


# --- planning ahead -----------------------------------------------------------------------------

_ASYNC, _KEY = "--async-scheduling", "async_scheduling"
_RAY = range(14, 21)
_RAY_V1 = "VLLM_USE_RAY_V2_EXECUTOR_BACKEND"  # "0" asks for the executor of before
_RAY_V2 = range(21, 33)  # releases that have that variable
_NGRAMS_OF_GPU = range(18, 33)  # releases which plan ahead with them, not with others


@handler
def executor(flag: Flag, server: Server) -> None:
    """Plan no step ahead in versions whose executor for Ray cannot."""
    if flag.value != "ray":
        server.no_effect(flag, "how processes find each other changes no step")
    elif server.engine == ELSEWHERE:
        server.assumed(
            flag,
            "vLLM to 0.20 plans no step ahead with Ray; for such an engine say --engine in place "
            "of --set engine, or async_scheduling=false",
        )
    elif server.minor in _RAY or _has_old_executor(server):
        _not_ahead(flag, "this version plans no step ahead with Ray", server)
    else:
        server.no_effect(flag, "this version plans ahead with Ray, too")


@handler
def padded_drafts(entry: Entry, server: Server) -> None:
    """Plan no step ahead where drafts are not padded to equal lengths."""
    if entry.value is not True:
        server.no_effect(entry, DEFAULT)
    elif version_of(None if server.engine == ELSEWHERE else server.engine).default(_KEY):
        _not_ahead(entry, "with it vLLM plans no step ahead", server)
    else:
        server.no_effect(entry, "this version plans no step ahead")


def ngrams(entry: Entry, server: Server) -> None:
    """Plan ahead with n-grams that the GPU looks for, and with no others, as versions do."""
    method = str(entry.value)
    if server.minor not in _NGRAMS_OF_GPU:
        return
    if method == "ngram_gpu" and _ASYNC not in server.said:
        server.set(_KEY, True, entry)
    elif method in ("ngram", "[ngram]") and server.is_on(_ASYNC):
        server.refused(
            entry,
            f"this version does not start with it and {_ASYNC}; instead: ngram_gpu, or leave "
            f"{_ASYNC} out",
        )


def _not_ahead(said: Flag | Entry, why: str, server: Server) -> None:
    if server.is_on(_ASYNC):
        server.refused(said, f"{why}, and does not start with {_ASYNC}; leave one of them out")
    else:
        server.set(_KEY, False, said)


def _has_old_executor(server: Server) -> bool:
    """Whether a variable asks for the executor of the versions before."""
    if server.minor not in _RAY_V2 or server.variables.get(_RAY_V1) != "0":
        return False
    server.handled.add(_RAY_V1)
    return True
