"""The six latency coefficients of an AFD bundle: attention, FFN, communication."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class AfdCoefficients:
    """Times linear in the load of each part of the cycle, in cycles or any unit of time.

    alpha_a, beta_a: attention of one worker, per token in its KV cache, and fixed.
    alpha_f, beta_f: FFN, per request in the batch of one FFN worker, and fixed.
    alpha_c, beta_c: communication both ways, per such request, and fixed.
    Slopes of attention and FFN are > 0, the others >= 0.
    Raises ValueError for other values.
    Source: arXiv 2601.21351v3, section 3.1.
    """

    alpha_a: float
    beta_a: float
    alpha_f: float
    beta_f: float
    alpha_c: float
    beta_c: float

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("alpha_a", "alpha_f") and not 0 < value < math.inf:
                raise ValueError(f"{field.name} must be > 0 and finite, got {value}")
            if not 0 <= value < math.inf:
                raise ValueError(f"{field.name} must be >= 0 and finite, got {value}")

    # numbers, or arrays of them
    def attention_time(self, num_tokens: Any) -> Any:
        """Return the time of a worker whose requests hold that many tokens."""
        return self.alpha_a * num_tokens + self.beta_a

    def ffn_time(self, num_requests: Any) -> Any:
        """Return the time of an FFN worker for so many requests."""
        return self.alpha_f * num_requests + self.beta_f

    def communication_time(self, num_requests: Any) -> Any:
        """Return the time of both transfers for so many requests of an FFN worker."""
        return self.alpha_c * num_requests + self.beta_c

    def times(self, factor: float) -> AfdCoefficients:
        """Return them in another unit, of which one of the present makes `factor`."""
        scaled = {field.name: getattr(self, field.name) * factor for field in fields(self)}
        return AfdCoefficients(**scaled)


PRESETS: Mapping[str, AfdCoefficients] = {
    # arXiv 2601.21351v3, table 3: fitted there to traces of Ascend 910C cards, in cycles
    "deepseek-v3-ascend-910c": AfdCoefficients(
        alpha_a=1.65e-3, beta_a=50.0, alpha_f=0.083, beta_f=100.0, alpha_c=0.022, beta_c=20.0
    ),
}
"""Published coefficients, by model and accelerator."""
