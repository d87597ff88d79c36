"""Predicted lengths of answers, which routers and orders of the queue may read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp

import numpy as np

from mist_sim.checks import Checked, NotNegative, Positive
from mist_sim.core.request import Request

_BLOCK = 4096  # errors drawn at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions(Checked):
    """A predictor of answers' lengths: the true length times `bias` times exp(`sigma` z).

    bias: median of predicted over true tokens (> 0).
    sigma: standard deviation of the logarithm of that ratio (>= 0); z is normal. 0: no errors.
    """

    bias: Positive[float] = 1.0
    sigma: NotNegative[float] = 0.0

    def applied(self, requests: Iterator[Request], rng: np.random.Generator) -> Iterator[Request]:
        """Yield the requests with predicted lengths, at least a token each."""
        draws = _normal(rng)
        for request in requests:
            ratio = self.bias * exp(self.sigma * next(draws))
            request.num_predicted_tokens = max(1, round(request.num_output_tokens * ratio))
            yield request


def _normal(rng: np.random.Generator) -> Iterator[float]:
    while True:
        yield from rng.standard_normal(_BLOCK).tolist()
