"""Flags that older versions lack although a scenario of them has what the flags stand for.

Source: `EngineArgs.add_cli_args` in vllm/engine/arg_utils.py (0.10 to 0.33).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mist_sim.scenario.engines.versions import VERSIONS
from mist_sim.scenario.from_vllm.flags import Flag

_SINCE: Mapping[str, int] = {
    "--moe-backend": 17,
    "--mamba-cache-mode": 16,
    "--lora-target-modules": 19,
    "--language-model-only": 17,
    "--spec-method": 22,
    "--spec-model": 22,
    "--spec-tokens": 22,
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
    version = VERSIONS.get(engine or "")
    return version is not None and version.minor < _SINCE.get(flag, 0)
