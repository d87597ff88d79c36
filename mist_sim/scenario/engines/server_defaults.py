"""Default limits of an engine: those of vLLM's server on the GPU.

Source: `get_batch_defaults` and `_set_default_max_num_seqs_and_batched_tokens_args` in
`vllm/engine/arg_utils.py`, for `vllm serve` (`UsageContext.OPENAI_API_SERVER`); the figures of each
version are in `versions.py`. vLLM has other figures for TPUs, which are not taken here.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from mist_sim.clients.scheduling import ChunkedScheduler, Scheduler
from mist_sim.hardware import GpuSpec, device_of
from mist_sim.scenario.engines.engine_version import LIMITS, EngineVersion, ServerLimits
from mist_sim.scenario.engines.versions import NEWEST
from mist_sim.scenario.format.families import SCHEDULER


def server_limits(
    gpu: GpuSpec, num_drafts: int = 0, version: EngineVersion = NEWEST
) -> ServerLimits:
    """Return the limits of vLLM's server on a GPU.

    GPUs of 70 GiB or more have larger limits, except those with "a100" in their name. A GPU based
    on a catalog entry keeps that entry's limits, even if its memory was changed.

    num_drafts: tokens that every sequence verifies in a step besides its own. The number of
    sequences is limited by the tokens of a step (vLLM's limits ignore drafts; it then verifies
    fewer).
    """
    device = device_of(gpu)
    limits: ServerLimits = version.default(LIMITS).of(device.memory, device.name)
    most = _most_verified(limits.max_num_batched_tokens, num_drafts)
    return limits._replace(max_num_seqs=min(limits.max_num_seqs, most))


def _most_verified(num_tokens: int, num_drafts: int) -> int:
    """Return how many sequences can verify so many drafts each in a step; at least 1."""
    return max(1, num_tokens // (1 + num_drafts))


def with_server_limits(
    scheduler: object, gpu: GpuSpec, num_drafts: int = 0, version: EngineVersion = NEWEST
) -> object:
    """Return a file's scheduler, with server defaults for the limits that it leaves out.

    A limit gets the server's default if the file leaves it out and the scheduler's class inherits
    it from `Scheduler` or `ChunkedScheduler`; a class that declares it itself keeps its own
    default. As in vLLM, no more sequences run by default than a step has tokens; with chunked
    prefill, no more than it has tokens to verify `num_drafts` for. Any value but a name or a
    mapping is returned unchanged.
    """
    said: object = {"type": scheduler} if isinstance(scheduler, str) else scheduler
    if not isinstance(said, dict):
        return scheduler
    name = str(said.get("type", SCHEDULER.default))
    if name not in SCHEDULER.registry:
        return scheduler
    plugin = SCHEDULER.registry[name]
    inherited = inherited_options(plugin)
    limits = {
        key: value
        for key, value in server_limits(gpu, version=version)._asdict().items()
        if key not in said and key in inherited
    }
    own = getattr(plugin, "max_num_batched_tokens", None)
    tokens = {"max_num_batched_tokens": own, **said, **limits}["max_num_batched_tokens"]
    if "max_num_seqs" in limits and isinstance(tokens, int) and tokens >= 1:
        most = _most_verified(tokens, num_drafts if issubclass(plugin, ChunkedScheduler) else 0)
        limits["max_num_seqs"] = min(limits["max_num_seqs"], most)
    return {**said, **limits}


def by_gpu(key: str, default: object) -> str | None:
    """Return both defaults of a limit that depends on the GPU; None for any other option.

    key: below a client, such as "scheduler.max_num_seqs". default: that of the scheduler's class.
    """
    part, _, name = key.partition(".")
    if part != "scheduler" or name not in ServerLimits._fields or default is None:
        return None
    limits = NEWEST.default(LIMITS)
    figures = {getattr(each, name) for each in (limits.small, *(tier[2] for tier in limits.tiers))}
    return f"{' or '.join(map(str, sorted(figures)))}, by GPU"


def inherited_options(scheduler: type[Any]) -> set[str]:
    """Return the options that a class inherits from our schedulers and does not declare itself."""
    ours = {field.name: field for base in (Scheduler, ChunkedScheduler) for field in fields(base)}
    theirs = fields(scheduler) if is_dataclass(scheduler) else ()
    return {field.name for field in theirs if field is ours.get(field.name)}
