"""Flags with which versions plan steps ahead or not: executors and ways to draft.

Source: `VllmConfig.__post_init__` in vllm/config/vllm.py, `Executor.supports_async_scheduling` and
its overrides in vllm/v1/executor (0.14 to 0.33).
"""

from __future__ import annotations

from typing import Any

from mist_sim.scenario.engines.version_names import version_of
from mist_sim.scenario.from_vllm.flags import Flag
from mist_sim.scenario.from_vllm.server import ELSEWHERE, Server

_ASYNC = "--async-scheduling"
_KEY = "async_scheduling"
_RAY = range(14, 21)
_RAY_V1 = "VLLM_USE_RAY_V2_EXECUTOR_BACKEND"  # "0" asks for the executor of before
_RAY_V2 = range(21, 33)  # releases that have that variable
_NGRAMS_OF_GPU = range(18, 33)  # releases which plan ahead with them, not with others
_BY_DEFAULT = "that is so by default"


def executor(flag: Flag, server: Server) -> None:
    """Plan no step ahead in versions whose executor for Ray cannot."""
    if flag.value != "ray":
        server.account.no_effect(flag.written, "how processes find each other changes no step")
    elif server.engine == ELSEWHERE:
        server.account.assumed(
            flag.written,
            "vLLM to 0.20 plans no step ahead with Ray; for such an engine say --engine in place "
            "of --set engine, or async_scheduling=false",
        )
    elif server.minor in _RAY or _has_old_executor(server):
        _not_ahead(flag.written, "this version plans no step ahead with Ray", server)
    else:
        server.account.no_effect(flag.written, "this version plans ahead with Ray, too")


def padded_drafts(value: Any, written: str, server: Server) -> None:
    """Plan no step ahead where drafts are not padded to equal lengths."""
    if value is not True:
        server.account.no_effect(written, _BY_DEFAULT)
    elif version_of(None if server.engine == ELSEWHERE else server.engine).default(_KEY):
        _not_ahead(written, "with it vLLM plans no step ahead", server)
    else:
        server.account.no_effect(written, "this version plans no step ahead")


def ngrams(method: str, written: str, server: Server) -> None:
    """Plan ahead with n-grams that the GPU looks for, and with no others, as versions do."""
    if server.minor not in _NGRAMS_OF_GPU:
        return
    if method == "ngram_gpu" and _ASYNC not in server.said:
        server.set(_KEY, True, written)
    elif method in ("ngram", "[ngram]") and _said(server):
        server.account.refused(
            written,
            f"this version does not start with it and {_ASYNC}; instead: ngram_gpu, or leave "
            f"{_ASYNC} out",
        )


def _not_ahead(written: str, why: str, server: Server) -> None:
    if _said(server):
        server.account.refused(
            written, f"{why}, and does not start with {_ASYNC}; leave one of them out"
        )
    else:
        server.set(_KEY, False, written)


def _said(server: Server) -> bool:
    """Whether the command asks for steps that are planned ahead."""
    return _ASYNC in server.said and server.said[_ASYNC].is_on


def _has_old_executor(server: Server) -> bool:
    """Whether a variable asks for the executor of the versions before."""
    if server.minor not in _RAY_V2 or server.variables.get(_RAY_V1) != "0":
        return False
    server.handled.add(_RAY_V1)
    return True
