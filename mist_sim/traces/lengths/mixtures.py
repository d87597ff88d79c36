"""Requests of several classes, each with lengths of its own, such as chats and batch jobs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np

from mist_sim.durations import BLOCK
from mist_sim.errors import brief
from mist_sim.traces.base import SAMPLERS, TraceRow, require_count
from mist_sim.traces.lengths.distributions import LengthDistribution
from mist_sim.traces.lengths.synthetic import checked_lengths, shortest_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestClass:
    """Requests of one class.

    prompt, output: distributions of their lengths in tokens, drawn independently. share: of all
    requests, relative to the shares of the other classes (> 0). priority: of its requests; smaller
    is more urgent.
    """

    prompt: LengthDistribution
    output: LengthDistribution
    share: float = 1.0
    priority: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share < math.inf:
            raise ValueError(f"share must be finite and > 0, got {self.share}")


@SAMPLERS.register("mix")
@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Requests of several classes, each with lengths of its own.

    num_requests: how many (>= 1), of all classes. classes: by name, which requests carry as their
        label; limits of the slo may be for a class. A class has `prompt` and `output`, laws of
        lengths as of `synthetic`; `share`, by default 1, relative to those of the others; and
        `priority`, by default 0.

    The class of each request is drawn at random, in the proportion of the shares. Each class has
    its own random streams: changing the lengths of one class changes no other class.
    """

    num_requests: int
    classes: Mapping[str, RequestClass]

    def __post_init__(self) -> None:
        require_count("num_requests", self.num_requests)
        if not self.classes:
            raise ValueError("classes must have at least one entry, got {}")
        for name in self.classes:
            if not name:
                raise ValueError(f"classes must have names, got {brief(name)}")

    @property
    def shortest_prompt(self) -> int:
        """Tokens that each prompt has at least."""
        return min(shortest_of(each.prompt) for each in self.classes.values())

    def sample_rows(self, rng: np.random.Generator) -> Iterator[TraceRow]:
        """Yield `num_requests` rows without times. Raises ScenarioError for a length below 1."""
        choices, *others = rng.spawn(1 + 2 * len(self.classes))
        pairs = zip(others[::2], others[1::2], strict=True)
        several = [
            _rows(name, each, *generators)
            for (name, each), generators in zip(self.classes.items(), pairs, strict=True)
        ]
        return islice(map(next, self._drawn(several, choices)), self.num_requests)

    def _drawn(
        self, several: list[Iterator[TraceRow]], rng: np.random.Generator
    ) -> Iterator[Iterator[TraceRow]]:
        """Yield the rows of a class drawn at random, without end."""
        shares = np.array([each.share for each in self.classes.values()])
        while True:
            for place in rng.choice(len(several), BLOCK, p=shares / shares.sum()).tolist():
                yield several[place]


def _rows(
    name: str,
    each: RequestClass,
    prompt_rng: np.random.Generator,
    output_rng: np.random.Generator,
) -> Iterator[TraceRow]:
    """Yield rows of a class, without end."""
    while True:
        prompts = checked_lengths(each.prompt.sample(prompt_rng, BLOCK), each.prompt)
        outputs = checked_lengths(each.output.sample(output_rng, BLOCK), each.output)
        for prompt, output in zip(prompts.tolist(), outputs.tolist(), strict=True):
            yield TraceRow(prompt, output, label=name, priority=each.priority)
