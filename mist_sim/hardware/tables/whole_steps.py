"""Tables of whole steps: prompts alone, decodes alone, and perhaps both together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mist_sim.hardware.interpolation import (
    Array,
    Curve,
    Plane,
    Volume,
    carried_on,
    resampled,
    rising,
    rising_plane,
)
from mist_sim.hardware.tables.base import StepTables


@dataclass(frozen=True)
class Grid:
    """Points of each axis, and values at all of them."""

    points: list[Array]
    values: Array


def whole_steps(prefill: Grid, decode: Grid, mixed: Grid | None = None) -> StepTables:
    """Return the tables of measured steps, in seconds.

    prefill: by new tokens and context. decode: by decodes and mean context. mixed: by new tokens,
        decodes, context and mean context. Several prompts in a step count as one of all their
        tokens, plus the time of each one's context. Without measured mixed steps, decodes beside
        prompts count as prompt tokens plus the time of their contexts.
    """
    (sizes, contexts), (counts, lengths) = prefill.points, decode.points
    prompts, decodes = rising(prefill.values, 0, 1), rising(decode.values, 0, 1)
    tokens = Curve(sizes, prompts[:, 0])
    nothing = Curve(np.zeros(1), np.zeros(1))
    beside: Plane | Volume
    if mixed is None:
        beside = rising_plane(counts, lengths, decodes - decodes[:, :1], decodes[:, :1])
    else:
        new, counted, context, means = mixed.points
        alone = resampled(resampled(prompts, sizes, new, 0), contexts, context, 1)
        alone = alone[:, np.newaxis, :, np.newaxis]

        def without(new: Array, counted: Array, *_: Array) -> Array:
            """Seconds of prompts alone, and of the tokens that the decodes add to them."""
            more = [[tokens.at(int(c + n)) - tokens.at(int(c)) for n in counted] for c in new]
            return np.asarray(alone + np.array(more)[:, :, np.newaxis, np.newaxis])

        values = rising(mixed.values, 0, 1, 2, 3) - without(new, counted)
        beside = carried_on((new, counted, context, means), values, without)
    return StepTables(
        alone=nothing,
        tokens=tokens,
        sequences=nothing,
        prefill=rising_plane(sizes, contexts, prompts - prompts[:, :1], prompts[:, :1]),
        decode=rising_plane(counts, lengths, decodes),
        beside=beside,
        most_tokens=float(sizes[-1] + (0 if mixed is None else mixed.points[1][-1])),
    )
