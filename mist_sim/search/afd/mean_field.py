"""The mean-field rule: the best ratio of attention to FFN workers where all loads are their means.

Source: arXiv 2601.21351v3, theorem 4.4 and appendix A.5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from mist_sim.hardware.afd import AfdCoefficients

Rule = Literal["attention", "communication", "ffn", "crossing"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A ratio at which the throughput may be largest.

    rule: "attention": where communication or FFN begin to take longer than attention;
        "communication", "ffn": where their own throughput is largest; "crossing": where FFN begins
        to take longer than communication, or the reverse.
    ratio: attention workers for each FFN worker; None where there is no such ratio above 0.
    throughput: tokens a unit of time for each worker of either kind; None without a ratio.
    """

    rule: Rule
    ratio: float | None
    throughput: float | None


def mean_field_cycle(
    coefficients: AfdCoefficients, mean_load: float, slots: int, ratio: float
) -> float:
    """Return tau_mf, the longest of attention, communication and FFN (8).

    mean_load: tokens of a slot (theta). slots: of one attention worker in a batch (B).
    """
    return float(
        max(
            coefficients.attention_time(slots * mean_load),
            coefficients.communication_time(slots * ratio),
            coefficients.ffn_time(slots * ratio),
        )
    )


def per_instance(slots: int, ratio: float, cycle: float, ffn_weight: float = 1.0) -> float:
    """Return tokens a unit of time for each worker, attention and FFN together (1).

    ffn_weight: as how many attention workers an FFN worker counts.
    """
    return ratio * slots / ((ratio + ffn_weight) * cycle)


def candidates(
    coefficients: AfdCoefficients, mean_load: float, slots: int, ffn_weight: float = 1.0
) -> tuple[Candidate, Candidate, Candidate, Candidate]:
    """Return the four candidates of (10), in order; None for those that are no valid ratio.

    Where an FFN worker counts as w attention workers, the stationary points are sqrt(w beta /
    (alpha B)), and nothing else changes.
    """
    c, weight = coefficients, ffn_weight
    attention = c.attention_time(slots * mean_load)
    ends = [
        (attention - beta) / (alpha * slots)
        for alpha, beta in ((c.alpha_c, c.beta_c), (c.alpha_f, c.beta_f))
        if alpha
    ]
    peak_c = math.sqrt(weight * c.beta_c / (c.alpha_c * slots)) if c.alpha_c else None
    crossing = None
    if c.alpha_f != c.alpha_c:
        crossing = (c.beta_c - c.beta_f) / (slots * (c.alpha_f - c.alpha_c))

    def candidate(rule: Rule, ratio: float | None) -> Candidate:
        if ratio is None or ratio <= 0:
            return Candidate(rule, None, None)
        cycle = mean_field_cycle(c, mean_load, slots, ratio)
        return Candidate(rule, ratio, per_instance(slots, ratio, cycle, weight))

    return (
        candidate("attention", min(ends)),
        candidate("communication", peak_c),
        candidate("ffn", math.sqrt(weight * c.beta_f / (c.alpha_f * slots))),
        candidate("crossing", crossing),
    )


def best_candidate(found: tuple[Candidate, ...]) -> Candidate:
    """Return the candidate with the largest throughput; of equals the first."""
    return max(found, key=lambda candidate: candidate.throughput or 0.0)
