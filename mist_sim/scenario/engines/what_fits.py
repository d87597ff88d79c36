"""Larger engines, GPUs and smaller weights for a model that does not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from mist_sim.clients import EngineConfig
from mist_sim.clients.kv_cache.lane_memory import LaneMemory
from mist_sim.errors import ScenarioError
from mist_sim.hardware import load_gpu
from mist_sim.hardware.devices.device_loading import fitted_gpus
from mist_sim.models import load_model
from mist_sim.scenario.engines.server_start import longest_that_fits

_WIDEST = 8  # GPUs of a node
_WEIGHTS = ("fp8", "int4")  # int4: as AWQ and GPTQ store them

Change = dict[str, Any]


def what_fits(
    config: EngineConfig,
    memory_of: Callable[[EngineConfig], LaneMemory],
    least: int | None = None,
) -> str:
    """Return changes of an engine that give it room, with the tokens that its KV cache then has.

    memory_of: its KV cache; raises ScenarioError if there is no room for one. least: tokens of the
        longest request; None: they are not known, and changes that hold the model's longest context
        are named beside those that hold less.
    Single changes, or pairs of them if no single one does; empty if no pair does either.
    """
    ways = [list(each) for each in (_widths(config), _formats(config), _larger_gpus(config))]
    found = [text for way in ways for text in _with_room(config, memory_of, way, least)]
    if not found:
        for i, j in ((0, 1), (0, 2), (1, 2)):
            both = [first | second for first in ways[i][-1:] for second in ways[j]]
            found += _with_room(config, memory_of, both, least)
    return " or ".join(found)


def _with_room(
    config: EngineConfig,
    memory_of: Callable[[EngineConfig], LaneMemory],
    changes: list[Change],
    least: int | None,
) -> Iterator[str]:
    """Yield the first of some changes that gives room, and the first that gives enough."""
    is_first = True
    for change in changes:
        try:
            memory = memory_of(replace(config, **change))
        except ScenarioError:
            continue
        enough = _context(config) if least is None else least
        is_enough = longest_that_fits(memory, enough) == enough
        if is_enough or (is_first and least is None):
            told = " with ".join(f"{name} {value}" for name, value in change.items())
            weights = "AWQ or GPTQ weights, " if "int4" in change.values() else ""
            yield f"{told} ({weights}KV cache of {memory.num_tokens:,} tokens)"
            is_first = False
        if is_enough:
            return


def _context(config: EngineConfig) -> int:
    """Return the tokens of the longest request that an engine takes."""
    if isinstance(config.max_model_len, int) and config.max_model_len > 0:
        return config.max_model_len
    model = config.model
    return (load_model(model) if isinstance(model, str) else model).max_position_embeddings


def _widths(config: EngineConfig) -> Iterator[Change]:
    width = config.tensor_parallel_size
    while (width := 2 * width) <= _WIDEST:
        yield {"tensor_parallel_size": width}


def _formats(config: EngineConfig) -> Iterator[Change]:
    said = _WEIGHTS.index(config.quantization) + 1 if config.quantization in _WEIGHTS else 0
    yield from ({"quantization": name} for name in _WEIGHTS[said:])


def _larger_gpus(config: EngineConfig) -> Iterator[Change]:
    """Yield GPUs with more memory whose step times are fitted, the smallest first."""
    own = load_gpu(config.gpu).memory
    larger = {gpu.name: gpu.memory for gpu in fitted_gpus() if gpu.memory > own}
    yield from ({"gpu": name} for name in sorted(larger, key=lambda name: (larger[name], name)))
