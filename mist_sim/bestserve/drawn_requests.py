"""Requests as arrays of arrivals and lengths, given or of a scenario's workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mist_sim.errors import ScenarioError, listed
from mist_sim.rng import Streams
from mist_sim.scenario import Scenario, build_workload
from mist_sim.stages import Decode, Prefill
from mist_sim.studies.built import Built
from mist_sim.traces import Workload

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_STAGES = [Prefill.kind, Decode.kind]


@dataclass(frozen=True)
class Requests:
    """Requests in order of their arrival.

    arrival: seconds, never decreasing. prompt: tokens of each prompt (s). output: tokens of each
    answer (s+), the one that the prefill emits included; an answer of one token is not decoded.

    Raises ScenarioError if lists differ in length, there are no requests, arrival times decrease,
    or a length is below 1.
    """

    arrival: Floats
    prompt: Ints
    output: Ints

    def __post_init__(self) -> None:
        sizes = {len(self.arrival), len(self.prompt), len(self.output)}
        if len(sizes) > 1 or not len(self.arrival):
            raise ScenarioError(
                "requests must be >= 1, with an arrival, a prompt and an output each, got "
                f"{len(self.arrival)}, {len(self.prompt)} and {len(self.output)}"
            )
        is_time = np.isfinite(self.arrival).all() and self.arrival[0] >= 0
        if not is_time or (np.diff(self.arrival) < 0).any():
            raise ScenarioError(
                "arrival must be finite times >= 0 s that never decrease; sort the requests"
            )
        for name, lengths in (("prompt", self.prompt), ("output", self.output)):
            if (least := int(lengths.min())) < 1:
                raise ScenarioError(
                    f"{name} must have >= 1 token in every request, got {least}; the first token "
                    "of an answer is the prefill's"
                )

    @classmethod
    def of(
        cls,
        arrival: Sequence[float],
        prompt: int | Sequence[int],
        output: int | Sequence[int],
    ) -> Requests:
        """Return requests of equal lengths, or with one each. arrival: seconds."""
        num = len(arrival)

        def each(lengths: int | Sequence[int]) -> Ints:
            given = np.asarray(lengths, dtype=np.int64)
            return np.full(num, given) if given.ndim == 0 else given

        return cls(np.asarray(arrival, dtype=np.float64), each(prompt), each(output))

    def __len__(self) -> int:
        return len(self.arrival)

    def scaled(self, factor: float) -> Requests:
        """Return the same requests, their arrivals closer together by a factor (> 0)."""
        return replace(self, arrival=self.arrival / factor)


@dataclass(frozen=True)
class _Offered(Built):
    """A scenario used only for its workload: its clients need not fit."""

    @cached_property
    def workload(self) -> Workload:
        """The workload of the scenario that is offered."""
        return build_workload(self.scenario)


def requests_of(scenario: Scenario, seed: int) -> Requests:
    """Return the requests of a scenario's workload with a seed, as at one request a second.

    Raises ScenarioError for arrivals without a rate, for requests that do something beside prefill
    and decode, and where none has tokens to decode.
    """
    built = _Offered(scenario)
    own = built.rates.own
    found = list(built.workload.requests(Streams(seed)))
    others = {
        kind
        for request in found
        for kind in [stage.kind for stage in request.stages]
        if [stage.kind for stage in request.stages] != _STAGES
    }
    if others:
        raise ScenarioError(
            "workload.pipeline must be [prefill, decode] for BestServe's simulators, got requests "
            f"with {listed(sorted(others))}; `mist goodput` searches any scenario"
        )
    requests = Requests(
        np.array([request.arrival_time for request in found], dtype=np.float64),
        np.array([request.num_prompt_tokens for request in found], dtype=np.int64),
        np.array([request.num_output_tokens for request in found], dtype=np.int64),
    )
    if requests.output.max() == 1:
        raise ScenarioError(
            "workload must have answers of two tokens or more: those of one have nothing to "
            "decode, and BestServe ranks what decodes; raise workload.lengths.output"
        )
    return requests.scaled(1 / own)
