"""Passes of a model over batches of texts, which embed queries and rank passages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mist_sim.core.batch import StepBatch
from mist_sim.errors import ScenarioError
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.devices.device_loading import load_gpu
from mist_sim.hardware.machine import Machine
from mist_sim.hardware.predictors.analytic.roofline import RooflinePredictor
from mist_sim.models import load_model
from mist_sim.units import DollarsPerHour


class TextPass(Protocol):
    """Reads texts with a model, several at once."""

    def seconds(self, lengths: Sequence[int]) -> float:
        """Return how long it takes for texts of so many tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderPass:
    """A model that reads texts on GPUs of its own, in one pass per batch of texts.

    model: a catalog name, a Hugging Face id or the path of a config.json; an encoder, or a language
        model that only reads prompts.
    gpu: a name of the catalog, or the path of a TOML file.
    tensor_parallel_size: GPUs that each hold a slice of a layer.
    max_num_texts: most texts per pass; 32 is the default of sentence-transformers (`batch_size`).
    enforce_eager: whether the host launches every kernel, as plain PyTorch does.
    gpu_price: dollars per hour of a GPU; by default the median of the catalog's offers.

    A text is cut at the model's longest input (`max_position_embeddings`). Passes are timed by the
    roofline of the model's operators, without tokenising.
    Raises ScenarioError for unknown names, and for a model that does not fit in the GPUs' memory.
    """

    model: str
    gpu: str
    tensor_parallel_size: int = 1
    max_num_texts: int = 32
    enforce_eager: bool = True
    gpu_price: DollarsPerHour | None = None
    _predictor: RooflinePredictor = field(init=False, repr=False, compare=False)
    _known: dict[tuple[int, ...], float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("tensor_parallel_size", "max_num_texts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        model, ranks = load_model(self.model), self.tensor_parallel_size
        cluster = Cluster(load_gpu(self.gpu), ranks)
        predictor = RooflinePredictor(model, cluster, enforce_eager=self.enforce_eager)
        needed, memory = model.weight_bytes_per_rank(ranks), cluster.gpu.memory
        if needed > memory:
            raise ScenarioError(
                f"model must fit the memory of {self.gpu}: {model.name} has weights of "
                f"{needed / 2**30:.2f} GiB a GPU, got {memory / 2**30:.2f} GiB; raise "
                "tensor_parallel_size"
            )
        object.__setattr__(self, "_predictor", predictor)
        object.__setattr__(self, "_known", {})

    @property
    def predictor(self) -> RooflinePredictor:
        """The predictor of the passes."""
        return self._predictor

    @property
    def machine(self) -> Machine:
        """The GPUs that the encoder runs on, for power and cost."""
        predictor = self._predictor
        return Machine(model=predictor.model, cluster=predictor.cluster, price=self.gpu_price)

    def seconds(self, lengths: Sequence[int]) -> float:
        """Return how long passes over texts of so many tokens take, one pass after the other."""
        return sum([seconds for _, seconds in self.passes(lengths)])

    def passes(self, lengths: Sequence[int]) -> list[tuple[tuple[int, ...], float]]:
        """Return the passes over texts of these lengths: tokens of each text, and seconds."""
        most, size = self._predictor.model.max_position_embeddings, self.max_num_texts
        texts = [min(length, most) for length in lengths if length > 0]
        cut = [tuple(texts[first : first + size]) for first in range(0, len(texts), size)]
        return [(each, self._pass(each)) for each in cut]

    def _pass(self, lengths: tuple[int, ...]) -> float:
        """Return the seconds of one pass; passes over texts of equal lengths are cached."""
        if (known := self._known.get(lengths)) is not None:
            return known
        seconds = self._predictor.step_time(StepBatch(tuple((length, 0) for length in lengths)))
        if len(set(lengths)) == 1:
            self._known[lengths] = seconds
        return seconds
