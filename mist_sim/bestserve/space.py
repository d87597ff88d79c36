"""The strategies to compare: numbers of instances, layouts and batch sizes (section 3.5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from mist_sim.bestserve.strategy import Strategy, names_up_to
from mist_sim.bounds import COPIES
from mist_sim.errors import ScenarioError, brief


@dataclass(frozen=True, kw_only=True)
class Space:
    """The strategies to compare: all combinations.

    names: such as "2m" and "1p2d"; empty: all of at most `instances` instances.
    gpus: of the instances of a strategy, which are alike. gpus, tensor_parallel_sizes,
    pipeline_parallel_sizes: empty: as the scenario's client has it.
    prefill_batches, decode_batches: as in `Strategy`; the paper fixes one of each, 4 and 16 in its
    Table 4. max_gpus: of a strategy; None: any number.

    Raises ScenarioError for values below 1, values given twice, and unknown names.
    """

    names: tuple[str, ...] = ()
    instances: int = 5
    gpus: tuple[str, ...] = ()
    tensor_parallel_sizes: tuple[int, ...] = ()
    pipeline_parallel_sizes: tuple[int, ...] = ()
    prefill_batches: tuple[int, ...] = (4,)
    decode_batches: tuple[int, ...] = (16,)
    max_gpus: int | None = None

    def __post_init__(self) -> None:
        for name in (
            "tensor_parallel_sizes",
            "pipeline_parallel_sizes",
            "prefill_batches",
            "decode_batches",
        ):
            _check(name, getattr(self, name))
        for name in ("prefill_batches", "decode_batches"):
            if not getattr(self, name):
                raise ScenarioError(f"{name} must be one or more numbers, got none")
        for name in ("names", "gpus"):
            if len(set(found := getattr(self, name))) < len(found):
                raise ScenarioError(f"{name} must differ, got {brief(list(found))}")
        for name in self.names:
            Strategy.parse(name)
        if not self.names:
            list(names_up_to(min(self.instances, 1)))
        if self.max_gpus is not None and self.max_gpus < 1:
            raise ScenarioError(f"max_gpus must be >= 1, got {self.max_gpus}")

    def strategies(self, layout: tuple[int, int]) -> list[Strategy]:
        """Return the strategies. layout: tensor and pipeline parallel size where none are given.

        Raises ScenarioError without strategies, or with more than 10,000.
        """
        found: list[Strategy] = []
        for strategy in self._all(layout):
            if self.max_gpus is None or strategy.num_gpus <= self.max_gpus:
                found.append(strategy)
            if len(found) > COPIES:
                raise ScenarioError(
                    f"strategies must be <= {COPIES}, got more; try fewer instances, layouts or "
                    "batches"
                )
        if not found:
            raise ScenarioError(
                f"max_gpus must allow a strategy, got {self.max_gpus}: every one needs more; raise "
                "it or try smaller layouts"
            )
        return found

    def _all(self, layout: tuple[int, int]) -> Iterator[Strategy]:
        tensors = self.tensor_parallel_sizes or layout[:1]
        stages = self.pipeline_parallel_sizes or layout[1:]
        names = list(self.names) or list(names_up_to(self.instances))
        batches = product(self.prefill_batches, self.decode_batches)
        gpus = self.gpus or (None,)
        every = product(batches, gpus, tensors, stages, names)
        for (prefill, decode), gpu, tensor, stage, name in every:
            yield Strategy.parse(
                name,
                gpu=gpu,
                tensor_parallel_size=tensor,
                pipeline_parallel_size=stage,
                prefill_batch=prefill,
                decode_batch=decode,
            )


def _check(name: str, values: Sequence[int]) -> None:
    if any(value < 1 for value in values):
        raise ScenarioError(f"{name} must be >= 1, got {min(values)}")
    if len(set(values)) < len(values):
        raise ScenarioError(f"{name} must differ, got {brief(list(values))}")
