"""The limits of an engine that nobody sets: those that vLLM's server takes on the GPU.

Source: `get_batch_defaults` and `_set_default_max_num_seqs_and_batched_tokens_args` in
`vllm/engine/arg_utils.py`, vLLM 0.12, for `vllm serve` (`UsageContext.OPENAI_API_SERVER`). vLLM
has other figures for TPUs, which are not taken here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mist_sim.hardware import GpuSpec
from mist_sim.scenario.families import SCHEDULER
from mist_sim.scenario.parts import Part

_LARGE_MEMORY = 70 * 2**30  # bytes


class ServerLimits(NamedTuple):
    """Sequences that run at once, and tokens of a step."""

    max_num_seqs: int
    max_num_batched_tokens: int


_LARGE, _SMALL = ServerLimits(1024, 8192), ServerLimits(256, 2048)


def server_limits(gpu: GpuSpec) -> ServerLimits:
    """Return the limits that vLLM's server takes on a GPU.

    GPUs of 70 GiB and more take many, but for those with "a100" in their name.
    """
    large = gpu.memory >= _LARGE_MEMORY and "a100" not in gpu.name.lower()
    return _LARGE if large else _SMALL


def with_server_limits(scheduler: object, gpu: GpuSpec) -> object:
    """Return what a file says about a scheduler, with the limits that it leaves to the server.

    A limit is left to the server where the file does not name it and the scheduler's class has
    vLLM's figure for small GPUs as its default. As in vLLM, no more sequences run by default than
    a step has tokens. Anything but a name or a mapping is returned as it is.
    """
    said: object = {"type": scheduler} if isinstance(scheduler, str) else scheduler
    if not isinstance(said, dict):
        return scheduler
    name = str(said.get("type", SCHEDULER.default))
    if name not in SCHEDULER.registry:
        return scheduler
    own = _defaults(SCHEDULER.part_type(name))
    limits = {
        key: value
        for key, value in server_limits(gpu)._asdict().items()
        if key not in said and own.get(key) == getattr(_SMALL, key)
    }
    tokens = said.get("max_num_batched_tokens")
    if "max_num_seqs" in limits and isinstance(tokens, int) and tokens >= 1:
        limits["max_num_seqs"] = min(limits["max_num_seqs"], tokens)
    return {**said, **limits}


def by_gpu(key: str, default: object) -> str | None:
    """Return both defaults of a limit that is left to the server; None for any other option.

    key: below a client, such as "scheduler.max_num_seqs". default: that of the scheduler's class.
    """
    part, _, name = key.partition(".")
    if part != "scheduler" or name not in ServerLimits._fields or default is None:
        return None
    return f"{getattr(_SMALL, name)} or {getattr(_LARGE, name)}, by GPU"


def _defaults(part: type[Part]) -> Mapping[str, object]:
    return {info.alias or name: info.default for name, info in part.model_fields.items()}
