"""Designs whose servers start: sets options without which vLLM would not start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mist_sim.errors import ScenarioError
from mist_sim.scenario import Scenario
from mist_sim.scenario.loading import as_data


def startable(scenario: Scenario) -> Scenario:
    """Return a scenario of designs made here, with the options that its servers need to start.

    If the longest context is the model's default and does not fit into memory, the engine gets the
    longest one that fits. If not all sequences have room for their states, it gets as many
    sequences as do. The scenario itself if all engines start, or cannot be built.
    """
    try:
        changes = {
            f"clients.{position}.{key}": value
            for position, part in enumerate(scenario.clients)
            for key, value in part.said_to_start(scenario.model).items()
        }
    except ScenarioError:  # `build` says which key is wrong
        return scenario
    return Scenario.from_dict(as_data(scenario), changes) if changes else scenario


def told_to_start(asked: Scenario, made: Scenario) -> Iterator[str]:
    """Yield a sentence for a longest context that a design has, and the scenario asked for not."""
    said, own = _lengths(asked), _lengths(made)
    if said == {None} and own != {None}:
        fits = " and ".join(f"{length:,}" for length in sorted(own - {None}))
        yield (
            "The model's longest context has no room beside the weights, and vLLM would not start "
            f"with it: --max-model-len is what fits, {fits} tokens. Where a server finds less "
            "room, --max-model-len auto (vLLM 0.14 and newer) takes what there is."
        )


def _lengths(scenario: Scenario) -> set[Any]:
    return {getattr(part, "max_model_len", None) for part in scenario.clients}
