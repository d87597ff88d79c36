"""Options of an engine that go together, and the rules for them."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

from mist_sim.bounds import COPIES
from mist_sim.checks import check_fields
from mist_sim.clients.options.engine_options import EngineOptions
from mist_sim.clients.options.refused_options import LOADS_IN_STEP, REFUSALS
from mist_sim.clients.options.resharding_options import Resharding
from mist_sim.errors import ScenarioError, brief
from mist_sim.hardware.predictors.overhead import EXPOSED
from mist_sim.hardware.predictors.scaled import StepTimeScale

AUTO_LENGTH = -1
"""A `max_model_len` that is as long as fits; vLLM's own number for `auto`."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig(EngineOptions):  # noqa: D101 - `EngineOptions` says what each option means
    __doc__ = EngineOptions.__doc__

    def __post_init__(self) -> None:
        check_options(self)


def check_options(config: EngineOptions) -> None:
    """Raise ScenarioError for options out of their ranges, and for those that contradict others."""
    check_fields(config, ScenarioError)
    if config.data_parallel_size > COPIES:
        raise ScenarioError(
            f"data_parallel_size must be <= {COPIES}, got {config.data_parallel_size}"
        )
    if (
        config.enable_expert_parallel
        and config.tensor_parallel_size * config.data_parallel_size == 1
        and config.prefill_context_parallel_size == 1
    ):
        raise ScenarioError(
            "enable_expert_parallel must be false with tensor_parallel_size 1 and "
            "data_parallel_size 1; it has no effect on one rank, which has all experts anyway"
        )
    length: object = config.max_model_len
    if length is not None and not isinstance(length, Integral):
        raise ScenarioError(
            f"max_model_len must be a whole number, or {AUTO_LENGTH} for what fits, got "
            f"{brief(length)}"
        )
    if config.max_model_len not in (None, AUTO_LENGTH) and (config.max_model_len or 0) < 1:
        raise ScenarioError(
            f"max_model_len must be >= 1, got {config.max_model_len}; auto takes what fits"
        )
    if config.role == "decode" and config.scheduler and not config.scheduler.takes_over:
        raise ScenarioError(
            "scheduler must not be static with role decode: no request joins a static batch"
        )
    if config.pipeline_parallel_size > 1 and config.prefill_interval > 1:
        raise ScenarioError(
            f"scheduler must have prefill_schedule_interval 1 with pipeline_parallel_size "
            f"{config.pipeline_parallel_size}, got {config.prefill_interval}; vLLM counts the "
            "steps of all micro-batches together, which is not simulated"
        )
    if config.virtual_engines and config.pipeline_parallel_size == 1:
        raise ScenarioError(
            "virtual_engines must be false with pipeline_parallel_size 1; it has no effect on "
            "one rank"
        )
    _check_factors(config)
    _check_planning_ahead(config)
    for refusal in REFUSALS:
        refusal.check(config)
    if config.resharding is not None:
        _check_layouts(config, config.resharding)


def _check_factors(config: EngineOptions) -> None:
    """Raise ScenarioError for a factor of step times that is none."""
    try:
        StepTimeScale.of(config.step_time_scale)
    except ValueError as error:
        raise ScenarioError(f"step_time_scale {error}") from None


def _check_layouts(config: EngineOptions, other: Resharding) -> None:
    """Raise ScenarioError for layouts of prompts and of answers on unequal GPUs."""
    sizes = [(other.tensor_parallel_size, other.pipeline_parallel_size)]
    sizes.append((config.tensor_parallel_size, config.pipeline_parallel_size))
    if sizes[0][0] * sizes[0][1] != sizes[1][0] * sizes[1][1]:
        prompts, answers = (f"TP {t} x PP {p} = {t * p}" for t, p in sizes)
        raise ScenarioError(
            "resharding must have as many GPUs for prompts as for answers, got "
            f"{prompts} and {answers}, both times data_parallel_size "
            f"{config.data_parallel_size}, which does not change"
        )


def against_loads(config: EngineOptions) -> str:
    """Return what must change so that a step can wait for loads from tiers; empty: nothing."""
    return LOADS_IN_STEP.against(config)


def _check_planning_ahead(config: EngineOptions) -> None:
    if config.async_scheduling and config.no_planning_ahead:
        raise ScenarioError(
            f"async_scheduling must be false with {config.no_planning_ahead}; that combination "
            "is not simulated"
        )
    if config.async_scheduling is False:
        for name in EXPOSED:
            if getattr(config.overhead, name):
                raise ScenarioError(
                    f"overhead.{name} must be left out with async_scheduling: false; it is "
                    "host time that async scheduling does not hide, and overhead.step has all "
                    "of it where nothing is hidden"
                )


def check_speculation(config: EngineOptions) -> None:
    """Raise ScenarioError where drafts do not fit into a step."""
    drafting, scheduler = config.speculative_config, config.scheduler
    if drafting is None or scheduler is None:
        return
    if problem := scheduler.cannot_verify(drafting.num_speculative_tokens):
        raise ScenarioError(f"scheduler must {problem}")
