"""LoRA adapters: runs of steps are exact against single ones, and the laws of admission hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from mist_sim.core.batch import StepBatch
from mist_sim.core.request import Image, Images, Request
from mist_sim.hardware.predictors.around import Beside
from mist_sim.metrics import Result
from mist_sim.models.adapters import AdapterMoves, LoraConfig
from mist_sim.rng import Streams
from mist_sim.simulation import Simulation
from tests.effort import examples, features_seen, missing
from tests.property import loop_cases
from tests.property.loop_cases import client, features, served
from tests.property.strategies import (
    cases,
    with_arrivals_on_boundaries,
    with_time_outs_on_boundaries,
)
from tests.property.test_step_core import one_by_one
from tests.reference.comparison import Case, OfJobs, assert_exact, workload
from tests.reference.predictors import AffinePredictor

NAMES = ("a", "b", "c", "d", None)


@dataclass(frozen=True)
class Linear:
    """Seconds of adapters in a step, by their number and tokens; the terms round."""

    each: float = 1.3e-4 / 3
    per_token: float = 1.7e-6 / 7

    def seconds(self, batch: StepBatch) -> float:
        num_adapters, num_tokens = batch.adapters or (0, 0)
        return self.each * num_adapters + self.per_token * num_tokens


TIMED = Beside(AffinePredictor(), Linear().seconds, "adapters", "memory")


@st.composite
def engines(draw: st.DrawFn, longest: int = 100) -> Case:
    """An engine with adapters, planned ahead or not, and jobs that name some."""
    drawn = served(draw(cases(longest=longest, policy="chunked", drafts=False)))
    max_loras = draw(st.integers(1, 4))
    speed = draw(st.none() | st.just(1e9))
    most = None if speed is None else draw(st.none() | st.integers(max_loras, max_loras + 3))
    seconds = st.sampled_from([0.0, 2.0**-10, 1e-3 / 3])
    options = replace(
        drawn.options,
        order="fcfs",
        threshold=None,
        max_partial=1,
        prefill_schedule_interval=1,
        async_scheduling=draw(st.booleans()),
        elsewhere=None,
        tiers=(),  # the reference does not say how prompts that were loaded wait for adapters
        early_rejection=False,
        lora=LoraConfig(max_loras=max_loras, max_cpu_loras=most, storage_bandwidth=speed),
        adapter_moves=AdapterMoves(draw(seconds), 0.0 if speed is None else draw(seconds)),
    )
    name = st.sampled_from(NAMES[draw(st.integers(0, 3)) :])
    jobs = [replace(job, adapter=draw(name), num_elsewhere=0) for job in drawn.jobs]
    return Case(options, tuple(jobs))


def _passes(case: Case) -> set[str]:
    """What a case exercised, by the reference."""
    outcomes = case.stepwise(TIMED).outcomes
    started = [(each.started_at, number) for number, each in enumerate(outcomes)]
    order = [number for when, number in sorted(started) if when >= 0]
    found = {"planned ahead"} if case.options.async_scheduling else set()
    if order != sorted(order):
        found.add("somebody passed")
    if any(each.preempted_at for each in outcomes):
        found.add("preempted")
    return found


@pytest.mark.exact
@examples(300)
@given(case=engines(), data=st.data())
def test_runs_with_adapters_are_exact(case, data):
    case = with_arrivals_on_boundaries(data, case, TIMED)
    name = st.sampled_from(NAMES)
    jobs = [job if job.adapter else replace(job, adapter=data.draw(name)) for job in case.jobs]
    assert_exact(replace(case, jobs=tuple(jobs)), TIMED)


class Tower:
    """Seconds of images, which round."""

    def seconds(self, images: Sequence[Image]) -> float:
        return sum([each.patches * 1.1e-5 for each in images], 0.0)


@dataclass(frozen=True, slots=True)
class Illustrated(OfJobs):
    """Prompts of given jobs, some of which begin with images."""

    numbers: tuple[int, ...] = ()

    def requests(self, streams: Streams) -> Iterator[Request]:
        for request, number in zip(OfJobs.requests(self, streams), self.numbers, strict=True):
            image = Image(7, min(request.num_prompt_tokens, 5))
            most = request.num_prompt_tokens // image.tokens
            request.images = Images(min(number, most), image) if number else None
            yield request


def illustrated(case: Case, numbers: tuple[int, ...]) -> Result:
    """Run a case with images, and with its adapters."""
    made, jobs = client(case, TIMED), workload(case.jobs)
    made._tower = Tower()
    said = Illustrated(jobs.source, jobs.arrivals, jobs=case.jobs, numbers=numbers)
    return Simulation(clients=[made], workload=said).run()


@pytest.mark.exact
@examples(300)
@given(case=engines() | loop_cases.engines(), data=st.data())
def test_the_core_serves_adapters_and_images(case, data):
    case = with_arrivals_on_boundaries(data, case, TIMED)
    if data.draw(st.booleans()):
        case = with_time_outs_on_boundaries(data, case, TIMED)
    numbers = tuple(data.draw(st.integers(0, 3)) for _ in case.jobs)
    found = one_by_one(lambda: illustrated(case, numbers))
    for feature in features(found):
        event(feature)


@pytest.mark.deep
def test_each_hard_feature_is_reached():
    wanted = ("somebody passed", "preempted", "planned ahead")
    seen = features_seen(engines(), _passes, wanted)
    assert not missing(seen, wanted), seen
