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
    """The path of one request, and its present stay among the running decodes.

    A preempted request goes on where it was: a step that was taken is not drawn again. A request
    may leave the decodes and join them again with no record between; its steps add up.

    stay: tokens that it has got by 0, 1, 2, ... steps of the stay, the last cut at its target.
    """

    __slots__ = ("_recorded", "_step", "_target", "_tokens", "stay")

    def __init__(self, tokens: NDArray[np.int64]) -> None:
        self._tokens = tokens
        self._step = 0  # steps taken
        self._recorded = 0  # of those
        self._target = 0
        self.stay = tokens[:1]

    def begin(self, num_tokens: int) -> NDArray[np.int64]:
        """Begin a stay for so many tokens; return `stay`."""
        tokens, step = self._tokens, self._step
        self._target = target = tokens.item(step) + num_tokens
        last = tokens.searchsorted(target)
        self.stay = tokens[step : last + 1] - tokens[step]
        self.stay[-1] = num_tokens
        return self.stay

    def end(self, num_steps: int) -> int:
        """End a stay after so many steps; return the tokens that it gave."""
        self._step += num_steps
        return self.stay.item(num_steps)

    @property
    def accepted(self) -> NDArray[np.uint16]:
        """Drafts that each of the steps to come accepts."""
        return (np.diff(self._tokens[self._step :]) - 1).astype("<u2")

    @property
    def num_steps(self) -> int:
        """Steps of stays that are over, and not recorded."""
        return self._step - self._recorded

    @property
    def num_accepted(self) -> int:
        """Drafts accepted in them, in the last perhaps more than had room (vLLM counts so)."""
        tokens = self._tokens
        return tokens.item(self._step) - tokens.item(self._recorded) - self.num_steps

    @property
    def num_last(self) -> int:
        """Tokens that the last of them gave; 0 without any."""
        if not self.num_steps:
            return 0
        tokens, step = self._tokens, self._step
        return tokens.item(step) - tokens.item(step - 1) - self.num_beyond

    @property
    def num_beyond(self) -> int:
        """Tokens of that step for which its target had no room."""
        return max(self._tokens.item(self._step) - self._target, 0)

    def forget_stay(self) -> None:
        """Forget stays that are recorded."""
        self._recorded = self._step

    @property
    def step_tokens(self) -> NDArray[np.int64]:
        """Tokens of each step that is over and not recorded; they sum to the tokens emitted."""
        tokens = self._tokens[self._recorded : self._step + 1]
        steps = tokens[1:] - tokens[:-1]
        steps[-1:] -= self.num_beyond
        return steps
