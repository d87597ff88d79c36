"""The parts of a table of step times, whatever file it came from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.interpolation.grids import Curve, Plane
from mist_sim.hardware.interpolation.volumes import Volume
from mist_sim.models.spec import ModelSpec


@dataclass(frozen=True, kw_only=True)
class StepTables:
    """Seconds of the parts of a step's time, which are summed.

    alone: time of a step without prompts by its tokens (one per decode).
    tokens: time of a step with prompts by its tokens, new ones and decodes.
    sequences: logits and sampling, by sequences that get a token.
    prefill: added by a chunk, by its new tokens and its context.
    next_prefill: subtracted for every chunk but the longest: the saving of one launch for all.
    decode: added by the decodes of a step without prompts, by their number and mean context.
    beside: added by decodes beside prompts, by their number and mean context; if mixed steps were
        measured, by new tokens and decodes, context of the chunk and mean context (beside several
        chunks the largest counts).
    uneven, uneven_beside: weight of the longest context, alone and beside prompts, by number of
        decodes and mean / longest context: decodes take as long as equal ones of the context
        mean + weight x (longest - mean). None where it was not measured.
    least_even, least_even_beside: the lowest measured mean / longest context, alone and beside
        prompts.
    most_tokens: new tokens and decodes of the largest measured step with prompts.
    moved: (tokens, experts) of measured times of experts that fell with more work, and were
        corrected.
    other_rates: why the times need a `step_time_scale` (see `PredictorTraits.needs_scale`).
    """

    alone: Curve
    tokens: Curve
    sequences: Curve
    prefill: Plane
    next_prefill: float = 0.0
    decode: Plane
    beside: Plane | Volume
    uneven: Plane | None = None
    uneven_beside: Plane | None = None
    least_even: float = 0.0
    least_even_beside: float = 0.0
    most_tokens: float
    moved: tuple[tuple[float, ...], ...] = ()
    other_rates: str = ""


class Reads(Protocol):
    """Reads the tables of one format. Raises ScenarioError for other files."""

    def __call__(
        self, path: Path, model: ModelSpec, cluster: Cluster, subset: str | None
    ) -> StepTables: ...


TABLE_FORMATS: dict[str, Reads] = {}
WITH_SUBSETS: set[str] = set()
"""Formats whose files hold several settings."""
OF_LAYERS: set[str] = set()
"""Formats whose files hold layers of one rank, without all-reduces."""


def table_format(
    name: str, *, has_subsets: bool = False, of_layers: bool = False
) -> Callable[[Reads], Reads]:
    """Register a reader under the name that scenarios use."""

    def register(reads: Reads) -> Reads:
        TABLE_FORMATS[name] = reads
        if has_subsets:
            WITH_SUBSETS.add(name)
        if of_layers:
            OF_LAYERS.add(name)
        return reads

    return register
