"""The workload as a gateway sees it, window by window."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle
from typing import NamedTuple

from mist_sim.core.request import Request
from mist_sim.traces import TraceRow


class Seen(NamedTuple):
    """A request: its arrival, in seconds since the window began, and its prompt's tokens.

    answer: its tokens; None if it has not ended, or failed.
    """

    time: float
    prompt: int
    answer: int | None = None


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests of a window of so many seconds, in order; answers that ended in it.

    So long answers are under-represented, unless the window is much longer than they take.
    """

    seconds: float
    requests: tuple[Seen, ...]

    @property
    def answers(self) -> list[int]:
        """The tokens of the answers that are known."""
        return [one.answer for one in self.requests if one.answer is not None]

    @property
    def figures(self) -> tuple[float, float, float] | None:
        """Requests per second, and the mean tokens of a prompt and of an answer.

        None where no answer is known.
        """
        answers, num_requests = self.answers, len(self.requests)
        if not answers:
            return None
        prompts = sum([one.prompt for one in self.requests])
        return num_requests / self.seconds, prompts / num_requests, sum(answers) / len(answers)

    def rows(self) -> list[TraceRow]:
        """Return the requests as a workload, the first at 0 s.

        Requests whose answer length is unknown take the known lengths, one after the other. Raises
        ValueError if none is known.
        """
        answers, first = cycle(self.answers), self.requests[0].time
        if self.figures is None:
            raise ValueError("requests must have one at least whose answer is known")
        return [
            TraceRow(prompt, max(next(answers) if answer is None else answer, 1), time - first)
            for time, prompt, answer in self.requests
        ]


def differ(seen: tuple[float, ...], known: tuple[float, ...], part: float) -> bool:
    """Tell whether any figure differs by more than a share from its reference."""
    return any(abs(s - k) > part * k for s, k in zip(seen, known, strict=True))


class TrafficWatch:
    """Counts requests sent and served.

    Children of requests do not count: they are part of the answer.
    """

    def __init__(self) -> None:
        self._begin = 0.0
        self._requests: dict[Request, Seen] = {}

    def begin(self, now: float) -> None:
        """Begin a window, in seconds of the run."""
        self._begin = now
        self._requests.clear()

    def sent(self, request: Request, now: float) -> None:
        """Note a request that is sent for the first time."""
        if request.parent_id is None:
            self._requests[request] = Seen(now - self._begin, request.num_prompt_tokens)

    def served(self, request: Request, num_output_tokens: int) -> None:
        """Note a request with a complete answer."""
        if request in self._requests:
            self._requests[request] = self._requests[request]._replace(answer=num_output_tokens)

    def seen(self, now: float) -> Traffic:
        """Return the requests and answers since the window began."""
        return Traffic(now - self._begin, tuple(self._requests.values()))
