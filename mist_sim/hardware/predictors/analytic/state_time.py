"""Seconds of the recurrence of layers with a state, which do not depend on contexts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

from mist_sim.core.batch import StepBatch
from mist_sim.hardware.devices.kernels import figures_of
from mist_sim.hardware.predictors.analytic.compile import Phase
from mist_sim.hardware.predictors.explained import Bound, OperatorTime
from mist_sim.models.operators import Number, StateWork


@dataclass(frozen=True, slots=True)
class StateTime:
    """Recurrence of some layers.

    The chunks of a prompt are computed one after the other, while all heads and prompts run side by
    side as far as the GPU has room: the time is the root of the sum of squares of both terms.

    prompt_floor, decode_floor: minimum of a step with prompts, with decodes. serial: per token of
    the longest piece. per_token: per new token. per_prompt: state read and written. per_decode: per
    token that a decode computes.
    """

    of: StateWork
    prompt_floor: float
    decode_floor: float
    serial: float
    per_token: float
    per_prompt: float
    per_decode: float
    figures: tuple[str, str]

    def seconds(self, batch: StepBatch) -> float:
        """Return the seconds of a step; the same in every step of a run."""
        found = 0.0
        if batch.chunks:
            found += self.of_prompts(batch)
        if batch.num_decodes:
            found += self.decode_floor + batch.num_decode_queries * self.per_decode
        return found

    def of_prompts(self, batch: StepBatch) -> float:
        """Return the seconds of the prompts of a step."""
        longest = max([new for new, _ in batch.chunks])
        work = batch.num_prefill_tokens * self.per_token + len(batch.chunks) * self.per_prompt
        waiting = longest * self.serial
        return self.prompt_floor + sqrt(waiting * waiting + work * work)

    def explained(self, batch: StepBatch) -> Iterator[OperatorTime]:
        """Yield the operators of a step with their times, by prompts and decodes."""
        of, layers = self.of, self.of.layers
        if batch.chunks:
            new, total = batch.num_prefill_tokens, self.of_prompts(batch)
            moved = new * of.of_token.bytes + len(batch.chunks) * of.of_prompt.bytes
            work = new * of.of_token.flops * layers, moved * layers
            bound: Bound = "latency" if 2 * new * self.per_token < total else "memory"
            yield _operator("prefill", of, total, bound, work, self.figures[0])
        if batch.num_decodes:
            queries = batch.num_decode_queries
            total = self.decode_floor + queries * self.per_decode
            work = queries * of.of_decode.flops * layers, queries * of.of_decode.bytes * layers
            bound = "latency" if 2 * queries * self.per_decode < total else "memory"
            yield _operator("decode", of, total, bound, work, self.figures[1])


def _operator(
    phase: str,
    of: StateWork,
    seconds: float,
    bound: Bound,
    work: tuple[Number, Number],
    figures: str,
) -> OperatorTime:
    name, (flops, moved) = f"{phase}_{of.kind}_state", work
    return OperatorTime(
        name, seconds, bound, of.layers, float(flops), float(moved), figures, of.of_token.dtype
    )


def state_times(work: StateWork, prefill: Phase, decode: Phase) -> StateTime:
    """Return the times of the recurrence of some layers."""
    names = f"{work.kind}_prefill", f"{work.kind}_decode"
    kernels = prefill.gpu.kernels
    first, flops, bandwidth = prefill.rates(names[0])
    then, rate, width = decode.rates(names[1])
    layers, token, sequence = work.layers, work.of_token, work.of_decode
    return StateTime(
        of=work,
        prompt_floor=layers * first.floor,
        decode_floor=layers * then.floor,
        serial=layers * first.serial / 1e3,
        per_token=layers * float(token.flops / flops + token.bytes / bandwidth),
        per_prompt=layers * float(work.of_prompt.bytes / bandwidth),
        per_decode=layers * float(max(sequence.flops / rate, sequence.bytes / width)),
        figures=(figures_of(kernels, names[0]), figures_of(kernels, names[1])),
    )
