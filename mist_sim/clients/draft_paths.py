"""The number of tokens in each decode step of a request, drawn in advance.

A step gives one token of its own and the draft tokens accepted before the first rejected one.
Acceptance is drawn from a stream that depends only on the run's seed and the request, so neither
the client nor the time changes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mist_sim.rng import Streams

Vector = NDArray[np.int64]

_SPARE = 8  # steps drawn beyond the expected ones, so that one draw is mostly enough


@dataclass(frozen=True, slots=True)
class Speculation:
    """How a lane drafts.

    num_drafts: draft tokens per decode and step.
    num_lookahead_tokens: additional slots that a drafting model writes to.
    max_model_len: limit of a sequence's slots, tokens; None: no limit.
    draw: returns the path of a request (see `DraftPaths.draw`).
    """

    num_drafts: int
    num_lookahead_tokens: int
    max_model_len: int | None
    draw: Callable[[int, int], Vector]

    def num_slots(self, num_tokens: int) -> int:
        """Tokens that a decode keeps memory for in the step that computes its last of so many."""
        return self._capped(num_tokens + self.num_drafts + self.num_lookahead_tokens)

    def slots_ahead(self, context: int, num_ahead: int) -> int:
        """Return the tokens for which a prompt has memory once `context` of them are computed."""
        return self._capped(context + num_ahead)

    def _capped(self, num_slots: int) -> int:
        return num_slots if self.max_model_len is None else min(num_slots, self.max_model_len)


class DraftPaths:
    """Draws the paths of requests.

    survival: the chance that the first 1, 2, ... draft tokens of a step are all accepted.

    A counter-based generator is set to the request's counter instead of making one for each,
    which would take longer than everything else that a request costs.
    """

    def __init__(self, streams: Streams, survival: Sequence[float]) -> None:
        key = streams.generator("speculative decoding").integers(2**63, size=2, dtype=np.uint64)
        self._philox = np.random.Philox(key=key)
        self._draws = np.random.Generator(self._philox)
        self._start: Any = self._philox.state
        self._rising = np.sort(np.array(survival, dtype=float))
        self._most = 1 + len(survival)
        self._mean = 1.0 + float(self._rising.sum())

    def draw(self, request_id: int, num_tokens: int) -> NDArray[np.int64]:
        """Return the tokens that a request gets by 0, 1, 2, ... steps, `num_tokens` or more."""
        self._start["state"]["counter"][1] = request_id % 2**64  # ids of children are below 0
        self._philox.state = self._start
        steps = self._steps(num_tokens)
        while steps.sum() < num_tokens:
            steps = np.concatenate((steps, self._steps(num_tokens)))
        path = np.zeros(len(steps) + 1, dtype=np.int64)
        steps.cumsum(out=path[1:])
        return path

    def _steps(self, num_tokens: int) -> NDArray[np.int64]:
        """Draw about so many steps as give `num_tokens`."""
        chances = self._draws.random(int(num_tokens / self._mean) + _SPARE)
        # position i is accepted, and all before it, if the chance is below survival[i]
        return self._most - self._rising.searchsorted(chances, side="right")


class DraftPath:
    """The path of one request, which goes on where it was when the request is preempted."""

    __slots__ = ("_step", "_tokens")

    def __init__(self, tokens: NDArray[np.int64]) -> None:
        self._tokens = tokens
        self._step = 0  # steps taken

    @property
    def accepted(self) -> NDArray[np.uint16]:
        """Drafts that each of the steps to come accepts."""
        return (np.diff(self._tokens[self._step :]) - 1).astype("<u2")

    def take(self, num_steps: int, most: int) -> tuple[NDArray[np.int64], int]:
        """Take so many steps (>= 1), in which the request gets at most so many tokens.

        Returns the tokens of each, and the drafts accepted in them, in the last perhaps more than
        had room (vLLM counts so).
        """
        tokens = np.diff(self._tokens[self._step : self._step + num_steps + 1])
        self._step += num_steps
        number = int(tokens.sum())
        tokens[-1] -= max(number - most, 0)
        return tokens, number - num_steps
