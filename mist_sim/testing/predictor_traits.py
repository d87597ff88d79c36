"""Rules that the traits of every predictor keep."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.hardware.predictors import (
    EngineOverhead,
    PipelinePredictor,
    Predictor,
    PredictorTraits,
    traits_of,
    with_drafting,
)
from mist_sim.models import SpeculativeConfig
from mist_sim.testing.rules import name_of, require

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
