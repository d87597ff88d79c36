"""`--spec-method`, `--spec-model` and `--spec-tokens`: entries of `--speculative-config`.

Source: `EngineArgs.create_speculative_config` in vllm/engine/arg_utils.py (0.33).
"""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mist_sim.scenario.from_vllm.flags import Flag
from mist_sim.scenario.from_vllm.tables import mapping

KEYS: Mapping[str, str] = {
    "--spec-method": "method",
    "--spec-model": "model",
    "--spec-tokens": "num_speculative_tokens",
}
"""Keys of the config, by flag."""

_CONFIG = "--speculative-config"


def merged(flags: Sequence[Flag]) -> list[Flag]:
    """Return flags with these as entries of the config; a fault where the config says one, too."""
    own = {KEYS[flag.name]: flag.value for flag in flags if flag.name in KEYS and not flag.fault}
    if not own:
        return list(flags)
    configs = [flag for flag in flags if flag.name == _CONFIG and not flag.fault]
    try:
        config = mapping(configs[-1].value) if configs else {}
    except (ArgumentTypeError, RecursionError):  # which its handler says
        return [flag for flag in flags if flag.name not in KEYS or flag.fault]
    last = {flag.name: flag for flag in flags}
    others = []
    for flag in flags:
        key = None if flag.fault else KEYS.get(flag.name)
        if key in config:
            others.append(replace(flag, fault=f"{_CONFIG} says {key}, too; leave one out"))
        elif key is not None and last[flag.name] is not flag:
            others.append(replace(flag, fault="is given again behind it; leave one out"))
        elif key is None and flag not in configs:
            others.append(flag)
    entries = {key: int(said) if said.isdecimal() else said for key, said in own.items()}
    return [*others, Flag(_CONFIG, (json.dumps({**config, **entries}),))]
