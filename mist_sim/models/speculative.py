"""SpeculativeConfig: how an engine drafts tokens, and how many of them its model accepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul
from typing import Annotated, Literal, get_args

from mist_sim.checks import NotNegative, Range, check_fields
from mist_sim.errors import brief
from mist_sim.models.acceptance import PUBLISHED, Text, assumed_acceptance
from mist_sim.units import Seconds

Method = Literal["draft_model", "ngram", "mtp", "eagle", "eagle3"]
METHODS: tuple[str, ...] = get_args(Method)

ACCEPTANCE_RATE = "speculative_config.acceptance_rate"
"""Begins what results list as assumed of it."""

READING = f"{ACCEPTANCE_RATE}, if all before are accepted: "
"""Begins how results say that a list is read which could be vLLM's rates by position."""

HEAD = "speculative_config.method: "
"""Begins as which head results say that another one is timed."""

_MOST_DRAFTS = 1024  # tokens a step; far more than anybody drafts


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """Speculative decoding; names as in vLLM's `speculative_config`.

    method: drafting method. "draft_model": a smaller model, token by token. "mtp": one more layer
        of the model's own kind, of models trained with one (DeepSeek-V3). "eagle": the same for a
        dense model; "eagle3" is timed and accepted as "eagle", which results list as assumed.
        "ngram": a search of the request's own tokens (prompt lookup).
    num_speculative_tokens: draft tokens per decode that a step verifies (>= 1).
    acceptance_rate: the chance in [0, 1] that a draft token is accepted, given that all before it
        were: one number, or one for each position. vLLM's logs ("Per-position acceptance rate")
        and its sampler "synthetic" (`synthetic_acceptance_rates`) have the products of these, the
        share of steps that accept so many: divide each of theirs by the one before. A list that
        falls can be either, and results say how it is read.
        None: as published for the method and the kind of text, which results list as assumed.
    text: kind of text whose published rate is assumed: "chat", "code", "summary", or "rewrite",
        whose answers repeat the prompt (edits, translations).
    model: the draft model's catalog name, Hugging Face id or path.
    draft_tensor_parallel_size: ranks that compute the draft model, 1 or the model's own number;
        None: the latter.
    drafting_time: seconds of drafting per step outside of kernels, such as the search of n-grams on
        the host (no counterpart in vLLM).
    Source: vLLM, `vllm/config/speculative.py`.
    """

    method: Method
    num_speculative_tokens: Annotated[int, Range(f"[1, {_MOST_DRAFTS}]")]
    acceptance_rate: float | Sequence[float] | None = None
    text: Text = "chat"
    model: str | None = None
    draft_tensor_parallel_size: int | None = None
    drafting_time: NotNegative[Seconds] = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        self._check_rates()
        drafts = self.method == "draft_model"
        if drafts != (self.model is not None):
            raise ValueError(
                "model must be given with method draft_model and no other, "
                f"got {brief(self.model)} with {self.method}"
            )
        if self.draft_tensor_parallel_size is not None and not drafts:
            raise ValueError(
                "draft_tensor_parallel_size must be given with method draft_model only, got "
                f"{self.draft_tensor_parallel_size} with {self.method}"
            )

    def _check_rates(self) -> None:
        rates = self.acceptance_rate
        if self.text not in (known := PUBLISHED[self.method]):
            raise ValueError(
                f"text must be one of {', '.join(known)} with method {self.method}, of which rates "
                f"are published, got {brief(self.text)}; for others set acceptance_rate"
            )
        if rates is not None and self.text != "chat":
            raise ValueError(
                f"text must be left out where acceptance_rate is set, got {brief(self.text)}; "
                "it says which published rate is assumed"
            )
        if isinstance(rates, Sequence) and len(rates) != self.num_speculative_tokens:
            raise ValueError(
                f"acceptance_rate must have one number for each of the "
                f"{self.num_speculative_tokens} speculative tokens, got {list(rates)}"
            )
        if not all(0 <= rate <= 1 for rate in self.rates):
            raise ValueError(f"acceptance_rate must be in [0, 1], got {rates}")

    @property
    def rates(self) -> tuple[float, ...]:
        """The probability of accepting each position, given that those before it were accepted."""
        if self.acceptance_rate is None:
            chances = PUBLISHED[self.method][self.text].chances
            return chances.rates(self.num_speculative_tokens)
        if isinstance(self.acceptance_rate, Sequence):
            return tuple(self.acceptance_rate)
        return (self.acceptance_rate,) * self.num_speculative_tokens

    @property
    def assumed(self) -> tuple[str, ...]:
        """Assumptions about the head, the acceptance rates and how they are read."""
        head = (f"{HEAD}eagle3 as eagle",) if self.method == "eagle3" else ()
        if self.acceptance_rate is None:
            what = assumed_acceptance(self.method, self.text, self.num_speculative_tokens)
            return (*head, f"{ACCEPTANCE_RATE}: {what}")
        return (*head, *self._reading())

    def _reading(self) -> tuple[str, ...]:
        """Return how a list is read, and what it would be as shares of steps; or nothing.

        Such shares never rise, and equal ones would mean drafts that are never wrong.
        """
        rates = self.rates
        if list(rates) != sorted(rates, reverse=True) or rates[0] == rates[-1]:
            return ()
        chances = [rates[0], *(b / a if a else 0.0 for a, b in pairwise(rates))]
        said, instead = (", ".join(f"{each:.3g}" for each in them) for them in (rates, chances))
        tokens, otherwise = 1 + sum(self.survival), 1 + sum(rates)
        found = (
            f"{READING}{said} give {tokens:.2f} tokens a decode step; as shares of all steps they "
            f"would give {otherwise:.2f}, and be {instead} here"
        )
        return (found,)

    @property
    def survival(self) -> tuple[float, ...]:
        """The chance that the first 1, 2, ... draft tokens are all accepted."""
        return tuple(accumulate(self.rates, mul))

    @property
    def num_lookahead_tokens(self) -> int:
        """Additional tokens beyond a step's that memory is kept for.

        A drafting model writes its own entries for the next drafts within the step.
        Source: vLLM v1, `num_lookahead_tokens` in `vllm/v1/core/sched/scheduler.py`.
        """
        return 0 if self.method == "ngram" else self.num_speculative_tokens

    @property
    def num_recomputed_blocks(self) -> int:
        """Last blocks of a prefix cache's hit that are computed again, 1 or 0.

        A layer that drafts continues from the model's hidden states, which no cache keeps.
        Source: vLLM v1, `SpeculativeConfig.use_eagle` and `find_longest_cache_hit` in
        `vllm/v1/core/single_type_kv_cache_manager.py`.
        """
        return 1 if self.method in ("mtp", "eagle", "eagle3") else 0

    @property
    def num_extra_slots(self) -> int:
        """Tokens that a decode keeps memory for behind its newest one: drafts and lookahead."""
        return self.num_speculative_tokens + self.num_lookahead_tokens
