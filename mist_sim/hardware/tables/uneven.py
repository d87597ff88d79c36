"""By which share decodes of uneven contexts take longer than equal ones of the same mean.

Measured shares come from `skew.csv` of a layer profile. A profile launches its kernels, an engine
replays them from CUDA graphs, and that is another kernel where the batch is small; what it takes
follows from the measured shares of large batches (`UnsplitDecodes`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mist_sim.hardware.grids import Plane
from mist_sim.hardware.tables.reading import curve

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]

# Contexts are split while sequences x KV heads stay below 0.8 x 2 x multiprocessors: FlashAttention
# 2, `num_splits_heuristic` and `set_params_splitkv` in csrc/flash_attn/flash_api.cpp.
_SPLITS_BELOW = 0.8 * 2
# mean / longest context, below what profiles have; a share grows as 1 / ratio
_RATIOS = (0.01, 0.0125, 0.016, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2)
_EVERY = 4  # decodes from one point of the law to the next


@dataclass(frozen=True, slots=True)
class UnsplitDecodes:
    """A decode kernel with one block for each sequence and KV head, which reads its whole context.

    CUDA graphs are captured for the longest context that the engine accepts (`max_seq_len` in
    vLLM's `gpu_model_runner.py`), and FlashAttention 2 splits by that length: a part is longer
    than real contexts, so they are not split. The blocks share the memory's bandwidth; when the
    others are done, the longest sequence goes on alone, `speed_up` times as fast as before.

    slots: blocks that run at once. heads: KV heads of a rank, one after another in the queue.
    speed_up: rate of a block alone over its share of the bandwidth when all slots are busy.
    """

    slots: int
    heads: int
    speed_up: float = 1.0

    @property
    def first_unsplit(self) -> int:
        """The smallest number of sequences that are not split when launched either."""
        return int(np.ceil(_SPLITS_BELOW * self.slots / self.heads))

    def share(self, num_decodes: float, ratio: Array) -> Array:
        """Return by which share one long context among equal ones makes the kernel take longer.

        num_decodes: > 1. ratio: mean / longest context. The long one is anywhere in the batch.
        """
        left = self._left(num_decodes, ratio, place=0.5)
        alone = 1.0 / max(1.0, float(self._waves(num_decodes)) * self.speed_up)
        return left * max(0.0, alone - 1.0 / num_decodes)

    def _waves(self, num_decodes: Array | float) -> Array:
        return np.asarray(num_decodes * self.heads / self.slots)

    def _left(self, num_decodes: Array | float, ratio: Array, place: float) -> Array:
        """Return what the longest has still to read when the others end, in mean contexts.

        place: of the long sequence in the batch, from 0 to 1; its last head begins in that part
        of the last head's turn.
        """
        waves = self._waves(num_decodes)
        others = (num_decodes - 1.0 / ratio) / (num_decodes - 1.0)
        turns = np.maximum(1.0, np.minimum(waves, 1.0 + (1.0 - place) * waves / self.heads))
        return np.maximum(1.0 / ratio - others * turns, 0.0)

    def fitted(self, rows: pd.DataFrame) -> UnsplitDecodes:
        """Return the same with the speed-up that meets measured shares best (least squares).

        rows: n, ratio, share of decodes alone. Those that are not split count, and of each number
            those with the fewest long sequences, which profiles put first.
        """
        some = rows[rows["n"] >= self.first_unsplit]
        some = some[some["ratio"] == some.groupby("n")["ratio"].transform("min")]
        counts, shares = some["n"].to_numpy(float), some["share"].to_numpy(float)
        left = self._left(counts, some["ratio"].to_numpy(float), place=0.0)
        per_slowness = left / self._waves(counts)
        found = np.maximum(shares, 0.0) + left / counts
        slower = float(np.dot(per_slowness, found))
        speed_up = float(np.dot(per_slowness, per_slowness)) / slower if slower else 1.0
        return UnsplitDecodes(self.slots, self.heads, max(1.0, speed_up))


def share_plane(rows: pd.DataFrame, unsplit: UnsplitDecodes | None = None) -> Plane | None:
    """Return median shares by number of decodes and mean / longest context; none at ratio 1.

    rows: n, ratio, share. None without rows.
    unsplit: takes the place of measured shares where engines do not split what the profile did,
        and goes on to the first measured number that it did not split; from there on it carries
        measured shares on, in parallel, to contexts that are less even than measured ones.
    """
    if rows.empty:
        return None
    law = unsplit.fitted(rows) if unsplit and (rows["n"] >= unsplit.first_unsplit).any() else None
    ratios = np.append(np.union1d(rows["ratio"], _RATIOS if law else ()), 1.0)
    by_count = dict(_measured(rows, ratios))
    if law:
        first = min(count for count in by_count if count >= law.first_unsplit)
        lowest = rows.groupby("n")["ratio"].min()
        by_count = {
            count: row + _beyond(law, count, ratios, float(lowest[count]))
            for count, row in by_count.items()
            if count >= first
        }
        by_count |= {float(n): law.share(n, ratios) for n in range(_EVERY, int(first), _EVERY)}
    by_count[1.0] = np.zeros(len(ratios))
    counts = sorted(by_count)
    values = np.stack([by_count[count] for count in counts])
    return Plane(np.array(counts), ratios, values, holds=True)


def _beyond(law: UnsplitDecodes, count: float, ratios: Array, lowest: float) -> Array:
    """Return what the law adds to the share at the lowest measured ratio; 0 from there on."""
    return law.share(count, np.minimum(ratios, lowest)) - law.share(count, np.array(lowest))


def _measured(rows: pd.DataFrame, ratios: Array) -> Iterator[tuple[float, Array]]:
    for count, some in rows.groupby("n"):
        points, shares = curve(some, "ratio", "share")
        points, shares = np.append(points, 1.0), np.append(shares, 0.0)
        yield float(str(count)), np.interp(ratios, points, np.maximum(shares, 0.0))
