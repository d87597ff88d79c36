"""Predictors for tests: simple laws whose `run` equals `step_time` to the bit."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.hardware.predictors import EngineOverhead, PredictorTraits
from mist_sim.hardware.predictors.decode_line import DecodeLine
from mist_sim.hardware.predictors.scaled import Scaled, StepTimeScale


@dataclass(frozen=True)
class AffinePredictor:
    """Seconds that grow with tokens, decodes and context, added up in one written order.

    The defaults have no short binary form, so that every sum of theirs rounds.
    """

    always_positive: ClassVar[bool] = True

    base: float = 1.1e-3 / 3
    per_prompt_token: float = 7.7e-6 / 9
    per_score: float = 1.3e-9 / 7
    per_decode: float = 1.9e-5 / 11
    per_context_token: float = 2.3e-8 / 13
    per_window_token: float = 3.1e-8 / 17
    per_longest: float = 1.7e-8 / 19
    per_draft: float = 4.3e-6 / 23
    per_shared_token: float = 2.9e-6 / 29
    needs_longest_context: bool = True

    @property
    def traits(self) -> PredictorTraits:
        return PredictorTraits(needs_longest_context=self.needs_longest_context)

    def step_time(self, batch: StepBatch) -> float:
        seconds = self.base + self.per_prompt_token * batch.num_prefill_tokens
        for num_new, num_context in batch.chunks:
            seconds += self.per_score * (num_new * num_context)
        seconds += self.per_decode * batch.num_decodes
        seconds += self.per_draft * (batch.num_decodes * batch.num_drafts)
        seconds += self.per_shared_token * sum(batch.replicas or ())
        seconds += self.per_context_token * batch.context_sum
        seconds += self.per_window_token * (batch.window_sum or 0)
        return seconds + self.per_longest * (batch.longest_context or 0)

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> NDArray[np.float64]:
        ahead = np.arange(num_steps)
        seconds = np.full(num_steps, self.base + self.per_prompt_token * batch.num_prefill_tokens)
        for num_new, num_context in batch.chunks:
            seconds += self.per_score * (num_new * (num_context + num_new * ahead))
        seconds += self.per_decode * batch.num_decodes
        seconds += self.per_draft * (batch.num_decodes * batch.num_drafts)
        seconds += self.per_shared_token * sum(batch.replicas or ())
        contexts = batch.context_sum + growth.contexts(ahead.astype(float))
        seconds += self.per_context_token * contexts
        windows = growth.windows(ahead.astype(float), batch.window_sum or 0)
        seconds += self.per_window_token * windows
        longest = growth.longest(ahead, batch.longest_context or 0)
        return np.asarray(seconds + self.per_longest * longest)


AWKWARD = AffinePredictor()

DYADIC = AffinePredictor(
    2.0**-8, 2.0**-14, 2.0**-24, 2.0**-13, 2.0**-20, 2.0**-19, 2.0**-18, 2.0**-15, 2.0**-16
)
"""Sums of these do not round, so that times which should meet do."""

STEEP = replace(DYADIC, base=2.0**-13, per_prompt_token=2.0**-11)
"""The same where tokens of prompts take most of a step."""


@dataclass(frozen=True)
class ConstantPredictor:
    """Every step takes the same time, whatever it computes."""

    always_positive: ClassVar[bool] = True

    seconds: float

    def step_time(self, batch: StepBatch) -> float:
        return self.seconds

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> NDArray[np.float64]:
        return np.full(num_steps, self.seconds)


EVEN = ConstantPredictor(2.0**-8)
"""Steps of all engines end together."""


@dataclass(frozen=True)
class KeysPredictor:
    """Steps of decodes by the keys that they read, not below a least time, and of prompts more.

    Its line is bent in the middle of most runs. read_again: share of the tokens in common that need
    not be read, up to that share of all keys.
    """

    per_key: float = 1.7e-5 / 7
    per_decode: float = 1.9e-5 / 11
    per_prompt_token: float = 7.7e-6 / 9
    least: float = 1.1e-3 / 3
    beyond: float = 1.3e-4 / 7
    read_again: float = 0.0

    @property
    def traits(self) -> PredictorTraits:
        return PredictorTraits(reads_again=self._again if self.read_again else None)

    def _again(self, shared: Mapping[int, int], num_decodes: int, num_keys: int) -> int:
        saved = sum((readers - 1) * tokens for readers, tokens in shared.items())
        return int(self.read_again * min(saved, num_keys))

    def decode_line(self, num_decodes: int) -> DecodeLine:
        return DecodeLine(self.per_key, num_decodes * self.per_decode, self.least, self.beyond)

    def step_time(self, batch: StepBatch) -> float:
        keys = batch.context_sum + batch.num_decodes - batch.num_read_again
        seconds = max(keys * self.per_key + batch.num_decodes * self.per_decode, self.least)
        return seconds + self.beyond + self.per_prompt_token * batch.num_prefill_tokens

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> NDArray[np.float64]:
        first = batch.context_sum + batch.num_decodes - batch.num_read_again
        keys = growth.contexts(range(num_steps), first)
        seconds = np.maximum(keys * self.per_key + batch.num_decodes * self.per_decode, self.least)
        return seconds + self.beyond + self.per_prompt_token * batch.num_prefill_tokens


LINES = KeysPredictor()

SHARING = replace(LINES, read_again=0.6)
"""The same where keys in common are read once, more or less."""

HOSTED = EngineOverhead(step=3.7e-4, sequence=1e-5 / 7, exposed_step=1e-5 / 3).around(
    replace(LINES, beyond=0.0), overlapped=True
)
"""The same with a host that shows in steps which were not planned ahead."""

FACTORS = StepTimeScale(prompts=1.3, decodes=0.7)
SLOWER = Scaled(AWKWARD, FACTORS)
SCALED_LINES = Scaled(SHARING, FACTORS)
SCALED_HOSTED = Scaled(HOSTED, FACTORS)
"""The same with factors on their times."""
