"""Measured states and modules of attention, in the quantities that their time depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Figures = Mapping[str, Mapping[str, float]]
"""Figures of `hardware.devices.kernels.Kernel` by kernel: {"sparse": {"floor": 3e-05, ...}}."""


@dataclass(frozen=True, slots=True)
class Part:
    """One kernel of each row, at the peaks of its GPU; arrays of one value a row.

    compute, memory: seconds of its FLOPs and bytes. depth: thousands of tokens that a state goes
    through one after the other.
    """

    kernel: str
    compute: Array
    memory: Array
    depth: Array

    def seconds(self, figures: Mapping[str, float], prefill: bool) -> Array:
        """Return the seconds beyond the floor, as the roofline has them.

        Prompts add compute to memory, and states wait for their chunks beside both
        (`StateTime`, `PromptAttention`); decodes take the longer of the two (`DecodeAttention`).
        """
        compute = self.compute / figures.get("mfu", 1.0)
        memory = self.memory / figures.get("mbu", 1.0)
        if not prefill:
            return np.maximum(compute, memory)
        return np.hypot(figures.get("serial", 0.0) * self.depth, compute + memory)

    def only(self, chosen: NDArray[np.bool_]) -> Part:
        """Return some of the rows."""
        columns = (each[chosen] for each in (self.compute, self.memory, self.depth))
        return Part(self.kernel, *columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixerRows:
    """Timings of one kind of mixers; arrays of one value a row.

    prefill: whether of prompts. seconds: measured. known: the part spent in other kernels.
    parts: kernels; kernels of one name share a floor. model, heads: of the measurement.
    """

    prefill: bool
    seconds: Array
    known: Array
    parts: Sequence[Part]
    model: NDArray[np.str_]
    heads: Array

    def __len__(self) -> int:
        return len(self.seconds)

    def only(self, chosen: NDArray[np.bool_]) -> MixerRows:
        """Return some of the rows."""
        return MixerRows(
            prefill=self.prefill,
            seconds=self.seconds[chosen],
            known=self.known[chosen],
            parts=[part.only(chosen) for part in self.parts],
            model=self.model[chosen],
            heads=self.heads[chosen],
        )

    @property
    def kernels(self) -> list[str]:
        """Names of the kernels."""
        return list(dict.fromkeys(part.kernel for part in self.parts))

    def times(self, figures: Figures) -> Array:
        """Return the seconds of each row with the given figures."""
        found = self.known + sum(figures[name].get("floor", 0.0) for name in self.kernels)
        for part in self.parts:
            found = found + part.seconds(figures[part.kernel], self.prefill)
        return np.asarray(found)

    def errors(self, figures: Figures) -> Array:
        """Return the absolute relative errors of each row."""
        return np.abs(self.times(figures) / self.seconds - 1)


def joined(rows: Sequence[MixerRows]) -> MixerRows:
    """Return the rows of several tables of one kind."""
    first = rows[0]
    parts = [
        Part(
            part.kernel,
            np.concatenate([each.parts[at].compute for each in rows]),
            np.concatenate([each.parts[at].memory for each in rows]),
            np.concatenate([each.parts[at].depth for each in rows]),
        )
        for at, part in enumerate(first.parts)
    ]
    return MixerRows(
        prefill=first.prefill,
        seconds=np.concatenate([each.seconds for each in rows]),
        known=np.concatenate([each.known for each in rows]),
        parts=parts,
        model=np.concatenate([each.model for each in rows]),
        heads=np.concatenate([each.heads for each in rows]),
    )
