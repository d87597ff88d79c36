"""Flags that older versions lack although a scenario of them has what the flags stand for.

Source: `EngineArgs.add_cli_args` in vllm/engine/arg_utils.py (0.14.1, 0.19.0, 0.24.0, 0.33.0).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mist_sim.scenario.engines.versions import VERSIONS
from mist_sim.scenario.from_vllm.flags import Flag

_LAST_WITHOUT: Mapping[str, str] = {
    "--moe-backend": "vllm-0.14",
    "--mamba-cache-mode": "vllm-0.14",
    "--lora-target-modules": "vllm-0.14",
    "--language-model-only": "vllm-0.14",
    "--spec-method": "vllm-0.19",
    "--spec-model": "vllm-0.19",
    "--spec-tokens": "vllm-0.19",
}


def marked(flags: Sequence[Flag], engine: str | None) -> list[Flag]:
    """Return flags, with a fault where the version lacks them. engine: known, or anything else."""
    return [
        replace(flag, fault=f"{engine} does not have it; leave it out, or name a newer --engine")
        if not flag.fault and _lacks(engine, flag.name)
        else flag
        for flag in flags
    ]


def _lacks(engine: str | None, flag: str) -> bool:
    order, last = list(VERSIONS), _LAST_WITHOUT.get(flag)
    return last is not None and engine in order and order.index(engine) <= order.index(last)
