"""Flags and variables that select the kernel libraries of experts and attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from mist_sim.errors import MistError, cut
from mist_sim.hardware import load_gpu
from mist_sim.models import ModelSpec
from mist_sim.models.attention_backends import AttentionBackend, check_attention_backend
from mist_sim.models.moe_backends import MoeBackend, check_moe_backend, expert_format, stored_name
from mist_sim.scenario.from_vllm.flags import Flag
from mist_sim.scenario.from_vllm.handlers.json_values import entries_of
from mist_sim.scenario.from_vllm.handlers.model_flags import spec_of
from mist_sim.scenario.from_vllm.server import Server

_TIMED = "step times are those of the kernels that vLLM takes by default"
_ON = ("1", "true")
_ATTENTION = "VLLM_ATTENTION_BACKEND"
_LATENCY = "VLLM_FLASHINFER_MOE_BACKEND"
# by format of experts, what asks for a back end where it is on; the first that applies
_VARIABLES: Mapping[str, tuple[tuple[str, MoeBackend], ...]] = {
    "bf16": (("VLLM_USE_FLASHINFER_MOE_FP16", "flashinfer_cutlass"),),
    "fp8": (
        ("VLLM_USE_FLASHINFER_MOE_FP8", "flashinfer_cutlass"),
        ("VLLM_TEST_FORCE_FP8_MARLIN", "marlin"),
    ),
    "fp8_block": (
        ("VLLM_USE_FLASHINFER_MOE_FP8", "flashinfer_cutlass"),
        ("VLLM_TEST_FORCE_FP8_MARLIN", "marlin"),
        ("VLLM_MOE_USE_DEEP_GEMM", "deep_gemm"),
    ),
    "mxfp4": (
        ("VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8", "flashinfer_trtllm_afp8"),
        ("VLLM_USE_FLASHINFER_MOE_MXFP4_BF16", "flashinfer_cutlass"),
        ("VLLM_MXFP4_USE_MARLIN", "marlin"),
    ),
    "nvfp4": (("VLLM_USE_FLASHINFER_MOE_FP4", "flashinfer_cutlass"),),
}


def moe_backend(flag: Flag, server: Server) -> None:
    """Take the kernels of experts, where the model has some and they run on its GPU."""
    _experts(flag.value, flag.written, server)


def attention_backend(flag: Flag, server: Server) -> None:
    """Take the kernels of attention."""
    _backend("attention_backend", flag.value.upper(), flag.written, server)


def attention_config(flag: Flag, server: Server) -> None:
    """Take the kernels of attention that a JSON object names."""
    for key, value in entries_of(flag, server).items():
        written = f"{flag.name} {key}={cut(str(value))}"
        if key == "backend" and value is not None:
            _backend("attention_backend", str(value).upper(), written, server)
        else:
            server.account.assumed(written, _TIMED)


def kernel_config(flag: Flag, server: Server) -> None:
    """Take the kernels of experts that a JSON object names."""
    for key, value in entries_of(flag, server).items():
        written = f"{flag.name} {key}={cut(str(value))}"
        if key == "moe_backend":
            _experts(str(value), written, server)
        else:
            server.account.assumed(written, _TIMED)


def _experts(name: str, written: str, server: Server) -> None:
    _backend("moe_backend", name.lower().replace("-", "_"), written, server)


def _backend(key: str, name: str, written: str, server: Server) -> None:
    if name.lower() == "auto":
        server.account.no_effect(written, "that is so by default")
    elif _is_known(key, name, server):
        server.set(key, name, written)
    else:
        server.account.assumed(written, _TIMED)


def from_variables(server: Server) -> None:
    """Apply the kernels that environment variables name; flags take precedence."""
    name = server.variables.get(_ATTENTION, "").upper()
    if name and "attention_backend" not in server.client:
        _take("attention_backend", name, _ATTENTION, server)
    model = spec_of(server)
    if model is None or "moe_backend" in server.client:
        return
    for variable, backend in _VARIABLES.get(_format(model), ()):
        if server.variables.get(variable, "").lower() in _ON:
            asked = _of_flashinfer(backend, server)
            _take("moe_backend", asked, variable, server)
            return


def _format(model: ModelSpec) -> str:
    return stored_name(expert_format(model))


def _of_flashinfer(backend: MoeBackend, server: Server) -> MoeBackend:
    """Return FlashInfer's TensorRT-LLM kernels for its CUTLASS ones if these do not run.

    A variable may also ask for them.

    `VLLM_FLASHINFER_MOE_BACKEND` selects them: latency (TensorRT-LLM) or throughput (CUTLASS). On
    B200s FP8 with block scales, and MXFP4 with 16-bit activations, have only TensorRT-LLM's.
    """
    if backend != "flashinfer_cutlass":
        return backend
    asked = server.variables.get(_LATENCY, "").lower()
    if asked == "latency":
        server.handled.add(_LATENCY)
        return "flashinfer_trtllm"
    runs = _is_known("moe_backend", backend, server)
    return backend if runs else "flashinfer_trtllm"


def _take(key: str, name: str, variable: str, server: Server) -> None:
    """Set a back end that a variable asks for, if it runs; otherwise leave the variable open."""
    if _is_known(key, name, server):
        server.set(key, name, variable)
        server.handled.add(variable)


def _is_known(key: str, name: str, server: Server) -> bool:
    """Whether a back end has a name here, suits the model, and runs on its GPU."""
    model = spec_of(server)
    if model is None or name not in get_args(MoeBackend) + get_args(AttentionBackend):
        return False
    checks: Mapping[str, Callable[..., Any]] = {
        "moe_backend": check_moe_backend,
        "attention_backend": check_attention_backend,
    }
    try:
        gpu = load_gpu(server.gpu) if server.gpu else None
        checks[key](name, model, gpu.name if gpu else "", gpu.architecture if gpu else "")
    except (MistError, ValueError):
        return False
    return True
