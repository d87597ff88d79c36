"""The weight of the longest context among decodes with uneven contexts.

Decodes take as long as equal ones of the context mean + weight x (longest - mean). `skew.csv` of a
layer profile tells the weight: LLMServingSim 2.0 calls it alpha. A profile launches its kernels, an
engine replays them from CUDA graphs, and that is another kernel where the batch is small; what it
takes follows from the measured rows of large batches (`UnsplitDecodes`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mist_sim.hardware.interpolation import Plane

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]

# Contexts are split while sequences x KV heads stay below 0.8 x 2 x multiprocessors: FlashAttention
# 2, `num_splits_heuristic` and `set_params_splitkv` in csrc/flash_attn/flash_api.cpp.
_SPLITS_BELOW = 0.8 * 2
_RATIOS = np.array([0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
# Median shares of time that one long context adds: at most so much while contexts are split, and so
# much more from one measured number to the next where they are not any more. Profiles of one card
# with 8 and 4 KV heads show 0.01 at the last number split, and 0.22 at the next.
_EVEN, _JUMP = 0.1, 0.1
_UNEVEN = 0.95  # largest mean / longest context for which the law gives a weight
_EVERY = 4  # decodes from one point of the law to the next


@dataclass(frozen=True, slots=True)
class UnsplitDecodes:
    """A decode kernel with one block per sequence and KV head, which reads its whole context.

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

    def weight(self, num_decodes: float, ratio: Array) -> Array:
        """Return how much the longest context counts: from 0, as every other, to 1, alone.

        num_decodes: > 1. ratio: mean / longest context.
        """
        uneven = np.minimum(ratio, _UNEVEN)
        share = self.share(num_decodes, uneven)
        return np.clip(share * uneven / (1.0 - uneven), 0.0, 1.0)

    def _waves(self, num_decodes: Array | float) -> Array:
        return np.asarray(num_decodes * self.heads / self.slots)

    def _left(self, num_decodes: Array | float, ratio: Array, place: float) -> Array:
        """Return the unread rest of the longest context when the others end, in mean contexts.

        place: of the long sequence in the batch, from 0 to 1; its last head begins in that part
        of the last head's turn.
        """
        waves = self._waves(num_decodes)
        others = (num_decodes - 1.0 / ratio) / (num_decodes - 1.0)
        turns = np.maximum(1.0, np.minimum(waves, 1.0 + (1.0 - place) * waves / self.heads))
        return np.maximum(1.0 / ratio - others * turns, 0.0)

    def fitted(self, rows: pd.DataFrame) -> UnsplitDecodes:
        """Return the same with the speed-up that fits measured shares best (least squares).

        rows: of `skew.csv`, decodes alone. Only unsplit ones count, and of each number those with
            the fewest long sequences, which profiles list first.
        """
        some = _with_fewest_long(rows[rows["n"] >= self.first_unsplit])
        ratio = some["kv_mean"] / some["kv_big"]
        counts = some["n"].to_numpy(float)
        shares = (some["t_skew_us"] / some["t_mean_us"]).to_numpy(float) - 1.0
        left = self._left(counts, ratio.to_numpy(float), place=0.0)
        per_slowness = left / self._waves(counts)
        found = np.maximum(shares, 0.0) + left / counts
        slower = float(np.dot(per_slowness, found))
        speed_up = float(np.dot(per_slowness, per_slowness)) / slower if slower else 1.0
        return UnsplitDecodes(self.slots, self.heads, max(1.0, speed_up))


def weights_plane(rows: pd.DataFrame, unsplit: UnsplitDecodes | None = None) -> Plane | None:
    """Return the weight of the longest context by number of decodes and mean / longest context.

    rows: of `skew.csv`. None without rows. Beyond the last number and ratio their weights hold.
    unsplit: replaces measured weights where engines do not split contexts that the profile split,
        up to the first number that the profile did not split.

    Where rows show that the kernel stops splitting contexts (`last_split`), the weight jumps from
    one number of decodes to the next; other weights are linear in between.

    A measured weight is one for all ratios: then no longer context takes less time, and noise of
    nearly equal contexts, where there is little to measure, has no say.
    """
    if rows.empty:
        return None
    weights = _measured(rows)
    law = unsplit.fitted(rows) if unsplit and max(weights) >= unsplit.first_unsplit else None
    if law is None:
        if unsplit is None and (stop := last_split(rows)) is not None:
            later = min(count for count in weights if count > stop)
            weights.setdefault(stop + 1.0, weights[later])
        counts = sorted(weights)
        values = np.array([[weights[count]] for count in counts])
        return Plane(np.array(counts), np.ones(1), values, holds=True)
    first = min(count for count in weights if count >= law.first_unsplit)
    by_count = {n: np.full(len(_RATIOS), w) for n, w in weights.items() if n >= first}
    by_count |= {
        float(n): law.weight(n, _RATIOS) for n in (2, 3, *range(_EVERY, int(first), _EVERY))
    }
    counts = sorted(by_count)
    return Plane(np.array(counts), _RATIOS, np.stack([by_count[n] for n in counts]), holds=True)


def last_split(rows: pd.DataFrame) -> float | None:
    """Return the largest measured number of decodes whose contexts the kernel splits over blocks.

    rows: of `skew.csv`, decodes alone. None where no number shows that it stops: while contexts are
    split a long one among short ones takes next to no more time than equal ones (see `_EVEN`);
    from where they are not, it takes all of a sudden a share more.
    """
    some = _with_fewest_long(rows)
    medians = (some["t_skew_us"] / some["t_mean_us"] - 1.0).groupby(some["n"]).median()
    counts, shares = medians.index.to_numpy(float), medians.to_numpy(float)
    jumps = np.diff(shares)
    if not len(jumps) or jumps.max() < _JUMP or shares[jumps.argmax()] > _EVEN:
        return None
    return float(counts[jumps.argmax()])


def _with_fewest_long(rows: pd.DataFrame) -> pd.DataFrame:
    """Return, of each number of decodes, the rows with the fewest long ones."""
    ratio = rows["kv_mean"] / rows["kv_big"]
    return rows[ratio == ratio.groupby(rows["n"]).transform("min")]


def _measured(rows: pd.DataFrame) -> dict[float, float]:
    """Return weights by number of decodes that fit the rows' times best.

    One weight for all rows minimises the sum of squared relative errors.
    """
    uneven = 1.0 - rows["t_mean_us"] / rows["t_skew_us"]
    longest = (rows["t_max_us"] - rows["t_mean_us"]) / rows["t_skew_us"]
    products = rows.assign(found=uneven * longest, whole=longest * longest)
    sums = products.groupby("n")[["found", "whole"]].sum()
    sums = sums[sums["whole"] > 0]
    weights = (sums["found"] / sums["whole"]).clip(0.0, 1.0)
    return {float(n): float(weight) for n, weight in zip(weights.index, weights, strict=True)}
