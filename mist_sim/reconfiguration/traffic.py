"""What a gateway sees of the workload, window by window."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle
from math import inf

from mist_sim.core.request import Request
from mist_sim.traces import TraceRow


@dataclass(frozen=True, slots=True)
class Traffic:
    """What came in a window and what ended there; answers are known of the latter alone.

    seconds: of the window. arrivals: (seconds since it began, tokens of the prompt) of each request
    that was sent. answers: tokens of each that was served.
    """

    seconds: float
    arrivals: tuple[tuple[float, int], ...]
    answers: tuple[int, ...]

    @property
    def says_something(self) -> bool:
        """Whether there are requests and answers."""
        return bool(self.arrivals and self.answers)

    @property
    def figures(self) -> tuple[float, float, float]:
        """Requests per second, and the mean tokens of a prompt and of an answer."""
        num_requests = len(self.arrivals)
        prompts = sum([num_tokens for _, num_tokens in self.arrivals])
        return (
            num_requests / self.seconds,
            prompts / num_requests,
            sum(self.answers) / len(self.answers),
        )

    def differs(self, other: Traffic, part: float) -> bool:
        """Tell whether one of the figures is off by more than a part of the other traffic's."""
        return any(
            abs(mine - theirs) > part * theirs
            for mine, theirs in zip(self.figures, other.figures, strict=True)
        )

    def rows(self) -> list[TraceRow]:
        """Return its requests as a workload, the first at 0 s.

        They get the answers in the order in which these ended, again and again: whose answer is
        how long is not known of those that have not ended.
        """
        first = self.arrivals[0][0] if self.arrivals else 0.0
        return [
            TraceRow(num_tokens, max(answer, 1), time - first)
            for (time, num_tokens), answer in zip(self.arrivals, cycle(self.answers), strict=False)
        ]


class TrafficWatch:
    """Counts what is sent and what is served.

    Children of requests are not counted: what they are is part of the answer.
    """

    def __init__(self) -> None:
        self._begin = -inf
        self._arrivals: list[tuple[float, int]] = []
        self._answers: list[int] = []

    def begin(self, now: float) -> None:
        """Begin a window, in seconds of the run."""
        self._begin = now
        self._arrivals.clear()
        self._answers.clear()

    def sent(self, request: Request, now: float) -> None:
        """Note a request that is sent for the first time."""
        if request.parent_id is None:
            self._arrivals.append((now - self._begin, request.num_prompt_tokens))

    def served(self, request: Request, num_output_tokens: int) -> None:
        """Note a request whose answer is complete."""
        if request.parent_id is None:
            self._answers.append(num_output_tokens)

    def seen(self, now: float) -> Traffic:
        """Return what was seen since the window began."""
        return Traffic(now - self._begin, tuple(self._arrivals), tuple(self._answers))
