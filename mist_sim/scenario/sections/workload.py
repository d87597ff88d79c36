"""The workload of a scenario file: requests, arrivals and pipelines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, cast

from pydantic import BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

from mist_sim.core.request import Stage
from mist_sim.errors import ScenarioError
from mist_sim.models import load_generating, load_model
from mist_sim.scenario.format import paths
from mist_sim.scenario.format.families import (
    ARRIVAL,
    DURATION_LAW,
    SAMPLER,
    STAGE,
    TRACE_READER,
)
from mist_sim.scenario.format.fields import ByPriority, Duration, Number, Whole, as_tuple
from mist_sim.scenario.format.parts import Part, Settings, Strict, part_type, settings
from mist_sim.scenario.format.problems import Problem, said_by
from mist_sim.scenario.sections.clients.keys import AtLeastOne
from mist_sim.stages import Decode, EncodeImages, Growing, KvRetrieval, Prefill
from mist_sim.traces import (
    ClosedLoop,
    Mix,
    NamesModels,
    PipelineTemplate,
    RequestClass,
    Retries,
    TimeLimits,
    TraceArrivals,
    completion_pipeline,
    template,
)
from mist_sim.traces.predictions import Predictions
from mist_sim.traces.prompt_images import ImageLaw, PromptImages

_Share = Annotated[Number, Field(gt=0)]
Entry = Annotated[Part | str, STAGE]
Pipeline = Annotated[tuple[Entry, ...], BeforeValidator(as_tuple)]

_OF_THE_ROW: dict[str, type[EncodeImages | KvRetrieval | Prefill | Decode]] = {
    "encode_images": EncodeImages,
    "kv_retrieval": KvRetrieval,
    "prefill": Prefill,
    "decode": Decode,
}


def _requires_nothing(schema: dict[str, Any]) -> None:
    """Tell editors that a workload with a trace may go without arrivals."""
    del schema["required"]


def _whole_keys(value: Any) -> Any:
    """Read keys that are whole numbers in quotes, as a resolved scenario writes them."""
    if not isinstance(value, dict):
        return value
    return {
        int(key) if isinstance(key, str) and key.lstrip("-").isdecimal() else key: share
        for key, share in value.items()
    }


def _known_name(value: Any, info: ValidationInfo) -> Any:
    """Read a model by its name or path."""
    return paths.spec(value, info, ".json", load_generating) if isinstance(value, str) else value


def _with_known_names(value: Any, info: ValidationInfo) -> Any:
    """Read models by their names or paths."""
    if not isinstance(value, dict):
        return value
    return {
        paths.spec(key, info, ".json", load_generating) if isinstance(key, str) else key: share
        for key, share in value.items()
    }


_IMAGES = part_type(
    PromptImages,
    meanings={
        "numbers": Annotated[dict[Whole, Number], BeforeValidator(_whole_keys)] | None,
        "model": Annotated[str | None, BeforeValidator(_known_name)],
    },
)


class WorkloadSpec(Strict):
    """Rows of a trace, or lengths that are drawn; arrivals; and a pipeline."""

    model_config = ConfigDict(json_schema_extra=_requires_nothing)

    trace: Annotated[Part, TRACE_READER] | None = Field(
        None, description="a file of requests; either this or lengths"
    )
    lengths: Annotated[Part, SAMPLER] | None = Field(
        None, description="requests whose lengths are drawn; either this or trace"
    )
    arrivals: Annotated[Part, ARRIVAL] = Field(
        description="when requests are sent, such as {type: poisson, rate: 2 /s}"
    )
    pipeline: Pipeline = Field(
        ("prefill", "decode"),
        description="stages of a request in order; prefill and decode have the row's lengths, "
        "and kv_retrieval alone that of its prompt",
    )

    @model_validator(mode="before")
    @classmethod
    def _times_of_the_trace(cls, data: Any) -> Any:
        """Use a trace's own times unless arrivals are given."""
        if isinstance(data, dict) and data.get("trace") is not None and "arrivals" not in data:
            return {**data, "arrivals": "trace"}
        return data

    priorities: Annotated[dict[Whole, _Share], BeforeValidator(_whole_keys)] | None = Field(
        None,
        description="share of the requests that get each priority, such as {0: 0.2, 10: 0.8}",
    )
    models: Annotated[dict[str, _Share], BeforeValidator(_with_known_names)] | None = Field(
        None,
        description="share of the requests that name each model and go to clients that serve it, "
        "such as {llama-3.1-8b: 0.7, llama-3.1-70b: 0.3}; without it, they go to any",
    )
    adapters: dict[str, _Share] | None = Field(
        None,
        description="share of the requests that name each LoRA adapter, such as {base: 0.2, sql: "
        "0.5, chat: 0.3}, where base stands for none; all of a conversation name the same one. "
        "Needs clients with lora",
    )
    images: Annotated[Part, Settings(_IMAGES)] | None = Field(
        None,
        description="images that stand before the text of prompts. Needs clients with images, or "
        "encode_images in the pipeline and a client of type image_encoder",
    )
    max_concurrency: AtLeastOne | None = Field(
        None,
        description="most requests of an open loop that are under way; the others wait with "
        "their sender, and their latencies count from when they are sent (vllm bench serve "
        "--max-concurrency with --request-rate)",
    )
    max_tokens: AtLeastOne | None = Field(
        None,
        description="most tokens of an answer; longer ones end there (OpenAI's name; vLLM's "
        "servers cap them with --override-generation-config, max_new_tokens)",
    )
    predictions: Annotated[Part, settings(Predictions)] | None = Field(
        None,
        description="lengths of answers are predicted, with errors; for scheduler.order: "
        "shortest_predicted_first, and for routers and schedulers of your own",
    )
    timeout: Duration | None = Field(
        None, description="an attempt without its whole answer so long after sending is given up"
    )
    ttft_timeout: Duration | None = Field(
        None, description="an attempt without its first token so long after sending is given up"
    )
    patience: Annotated[Part, DURATION_LAW] | None = Field(
        None, description="time after which a user goes away, whatever was received by then"
    )
    ttft_deadline: Annotated[float | dict[int, float], ByPriority()] | None = Field(
        None,
        description="time from sending in which the first token is due, for all or by priority, "
        "such as {0: 1 s, 10: 5 s}; for engines that look at it",
    )
    retries: Annotated[Part, settings(Retries)] | None = Field(
        None, description="which failures are sent again, and when; without it, none"
    )

    def problems(self) -> Iterable[Problem]:
        """Yield problems of keys in combination."""
        if self.priorities and self.classes:
            yield Problem(
                ("priorities",), "must be left out with lengths of classes, which have their own"
            )
        yield from self._problems_of_names()
        if (self.trace is None) == (self.lengths is None):
            both = "both" if self.trace else "neither"
            yield Problem((), f"must have either trace or lengths, got {both}")
        elif self.lengths is not None and self.arrivals.plugin is TraceArrivals:
            others = ", ".join(name for name in ARRIVAL.registry if name != "trace")
            yield Problem(
                ("arrivals",), f"lengths have no times of their own; choose one of {others}"
            )
        if self.max_concurrency is not None and self.arrivals.plugin is ClosedLoop:
            yield Problem(
                ("max_concurrency",),
                "must be left out with a closed loop, whose concurrency is its users",
            )
        if self.max_tokens is not None and "decode" not in self.pipeline:
            yield Problem(
                ("max_tokens",),
                "must be left out with a pipeline without decode, whose stages say their tokens",
            )
        try:
            self.make_time_limits()
        except ValueError as error:
            yield said_by(error, type(self))
        try:
            self.make_pipeline()
        except ValueError as error:
            yield Problem(("pipeline",), str(error))

    def _problems_of_names(self) -> Iterable[Problem]:
        for key, shares in (("models", self.models), ("adapters", self.adapters)):
            if shares == {}:
                yield Problem((key,), "must have at least one entry, got {}")
        if self.models and self._rows_name_models:
            yield Problem(
                ("models",), "must be left out where the rows of the trace name their models"
            )

    @property
    def _rows_name_models(self) -> bool:
        source = self.trace.make() if self.trace else None
        return isinstance(source, NamesModels) and source.names_models

    @property
    def all_name_models(self) -> bool:
        """Whether every request names the model that has to answer."""
        return bool(self.models) or self._rows_name_models

    @property
    def classes(self) -> Mapping[str, RequestClass]:
        """The classes of requests that the lengths name."""
        source = self.lengths.make() if self.lengths else None
        return source.classes if isinstance(source, Mix) else {}

    @property
    def has_predictions(self) -> bool:
        """Whether a part predicts the lengths of answers."""
        column = getattr(self.trace, "predicted_column", None) if self.trace else None
        return self.predictions is not None or column is not None

    @property
    def known_priorities(self) -> set[int]:
        """The priorities that requests have."""
        if self.priorities:
            return set(self.priorities)
        return {each.priority for each in self.classes.values()} or {0}

    def may_name(self, model: str) -> bool:
        """Tell whether a request may name a model; of a trace that is unknown until it is read."""
        return self._rows_name_models or model in (self.models or {})

    @property
    def source(self) -> Part:
        """The trace or the lengths, whichever is given."""
        return cast("Part", self.trace or self.lengths)

    @property
    def num_requests(self) -> int | None:
        """Number of requests; None if the trace would have to be read."""
        return getattr(self.source, "num_requests", None)

    @property
    def stages(self) -> list[str]:
        """The kinds of the pipeline's stages, in order."""
        return [part if isinstance(part, str) else part.plugin.kind for part in self.pipeline]

    def leads_to(self, position: int) -> tuple[str, ...]:
        """Return the kinds of stages that a stage of the pipeline may add when it is served."""
        part = self.pipeline[position]
        plugin = None if isinstance(part, str) else part.plugin
        return plugin.leads_to if plugin is not None and issubclass(plugin, Growing) else ()

    def names_models(self, position: int) -> list[tuple[str, str]]:
        """Return (parameter, model) of models that a stage of the pipeline calls."""
        part = self.pipeline[position]
        if isinstance(part, str) or not issubclass(part.plugin, Growing):
            return []
        given = part.parameters()
        return [(key, given[key]) for key in part.plugin.names_models if given.get(key)]

    def make_images(self, model: str | None) -> ImageLaw | None:
        """Return the images of prompts; None: they have none. model: the scenario's.

        Raises ScenarioError for a model without a vision tower that is known.
        """
        if self.images is None:
            return None
        said: PromptImages = self.images.make()
        name = said.model or model
        if name is None:
            raise ScenarioError("images.model is required, since the scenario has no model")
        spec = load_model(name)
        if spec.vision is None:
            raise ScenarioError(
                f"images.model must have a vision tower that is known, got {spec.name}"
            )
        return ImageLaw(said, spec.vision)

    def make_time_limits(self) -> TimeLimits | None:
        """Return how long senders wait; None if all wait without limit."""
        limits = TimeLimits(
            timeout=self.timeout,
            ttft_timeout=self.ttft_timeout,
            patience=self.patience.make() if self.patience else None,
            ttft_deadline=self.ttft_deadline,
        )
        return None if limits == TimeLimits() else limits

    def make_pipeline(self) -> PipelineTemplate:
        """Return a function from a row to its stages. Raises ValueError for an invalid order."""
        parts: list[type[EncodeImages | KvRetrieval | Prefill | Decode] | Stage] = [
            _OF_THE_ROW[part] if isinstance(part, str) else part.make() for part in self.pipeline
        ]
        if self.pipeline == ("prefill", "decode"):
            return completion_pipeline
        return template(parts)
