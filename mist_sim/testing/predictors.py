"""Rules that every predictor keeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import fields, replace
from itertools import accumulate
from typing import Any

import numpy as np

from mist_sim.core.batch import StepBatch, StepGrowth, grown
from mist_sim.hardware.predictors import (
    EngineOverhead,
    PipelinePredictor,
    Predictor,
    PredictorTraits,
    traits_of,
    with_drafting,
)
from mist_sim.models import SpeculativeConfig
from mist_sim.testing.rules import name_of, require, stream_of

_BATCHES = (
    StepBatch((), 1, 1),
    StepBatch((), 40, 90_000),
    StepBatch(((512, 0),)),
    StepBatch(((300, 2_048), (7, 0)), 9, 5_000),
)
_NGRAM = SpeculativeConfig(method="ngram", num_speculative_tokens=2, acceptance_rate=0.5)


def check_traits(predictor: Predictor) -> PredictorTraits:
    """Return the traits of a predictor, after a check of their form.

    The fields have their types, and the predictor has no attribute of a trait's name with another
    value, which no engine would look at.
    """
    try:
        traits = traits_of(predictor)
    except TypeError as error:
        raise AssertionError(str(error)) from error
    _check_types(predictor, traits)
    _check_nothing_beside(predictor, traits)
    return traits


def check_traits_hold(predictor: Predictor) -> None:
    """Check that a predictor has the properties its traits claim, also inside a wrapper.

    Functions in the traits must work. The longest context changes no time unless the traits declare
    it. Engines' wrappers keep the predictor's traits.
    """
    traits = traits_of(predictor)
    for batch in _BATCHES:
        _check_answers(predictor, traits, batch)
    _check_wrapped(predictor, traits)


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _is_seconds(value: object) -> bool:
    if value is None:
        return True
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and all(isinstance(each, float | int) for each in value)
    )


def _is_time(value: object) -> bool:
    return isinstance(value, float | int)


def _are_texts(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, str) for each in value)


def _is_callable(value: object) -> bool:
    return value is None or callable(value)


_TYPES: dict[str, tuple[Callable[[object], bool], str]] = {
    "estimate": (lambda value: isinstance(value, str) and bool(value), "a word or words"),
    "compared_as": (lambda value: isinstance(value, str), "a string"),
    "kernels_only": (_is_bool, "a bool"),
    "beyond_kernels": (_is_seconds, "None or two numbers, of a step and of each sequence"),
    "beyond_prompts": (_is_time, "a number of seconds"),
    "sums_over_links": (_is_bool, "a bool"),
    "needs_longest_context": (_is_bool, "a bool"),
    "times_drafts": (_is_bool, "a bool"),
    "needs_scale": (lambda value: isinstance(value, str), "a string"),
    "assumed": (_are_texts, "a tuple of strings"),
    "steps_inside": (_is_callable, "None or callable"),
    "reads_again": (_is_callable, "None or callable"),
    "tower_attention": (_is_callable, "None or callable"),
    "step_time_on_the_spot": (_is_callable, "None or callable"),
}
"""Whether a value is right for a trait, and what it must be, in words."""


def _check_types(predictor: Predictor, traits: PredictorTraits) -> None:
    for field in fields(traits):
        value, (is_right, wanted) = getattr(traits, field.name), _TYPES[field.name]
        rule = f"{name_of(predictor)}.traits.{field.name} must be {wanted}, got {value!r}"
        require(is_right(value), rule)


def _check_nothing_beside(predictor: Predictor, traits: PredictorTraits) -> None:
    for field in fields(traits):
        said = getattr(traits, field.name)
        require(
            getattr(predictor, field.name, said) == said,
            f"{name_of(predictor)}.{field.name} is not seen by engines; give it in "
            f"traits = PredictorTraits({field.name}=...)",
        )


def _check_answers(predictor: Predictor, traits: PredictorTraits, batch: StepBatch) -> None:
    name, seconds = name_of(predictor), predictor.step_time(batch)
    if traits.steps_inside:
        steps: Any = traits.steps_inside(batch, StepGrowth(batch.num_decodes))
        require(
            isinstance(steps, int) and steps >= 0,
            f"{name}.traits.steps_inside must return an int >= 0, got {steps!r} for {batch}",
        )
    if traits.step_time_on_the_spot:
        later: Any = traits.step_time_on_the_spot(batch)
        require(
            isinstance(later, float) and seconds <= later < math.inf,
            f"{name}.traits.step_time_on_the_spot must return a finite float >= step_time, "
            f"{seconds!r}, got {later!r} for {batch}",
        )
    if batch.num_decodes and not traits.needs_longest_context:
        uneven = replace(batch, longest_context=batch.context_sum)
        require(
            predictor.step_time(uneven) == seconds,
            f"{name} reads longest_context, so its traits must say needs_longest_context=True",
        )


def _check_wrapped(predictor: Predictor, traits: PredictorTraits) -> None:
    """Check that overhead, drafting and a pipeline change only the traits that they must."""
    host = EngineOverhead(step=1e-3).around(predictor, overlapped=True)
    own = {"kernels_only": False, "beyond_kernels": None, "beyond_prompts": 0.0}
    _require_kept("EngineOverhead", traits_of(host), traits, **own)
    if traits.times_drafts:
        drafted = with_drafting(predictor, _NGRAM, None)
        _require_kept("with_drafting", drafted.traits, traits)
    pipeline = PipelinePredictor((predictor, predictor), lambda num_tokens: 0.0).traits
    inside = pipeline.steps_inside
    _require_kept("PipelinePredictor", pipeline, traits, steps_inside=inside)
    for batch in _BATCHES:
        asked = batch, StepGrowth(batch.num_decodes)
        alone = traits.steps_inside and traits.steps_inside(*asked)
        together = inside and inside(*asked)
        require(
            together == alone,
            f"PipelinePredictor.traits.steps_inside must be {alone}, got {together} for {batch}",
        )


def _require_kept(
    wrapper: str, kept: PredictorTraits, traits: PredictorTraits, **changed: Any
) -> None:
    """Require kept traits, but for `changed` and the wrapper's own `step_time_on_the_spot`."""
    wanted = replace(traits, step_time_on_the_spot=kept.step_time_on_the_spot, **changed)
    require(kept == wanted, f"{wrapper} must keep the traits {wanted}, got {kept}")


_START = 12.3  # seconds, when checked runs begin


def check_predictor(factory: Callable[[], Predictor]) -> None:
    """Check that a predictor's times are sound, and that `run` has the bits of `step_time`.

    Times are positive, finite floats that depend only on the batch. `run` returns a new float64
    array for each call, equal to `step_time` of every grown batch, and so does the line of decodes
    alone, if there is one (`decode_line`), also with an engine's overhead. With the trait
    `times_drafts` it is also tested with batches with drafts. Its traits must have the right types,
    be complete, and be kept by engines' wrappers.
    """
    predictor, another = factory(), factory()
    require(
        isinstance(predictor, Predictor),
        f"{name_of(predictor)} needs step_time(batch) and run(batch, growth, num_steps)",
    )
    traits = check_traits(predictor)
    for batch, growth, num_steps in _batches(drafts=traits.times_drafts):
        steps = _check_run(predictor, batch, growth, num_steps)
        require(
            another.step_time(batch) == steps[0],
            f"{name_of(predictor)}: two predictors from the factory differ for {batch}",
        )
    check_traits_hold(predictor)


def _check_run(
    predictor: Predictor, batch: StepBatch, growth: StepGrowth, num_steps: int
) -> list[float]:
    """Check a run against its steps one by one; return their times."""
    asked = deepcopy(batch)
    times: Any = predictor.run(batch, growth, num_steps)
    require(
        isinstance(times, np.ndarray) and times.shape == (num_steps,) and times.dtype == np.float64,
        f"{name_of(predictor)}.run must return float64 of shape ({num_steps},), got {times!r}",
    )
    steps: list[Any] = [predictor.step_time(grown(batch, growth, k)) for k in range(num_steps)]
    for position, (step, time) in enumerate(zip(steps, times.tolist(), strict=True)):
        later = grown(batch, growth, position)
        require(
            isinstance(step, float) and 0 < step < math.inf,
            f"{name_of(predictor)}: times must be finite floats > 0 s, got {step!r} for {later}",
        )
        require(
            step == time,
            f"{name_of(predictor)}: run and step_time must agree to the bit, got {time!r} and "
            f"{step!r} s for step {position} of {num_steps} from {batch} with {growth}",
        )
    require(batch == asked, f"{name_of(predictor)} must not change the batch {asked}")
    if not (batch.chunks or batch.num_drafts) and growth.context_sum == batch.num_decodes:
        for host in (None, EngineOverhead(step=5e-3), EngineOverhead(step=5e-3, exposed_step=1e-3)):
            _check_line(predictor, host, batch, growth, num_steps)
    times[:] = -1.0
    require(
        predictor.run(batch, growth, num_steps).tolist() == steps,
        f"{name_of(predictor)}.run must give the caller an array of its own, and equal times "
        f"for equal batches, for {batch}",
    )
    return steps


def _check_line(
    predictor: Predictor,
    host: EngineOverhead | None,
    batch: StepBatch,
    growth: StepGrowth,
    num_steps: int,
) -> None:
    """Check the line of decodes alone, if it tells one, against the times of their steps.

    host: the time of an engine around it, too.
    """
    timed = predictor
    if host is not None:
        timed = host.around(predictor, overlapped=bool(host.exposed_step))
    line_of = getattr(timed, "decode_line", None)
    line = line_of(batch.num_decodes) if line_of is not None else None
    if line is None:
        return
    keys, steps = batch.context_sum + batch.num_decodes, timed.run(batch, growth, num_steps)
    times = line.run(keys, batch.num_decodes, num_steps)
    ends = line.ends(_START, keys, batch.num_decodes, num_steps)
    are_ends = list(ends) == list(accumulate(steps.tolist(), initial=_START))[1:]
    require(
        times.tolist() == steps.tolist() and line.step(keys) == steps[0] and are_ends,
        f"{name_of(predictor)}.decode_line must have the times of its steps to the bit, got "
        f"{line} for {batch}, whose first step takes {steps[0]!r} s",
    )


def _batches(*, drafts: bool) -> Iterator[tuple[StepBatch, StepGrowth, int]]:
    draws = stream_of("check_predictor")
    for k in range(150):
        num_chunks = (0, 1, 1, 3)[k % 4]
        new = draws.integers(1, (9, 600, 5_000)[k % 3], num_chunks).tolist()
        context = (draws.integers(0, 30_000, num_chunks) * (k % 2)).tolist()
        num_decodes = int(draws.integers(0 if num_chunks else 1, (3, 64, 300)[k % 3]))
        contexts = draws.integers(1, 9_000, num_decodes)
        batch = StepBatch(tuple(zip(new, context, strict=True)), num_decodes, int(contexts.sum()))
        growth = StepGrowth(num_decodes)
        if k % 5 == 0:  # as engines count for a model with windows of 1,024 tokens
            batch.window_sum = int(contexts.clip(max=1_023).sum())
            growth.window_sum = int((contexts < 900).sum())
        num_steps = int(draws.integers(1, 40))
        yield batch, growth, num_steps
        if drafts and num_decodes and k % 5 < 2:  # accepted here more and there fewer
            num_drafts = int(draws.integers(1, 8))
            tokens = draws.integers(num_decodes, num_decodes * (1 + num_drafts) + 1, num_steps)
            added = np.concatenate(([0], np.cumsum(tokens[:-1])))
            growth = StepGrowth(added)
            if batch.window_sum is not None:
                growth.window_sum = added // 2
            yield replace(batch, num_drafts=num_drafts), growth, num_steps
    yield StepBatch((), 1, 1), StepGrowth(1), 3_000  # a long run
