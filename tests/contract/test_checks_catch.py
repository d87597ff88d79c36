"""The checks of `mist_sim.testing` notice plugins that break their contract, and say how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest

from mist_sim.clients.scheduling import ChunkedScheduler, ContinuousScheduler
from mist_sim.clients.scheduling.order import Ranked
from mist_sim.core.request import Stage
from mist_sim.hardware.predictors import Predictor
from mist_sim.testing import (
    check_predictor,
    check_router,
    check_scheduler,
    check_stage,
    check_trace_reader,
)
from mist_sim.traces import TraceRow
from tests.reference.predictors import AWKWARD, AffinePredictor

# --- routers ----------------------------------------------------------------------------------


class First:
    """A sound router; the others break it."""

    def choose(self, request, stage, candidates):
        return candidates[0].client_id


class PositionInsteadOfId(First):
    def choose(self, request, stage, candidates):
        return 0


class NeedsTwo(First):
    def choose(self, request, stage, candidates):
        return candidates[1].client_id


class ReadsOutputLength(First):
    def choose(self, request, stage, candidates):
        return candidates[request.num_output_tokens % len(candidates)].client_id


class ReadsDecodeStage(First):
    def choose(self, request, stage, candidates):
        return candidates[request.stages[1].num_tokens % len(candidates)].client_id


class DrawsElsewhere(First):
    def choose(self, request, stage, candidates):
        rng = np.random.Generator(np.random.PCG64())
        return candidates[rng.integers(len(candidates))].client_id


@dataclass
class RemembersEarlierRuns:
    turns: list[int] = field(default_factory=list)

    def choose(self, request, stage, candidates):
        self.turns.append(1)
        return candidates[len(self.turns) % 7 % len(candidates)].client_id


class SortsCandidates(First):
    def choose(self, request, stage, candidates):
        candidates.sort(key=lambda view: -view.client_id)
        return candidates[0].client_id


class ChangesRequest(First):
    def choose(self, request, stage, candidates):
        request.session_id = 7
        return candidates[0].client_id


class ChangesView(First):
    def choose(self, request, stage, candidates):
        candidates[0].num_waiting += 1
        return candidates[0].client_id


def test_a_sound_router_passes():
    check_router(First)


@pytest.mark.parametrize(
    ("router", "rule"),
    [
        (object, "needs choose"),
        (PositionInsteadOfId, "must return the client_id of a candidate"),
        (NeedsTwo, "raised IndexError.* with 1 candidates for"),
        (ReadsOutputLength, "output lengths"),
        (ReadsDecodeStage, "output lengths"),
        (DrawsElsewhere, "use only the stream"),
        (RemembersEarlierRuns, "forget earlier runs"),
        (SortsCandidates, "raised AttributeError"),
        (ChangesRequest, "must not change the request"),
        (ChangesView, "raised FrozenInstanceError"),
    ],
)
def test_a_broken_router_is_caught(router, rule):
    with pytest.raises(AssertionError, match=rule):
        check_router(router)


# --- schedulers -------------------------------------------------------------------------------


class Sound(ChunkedScheduler):
    """A sound scheduler with little memory and few slots; the others break it."""

    def __init__(self):
        super().__init__(max_num_seqs=6, max_num_batched_tokens=32)


class IgnoresSlots(Sound):
    def _fits(self, sequence):
        self.max_num_seqs = 100
        try:
            return super()._fits(sequence)
        finally:
            self.max_num_seqs = 6


class LeaksABlock(Sound):
    def update(self, plan, num_steps):
        emitted, finished = super().update(plan, num_steps)
        if finished and self.pool.num_free:
            self.pool.allocate(1)
        return emitted, finished


class SkipsMemory(Sound):
    def _take_head(self, plan, sequence, max_new_tokens):
        num_tokens = super()._take_head(plan, sequence, max_new_tokens)
        self.pool.release(1)
        return num_tokens


class StarvesLongPrompts(Sound):
    def _next_head(self, plan):
        sequence = super()._next_head(plan)
        return None if sequence and sequence.num_tokens > 90 else sequence


class LosesARequest(Sound):
    def add_request(self, sequence):
        if sequence.num_prompt_tokens % 7:
            super().add_request(sequence)


class LooksTooFar(Sound):
    def _steps_until_change(self, limit):
        return limit


class ShortestAnswerFirst(ContinuousScheduler):
    def start(self, pool):
        super().start(pool)
        self.waiting = Ranked(lambda sequence: sequence.num_target_tokens)

    def would_admit(self, sequence, num_steps):
        return True


class NeverCuts(Sound):
    def would_admit(self, sequence, num_steps):
        return False


class IgnoresTiers(Sound):
    def _next_head(self, plan):
        head = self.head()
        return head if head and self._fits(head) else None


class LeavesLoadedOnes(Sound):
    def schedule(self, limit):
        self.loaded.clear()
        return super().schedule(limit)


def test_a_sound_scheduler_passes():
    check_scheduler(Sound)


@pytest.mark.parametrize(
    ("scheduler", "rule"),
    [
        (object, "must extend Scheduler"),
        (IgnoresSlots, "7 run, max_num_seqs is 6"),
        (LeaksABlock, "blocks"),
        (SkipsMemory, "blocks"),
        (StarvesLongPrompts, "idle with .* waiting|starve"),
        (LosesARequest, "must be waiting, running, finished or dropped"),
        (LooksTooFar, r"a sequence finished with \d+ of \d+ tokens"),
        (ShortestAnswerFirst, "decisions depend on output lengths"),
        (IgnoresTiers, "is computed whose .* blocks lie in a tier"),
        (LeavesLoadedOnes, "must be waiting, running, finished or dropped"),
        (NeverCuts, "plans of many steps differ from single steps"),
    ],
)
def test_a_broken_scheduler_is_caught(scheduler, rule):
    with pytest.raises(AssertionError, match=rule):
        check_scheduler(scheduler)


# --- predictors -------------------------------------------------------------------------------


class OtherOrderOfAddition(AffinePredictor):
    def run(self, batch, growth, num_steps):
        contexts = batch.context_sum + growth.context_sum * np.arange(num_steps)
        decode = self.per_context_token * contexts + self.per_decode * batch.num_decodes
        return self.step_time(type(batch)(batch.chunks)) + decode


class IgnoresGrowth(AffinePredictor):
    def run(self, batch, growth, num_steps):
        return np.full(num_steps, self.step_time(batch))


class LendsItsArray(AffinePredictor):
    arrays: ClassVar[dict] = {}

    def run(self, batch, growth, num_steps):
        key = (batch.chunks, batch.num_decodes, batch.context_sum, num_steps)
        if key not in self.arrays:
            self.arrays[key] = super().run(batch, growth, num_steps)
        return self.arrays[key]


class ReturnsNumpyIntegers(AffinePredictor):
    def step_time(self, batch):
        return 1

    def run(self, batch, growth, num_steps):
        return np.ones(num_steps)


class NegativeForNoPrompts(AffinePredictor):
    def step_time(self, batch):
        return super().step_time(batch) if batch.chunks else -1.0

    def run(self, batch, growth, num_steps):
        return super().run(batch, growth, num_steps) if batch.chunks else -np.ones(num_steps)


class ReturnsAList(AffinePredictor):
    def run(self, batch, growth, num_steps):
        return super().run(batch, growth, num_steps).tolist()


def noisy() -> Predictor:
    return AffinePredictor(base=1.0 + np.random.Generator(np.random.PCG64()).random())


def test_a_sound_predictor_passes():
    check_predictor(lambda: AWKWARD)


@pytest.mark.parametrize(
    ("predictor", "rule"),
    [
        (object, "needs step_time"),
        (OtherOrderOfAddition, "must agree to the bit"),
        (IgnoresGrowth, "must agree to the bit"),
        (LendsItsArray, "an array of its own"),
        (ReturnsNumpyIntegers, "finite floats > 0 s, got 1 for"),
        (NegativeForNoPrompts, "finite floats > 0 s, got -1.0 for"),
        (ReturnsAList, "must return float64 of shape"),
        (noisy, "two predictors from the factory differ"),
    ],
)
def test_a_broken_predictor_is_caught(predictor, rule):
    with pytest.raises(AssertionError, match=rule):
        check_predictor(predictor)


# --- stages -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Translate(Stage):
    """A sound stage; the others break it."""

    kind: ClassVar[str] = "translate"
    num_tokens: int
    languages: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.num_tokens < 0:
            raise ValueError(f"num_tokens must be >= 0, got {self.num_tokens}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NoKind(Stage):
    num_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenKind(Stage):
    kind: ClassVar[str] = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class TakesNonsense(Stage):
    kind: ClassVar[str] = "takes_nonsense"
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VagueError(Stage):
    kind: ClassVar[str] = "vague_error"
    num_tokens: int

    def __post_init__(self) -> None:
        if self.num_tokens < 0:
            raise ValueError("wrong value")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NoValue(Stage):
    kind: ClassVar[str] = "no_value"
    num_tokens: int


class NoStage:
    kind = "no_stage"


def test_a_sound_stage_passes():
    check_stage(Translate, languages=("en", "de"))


@pytest.mark.parametrize(
    ("stage", "rule"),
    [
        (NoStage, "must be a subclass of Stage"),
        (Stage, "must be a frozen dataclass"),
        (NoKind, "kind must be a word of its own"),
        (TakenKind, "'decode', which already names Decode"),
        (TakesNonsense, "must refuse num_tokens=-1"),
        (VagueError, "must name num_tokens"),
        (NoValue, "must differ when num_tokens differs"),
    ],
)
def test_a_broken_stage_is_caught(stage, rule):
    with pytest.raises(AssertionError, match=rule):
        check_stage(stage)


# --- trace readers ----------------------------------------------------------------------------


@dataclass
class GivenRows:
    """A sound reader; the others break it."""

    items: list
    num_requests: int | None = None

    def rows(self):
        return iter(self.items[: self.num_requests])


@dataclass
class ReadsOnce(GivenRows):
    def rows(self):
        while self.items:
            yield self.items.pop(0)


@dataclass
class ReturnsAListOfRows(GivenRows):
    def rows(self):
        return self.items


@dataclass
class IgnoresNumRequests(GivenRows):
    def rows(self):
        return iter(self.items)


def rows(*times: float | None, prompt: object = 5) -> list[TraceRow]:
    return [TraceRow(prompt, 3, time) for time in times]


@pytest.mark.parametrize("times", [(0.0, 0.0, 2.5), (None, None)])
def test_a_sound_reader_passes(times):
    check_trace_reader(lambda: GivenRows(rows(*times)))


@pytest.mark.parametrize(
    ("reader", "rule"),
    [
        (object, "needs rows"),
        (lambda: ReadsOnce(rows(0.0, 1.0)), "must start anew"),
        (lambda: ReturnsAListOfRows(rows(0.0, 1.0)), "must return an iterator"),
        (lambda: IgnoresNumRequests(rows(0.0, 1.0)), "num_requests=1"),
        (lambda: GivenRows(rows(0.0)), "2 rows or more"),
        (lambda: GivenRows(rows(0.0, 2.0, 1.0)), "row 2: times .* never decrease"),
        (lambda: GivenRows(rows(0.0, float("nan"))), "row 1: times must be finite"),
        (lambda: GivenRows(rows(0, 1)), "row 0: times must be finite floats"),
        (lambda: GivenRows(rows(3.0, 4.0)), "times from 0 s on"),
        (lambda: GivenRows(rows(0.0, None)), "or none has a time"),
        (lambda: GivenRows(rows(0.0, 1.0, prompt=0)), "num_prompt_tokens must be an int >= 1"),
        (lambda: GivenRows(rows(0.0, 1.0, prompt=np.int64(4))), "must be an int >= 1"),
        (lambda: GivenRows([(5, 3, 0.0), (5, 3, 1.0)]), "must be a TraceRow"),
    ],
)
def test_a_broken_reader_is_caught(reader, rule):
    with pytest.raises(AssertionError, match=rule):
        check_trace_reader(reader)
