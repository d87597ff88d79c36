"""Measured times of a layer's mixture of experts, by tokens and by the number of experts used.

`moe.csv` of a layer profile: tokens, activated_experts, time_us, perhaps ep. A row is the whole
block of one layer on one rank, router included, when so many of the rank's experts get tokens.
Without `ep` each token is for as many experts as the model sends it to. With it, a row is a rank of
so many expert-parallel ones that is given all their tokens, each for an equal share of those
experts: `ep` 2 of a model that sends tokens to 8 experts has 4 for each. Source of the form: the
profiles of LLMServingSim 2 (docs/docs/profiler/output-bundle.md there).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mist_sim.errors import ScenarioError, listed
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.expert_exchange import exchange_of
from mist_sim.hardware.interpolation import Array, Axis
from mist_sim.hardware.tables.base import measured_grid
from mist_sim.models.moe import MoeSpec
from mist_sim.models.spec import ModelSpec

if TYPE_CHECKING:
    import pandas as pd

AXES = ("tokens", "activated_experts")
RANKS = "ep"


class ExpertTimes:
    """Seconds of the experts of all layers, by the tokens of a step of one replica.

    With expert parallelism a rank computes its share of the tokens of all replicas, which are
    assumed to have equally many; the busiest rank counts. The number of experts used by a batch is
    the roofline's, on the busiest rank (`MoeSpec.on_busiest_rank`).

    Measured cells are reproduced exactly, except those that fall with more tokens or experts: they
    are corrected and named.

    points: tokens of a step between which times are linear. most_tokens: the largest measured
        number.
    moved: (tokens, experts) of the corrected cells.
    """

    def __init__(
        self,
        rows: pd.DataFrame,
        moe: MoeSpec,
        model: ModelSpec,
        cluster: Cluster,
        unit: float,
        where: str,
    ) -> None:
        replicas, ranks = cluster.num_sharing_replicas, cluster.expert_parallel_size
        shared_by = ranks
        if RANKS in rows:
            rows, shared_by = _of_ranks(rows, ranks, where), 1
        (tokens, activated), values, self.moved = measured_grid(rows, AXES, "time_us", where)
        self._axes = Axis(tokens), Axis(activated)
        seconds = values * (unit * model.num_moe_layers)
        self._seconds = self._axes[1].stretched(self._axes[0].stretched(seconds, 0), 1)
        self._moe, self._cluster = moe, cluster
        self._exchange = exchange_of(model, cluster)
        self._share = replicas * cluster.expert_load_imbalance / shared_by
        self.most_tokens = float(tokens[-1] / self._share)
        self.points = np.concatenate([tokens / self._share, _between(self.most_tokens)])

    def times(self, tokens: Array) -> Array:
        """Return the seconds of steps with so many tokens on every replica, exchanges included."""
        replicas, ranks = self._cluster.num_sharing_replicas, self._cluster.expert_parallel_size
        routed = tokens * replicas
        reached = np.array([self._moe.on_busiest_rank(each, ranks) for each in routed.tolist()])
        seconds = self._at(tokens * self._share, reached)
        if (exchange := self._exchange) is not None:
            pairs = zip(tokens.tolist(), routed.tolist(), strict=True)
            seconds += np.array([exchange.seconds(mine, all_) for mine, all_ in pairs])
        return seconds

    def _at(self, tokens: Array, reached: Array) -> Array:
        (i, along), (j, across) = self._axes[0].places(tokens), self._axes[1].places(reached)
        low = self._seconds[i, j] + (self._seconds[i + 1, j] - self._seconds[i, j]) * along
        j = j + 1
        high = self._seconds[i, j] + (self._seconds[i + 1, j] - self._seconds[i, j]) * along
        return np.asarray(low + (high - low) * across)


def _of_ranks(rows: pd.DataFrame, ranks: int, where: str) -> pd.DataFrame:
    """Return the rows of a rank out of so many; raises ScenarioError if there are none."""
    found = rows[rows[RANKS] == ranks]
    if found.empty:
        known = listed(f"{number:g}" for number in sorted(rows[RANKS].unique()))
        raise ScenarioError(
            f"{where}: has no rows of ep {ranks}, the ranks that share the experts; it has "
            f"{known}: profile them, or choose other parallelism"
        )
    return found


def _between(most: float) -> Array:
    """Return whole numbers up to `most`, each 1.3 to 1.5 times the one before.

    The experts that a batch reaches are no line between tokens that were measured.
    """
    powers = 2.0 ** np.arange(np.floor(np.log2(max(most, 1.0))) + 1)
    points = np.concatenate([powers, 1.5 * powers[1:]])
    return points[points <= most]


def check_reached(rows: pd.DataFrame, moe: MoeSpec, where: str) -> None:
    """Refuse rows without tokens or experts, or with more experts than the rank has.

    Raises ScenarioError that names the line.
    """
    ranks = rows[RANKS] if RANKS in rows else rows["tokens"] * 0.0 + 1.0
    of_a_rank = np.ceil(moe.num_experts / ranks)
    for name in AXES:
        wrong = rows[name] < 1
        if name == "activated_experts":
            wrong |= rows[name] > of_a_rank
        if wrong.any():
            line = rows.index[wrong][0]
            whose = "the model's experts" if ranks[line] == 1 else "the experts of a rank"
            limit = "" if name == "tokens" else f" and <= {of_a_rank[line]:g}, {whose}"
            raise ScenarioError(
                f"{where}: line {line}: {name} must be >= 1{limit}, got {rows[name][line]:g}"
            )
