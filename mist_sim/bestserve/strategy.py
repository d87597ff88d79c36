"""Strategies by the paper's names, and the ones to compare (section 3.5).

"2m" is two instances that do both, "1p2d" one for prompts and two for answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Self

from mist_sim.bounds import COPIES
from mist_sim.checks import Count, Positive, check_fields
from mist_sim.errors import ScenarioError, brief

_TOGETHER = re.compile(r"(\d{1,9})m")
_APART = re.compile(r"(\d{1,9})p(\d{1,9})d")


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """A strategy: equal instances that serve together (collocation) or apart (disaggregation).

    together: instances that prefill and decode (m of "xm"); 0: they are apart. prefill, decode:
    instances of each kind (y and z of "ypzd").
    tensor_parallel_size, pipeline_parallel_size: of every instance.
    gpu: of every instance; None: as the scenario says.
    prefill_batch: prompts that an instance computes at a time, at most. decode_batch: answers that
    it generates at a time, the boxes of the paper's section 3.4.2.

    Raises ScenarioError for none of a kind, and numbers below 1.
    """

    together: int = 0
    prefill: int = 0
    decode: int = 0
    tensor_parallel_size: Count = 1
    pipeline_parallel_size: Count = 1
    prefill_batch: Count = 4
    decode_batch: Count = 16
    gpu: str | None = None

    def __post_init__(self) -> None:
        check_fields(self, ScenarioError)
        counts = (self.together, self.prefill, self.decode)
        is_one = self.together > 0 and self.prefill == self.decode == 0
        is_other = self.together == 0 and self.prefill > 0 and self.decode > 0
        if not (is_one or is_other) or sum(counts) > COPIES:
            raise ScenarioError(
                "strategy must have instances that do both, or >= 1 of prefill and >= 1 of decode, "
                f"{COPIES} at most, got {self.name}; such as 2m or 1p1d"
            )

    @classmethod
    def parse(cls, name: str, **layout: Any) -> Self:
        """Return the strategy of a name such as "2m" or "1p2d". layout: the other fields.

        Raises ScenarioError for other names.
        """
        if found := _TOGETHER.fullmatch(name):
            return cls(together=int(found[1]), **layout)
        if found := _APART.fullmatch(name):
            return cls(prefill=int(found[1]), decode=int(found[2]), **layout)
        raise ScenarioError(
            "strategy must be xm for x instances that do both, or ypzd for y that prefill and z "
            f"that decode, such as 2m or 1p2d, got {brief(name)}"
        )

    @property
    def name(self) -> str:
        """The paper's name, without layout and batches."""
        if self.prefill or self.decode:
            return f"{self.prefill}p{self.decode}d"
        return f"{self.together}m"

    @property
    def layout(self) -> str:
        """The layout of an instance, such as "tp4", "tp4-pp2" or "h200-tp4"."""
        gpu = f"{self.gpu}-" if self.gpu else ""
        stages = self.pipeline_parallel_size
        return f"{gpu}tp{self.tensor_parallel_size}" + (f"-pp{stages}" if stages > 1 else "")

    @property
    def label(self) -> str:
        """Name and layout, as in the paper's Figure 11, such as "2m-tp4"."""
        return f"{self.name}-{self.layout}"

    @property
    def is_apart(self) -> bool:
        """Whether prompts and answers are served by instances of their own."""
        return not self.together

    @property
    def one_of_each(self) -> Strategy:
        """The smallest strategy with such instances."""
        return replace(
            self,
            together=min(self.together, 1),
            prefill=min(self.prefill, 1),
            decode=min(self.decode, 1),
        )

    @property
    def num_instances(self) -> int:
        """Instances of all kinds."""
        return self.together + self.prefill + self.decode

    @property
    def num_gpus(self) -> int:
        """GPUs of all instances."""
        return self.num_instances * self.tensor_parallel_size * self.pipeline_parallel_size


def names_up_to(most: int) -> Iterator[str]:
    """Yield the names of all strategies of at most so many instances, the smallest first.

    Raises ScenarioError for fewer than one.
    """
    if not 1 <= most <= COPIES:
        raise ScenarioError(f"instances must be in [1, {COPIES}], got {most}")
    for num in range(1, most + 1):
        yield f"{num}m"
        for prefill in range(1, num):
            yield f"{prefill}p{num - prefill}d"


_SIZES = (
    "tensor_parallel_sizes",
    "pipeline_parallel_sizes",
    "prefill_batches",
    "decode_batches",
)


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
    tensor_parallel_sizes: tuple[Positive[int], ...] = ()
    pipeline_parallel_sizes: tuple[Positive[int], ...] = ()
    prefill_batches: tuple[Positive[int], ...] = (4,)
    decode_batches: tuple[Positive[int], ...] = (16,)
    max_gpus: Positive[int] | None = None

    def __post_init__(self) -> None:
        check_fields(self, ScenarioError)
        for name in (*_SIZES, "names", "gpus"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ScenarioError(f"{name} must differ, got {brief(list(values))}")
            if name.endswith("_batches") and not values:
                raise ScenarioError(f"{name} must be one or more numbers, got none")
        for name in self.names:
            Strategy.parse(name)
        if not self.names:
            list(names_up_to(min(self.instances, 1)))

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
