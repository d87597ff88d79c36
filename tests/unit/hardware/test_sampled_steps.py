"""Slow sources on a grid: the rule for mixed steps, what is asked, and how often."""

import numpy as np
import pytest

from mist_sim.core.batch import StepBatch, StepGrowth, grown
from mist_sim.hardware.predictors.measured.sampled import SampledSteps, SamplePoints, powers
from mist_sim.hardware.predictors.measured.timing_store import TimingStore
from mist_sim.testing import check_predictor

POINTS = SamplePoints(
    new_tokens=powers(1, 4096),
    prompt_contexts=[0, *powers(256, 16384)],
    decodes=powers(1, 256),
    decode_contexts=[0, *powers(256, 16384)],
)
TOKEN, PAIR, KEY = 1e-5, 1e-9, 1e-8


class Engine:
    """Times any batch: seconds by tokens and by keys of decodes."""

    def __init__(self):
        self.identity = {"source": "engine"}
        self.asked = []

    def seconds(self, batches):
        self.asked += batches
        return [self.time(batch) for batch in batches]

    def time(self, batch):
        tokens = batch.num_prefill_tokens + batch.num_decodes
        return 1e-3 + TOKEN * tokens + KEY * batch.context_sum


class Flash(Engine):
    """The same, and by pairs of a prompt's query and key."""

    def time(self, batch):
        pairs = sum(new * (context + new / 2) for new, context in batch.chunks)
        return super().time(batch) + PAIR * pairs


def sampled(source=None):
    return SampledSteps(source or Engine(), POINTS, TimingStore(None))


def test_powers():
    assert powers(1, 8) == [1, 2, 4, 8]
    assert powers(3, 20, 4) == [3, 12, 20]
    assert powers(5, 5) == [5]


@pytest.mark.parametrize(
    "batch",
    [
        StepBatch(((512, 0),)),
        StepBatch(((700, 3000),)),
        StepBatch((), 30, 30 * 700),
        StepBatch(((300, 100), (50, 2000), (7, 0))),
        StepBatch(((2000, 0),), 48, 48 * 1000),
        StepBatch(((100, 50), (400, 0)), 200, 200 * 33),
    ],
)
def test_steps_that_were_not_sampled_are_met(batch):
    engine = Flash()
    assert sampled(engine).step_time(batch) == pytest.approx(engine.time(batch), rel=0.01)


def test_prompts_in_one_step_do_not_see_one_another():
    engine = Flash()
    batch = StepBatch(tuple((512, 0) for _ in range(4)))
    one_prompt = StepBatch(((2048, 0),))
    assert sampled(engine).step_time(one_prompt) == pytest.approx(engine.time(one_prompt))
    assert sampled(engine).step_time(batch) == pytest.approx(engine.time(batch), rel=0.01)


def test_step_takes_no_less_time_than_its_parts():
    class SlowDecodes(Engine):
        def time(self, batch):
            return 1.0 if batch.num_decodes else super().time(batch)

    steps = sampled(SlowDecodes())
    assert steps.step_time(StepBatch(((16, 0),), 4, 400)) >= 1.0


def test_contract():
    check_predictor(lambda: sampled(Flash()))


def test_a_step_of_nothing_is_one_of_smallest():
    steps = sampled()
    assert steps.step_time(StepBatch()) == steps.step_time(StepBatch((), 1, 0))
    assert steps.run(StepBatch(), StepGrowth(), 3).tolist() == [steps.step_time(StepBatch())] * 3


def test_the_source_is_asked_once(tmp_path):
    store = TimingStore(tmp_path / "timings.sqlite")
    first, second = Engine(), Engine()
    steps = SampledSteps(first, POINTS, store)
    again = SampledSteps(second, POINTS, store)
    assert len(first.asked) == 13 * 8 + 9 * 8
    assert second.asked == []
    batch, growth = StepBatch(((100, 17),), 20, 20 * 77), StepGrowth(20)
    assert steps.run(batch, growth, 9).tolist() == again.run(batch, growth, 9).tolist()
    assert steps.run(batch, growth, 9)[8] == again.step_time(grown(batch, growth, 8))


def test_times_that_are_none_are_refused():
    class Wrong(Engine):
        def time(self, batch):
            return np.nan

    with pytest.raises(ValueError, match="seconds must be finite and > 0"):
        sampled(Wrong())


@pytest.mark.parametrize(
    ("batch", "num_steps"),
    [
        (StepBatch((), 256, 256 * 16384), 1),
        (StepBatch((), 2, 2 * 16380), 5),
        (StepBatch((), 1, 16385), 0),
        (StepBatch((), 257, 257), 0),
        (StepBatch(((4096, 0),)), 5),
        (StepBatch(((4096, 16384),)), 1),
        (StepBatch(((4096, 0),), 1, 1), 0),
        (StepBatch(((64, 16385),)), 0),
    ],
)
def test_steps_outside_of_what_was_asked_are_counted(batch, num_steps):
    assert sampled().steps_inside(batch, StepGrowth(batch.num_decodes)) == num_steps
