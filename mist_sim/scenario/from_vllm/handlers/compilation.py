"""`--compilation-config` and `-O`: which steps are replayed as CUDA graphs.

Source: `CompilationConfig` in vllm/config/compilation.py and `OPTIMIZATION_LEVEL_TO_CONFIG` in
vllm/config/vllm.py (0.19): level 3 is level 2, the default, and level 0 is without compiled code
and graphs, as --enforce-eager is. Up to 0.11 levels were those of the mode, of which 3 is v1's.
"""

from __future__ import annotations

from typing import Any

from mist_sim.errors import cut
from mist_sim.scenario.from_vllm.flags import Flag
from mist_sim.scenario.from_vllm.handlers.json_values import entries_of
from mist_sim.scenario.from_vllm.server import Server

_FLAG = "--compilation-config"
_EAGER = "instead: --enforce-eager, which is timed"
_SIZES = {
    "cudagraph_capture_sizes": "predictor.cudagraph_capture_sizes",
    "max_cudagraph_capture_size": "predictor.max_cudagraph_capture_size",
}
_REPLAYED = ("FULL_AND_PIECEWISE", "FULL", "FULL_DECODE_ONLY", "PIECEWISE")
_LOADING = ("cache_dir", "debug_dump_path", "cudagraph_num_of_warmups", "compile_cache_save_format")
_KERNELS = "step times are those of vLLM's default kernels and fusions"


def compilation(flag: Flag, server: Server) -> None:
    """Honour the sizes of graphs; assume vLLM's own kernels elsewhere."""
    if flag.value.isdecimal():
        _mode(flag.value, flag.written, server)
        return
    for key, value in entries_of(flag, server).items():
        written = f"{_FLAG} {key}={cut(str(value))}"
        if key in _SIZES:
            server.set(_SIZES[key], value, written)
        elif key in ("level", "mode"):
            _mode(str(value), written, server)
        elif key in ("cudagraph_mode", "use_cudagraph", "full_cuda_graph"):
            _graphs(key, value, written, server)
        elif key in _LOADING:
            server.account.no_effect(written, "it is over before the first request")
        else:
            server.account.assumed(written, _KERNELS)


def _mode(value: str, written: str, server: Server) -> None:
    if value in ("3", "VLLM_COMPILE"):
        server.account.no_effect(written, "that is so by default")
    else:
        server.account.refused(written, f"step times are of compiled models; {_EAGER}")


def _graphs(key: str, value: Any, written: str, server: Server) -> None:
    if key == "cudagraph_mode" and str(value) == _REPLAYED[0]:
        server.account.no_effect(written, "that is so by default")
    elif value in (False, "NONE", None) and key != "full_cuda_graph":
        server.account.refused(written, f"compiled models without graphs are not timed; {_EAGER}")
    elif key != "cudagraph_mode" or str(value) in _REPLAYED:
        server.account.assumed(written, f"graphs are replayed as with {_REPLAYED[0]}")
    else:
        server.account.refused(written, f"must be one of {', '.join(_REPLAYED)}, NONE")


def level(flag: Flag, server: Server) -> None:
    """Honour an optimization level."""
    if flag.value in ("2", "3"):
        server.account.no_effect(flag.written, "level 3 is level 2, which is the default")
    elif flag.value == "0":
        server.set("predictor.enforce_eager", True, flag)
    else:
        server.account.refused(flag.written, "step times are of level 2; instead: leave it out")
