"""How an engine samples tokens: by the requests' options, else by the server's defaults."""

from __future__ import annotations

from typing import NamedTuple

from mist_sim.clients import EngineConfig
from mist_sim.errors import ScenarioError
from mist_sim.hardware.predictors import PipelinePredictor
from mist_sim.hardware.sampling import Sampling
from mist_sim.models.generation import asked_by_model
from mist_sim.scenario.engines.version_names import version_of


class Drawing(NamedTuple):
    """How tokens are sampled, and which of the sampling options are assumed."""

    sampling: Sampling
    assumed: tuple[str, ...] = ()


def drawing(config: EngineConfig, predictor: PipelinePredictor) -> Drawing:
    """Return how an engine's tokens are drawn.

    With step times of kernels only, the model's `generation_config.json` counts. Other step times
    include a sampler, or are of another kind: there only the scenario's options count. Two things
    are assumed: that a model without a known file asks for nothing, and the time of penalties in
    versions that count the tokens anew in each step.

    Source: `ModelConfig.get_diff_sampling_param` in vllm/config/model.py, since 0.7.
    Raises ScenarioError for a sampler that has nothing to do.
    """
    sampling, assumed = config.sampling or Sampling(), list[str]()
    if predictor.traits.kernels_only and sampling.generation_config == "auto":
        name = config.model if isinstance(config.model, str) else config.model.name
        said = asked_by_model(name)
        if said is None and config.sampling is None:
            assumed.append("sampling")
        sampling = sampling.or_else(said or {})
    try:
        sampling.check_sampler()
    except ValueError as error:
        raise ScenarioError(f"sampling: {error}") from None
    if sampling.penalty and not version_of(config.engine).rules.keeps_counts:
        assumed.append(f"sampling.{sampling.penalty}")
    return Drawing(sampling, tuple(assumed))
