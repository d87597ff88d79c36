"""Jobs of random workloads: how long they are, when they come, and what they share."""

from __future__ import annotations

from typing import Any

import numpy as np

BLOCK_SIZE = 16

Spec = dict[str, Any]
"""A workload in plain types: `jobs`, and the options of the engine under vLLM's names.

A job has `arrival` (seconds; None where it comes `think` seconds after the job of index `after`
ends), `prompt` and `answer` (tokens), `priority`, and `content`: spans of (id, tokens).
"""


class Draw:
    """Draws of plain Python numbers."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def integer(self, low: int, high: int) -> int:
        """Return an integer of [low, high]."""
        return int(self._rng.integers(low, high, endpoint=True))

    def seconds(self, span: float) -> float:
        """Return seconds of [0, span)."""
        return float(self._rng.random()) * span

    def one_of(self, *values: Any) -> Any:
        """Return one of several."""
        return values[self.integer(0, len(values) - 1)]

    def chance(self, probability: float) -> bool:
        """Return True with a probability."""
        return float(self._rng.random()) < probability

    def lognormal(self, mean: float, sigma: float, low: int, high: int) -> int:
        """Return a whole number of a log-normal law, cut to [low, high]."""
        return min(high, max(low, int(self._rng.lognormal(mean, sigma))))

    def exponential(self, mean: float) -> float:
        """Return seconds of an exponential law."""
        return float(self._rng.exponential(mean))


def _answer(draw: Draw) -> int:
    return draw.one_of(1, draw.integer(1, 20), draw.integer(1, 120), draw.integer(1, 120))


def _job(draw: Draw, arrival: float | None, prompt: int, answer: int, content: Any) -> Spec:
    priority = draw.integer(0, 2)
    job = {"arrival": arrival, "prompt": prompt, "answer": answer, "priority": priority}
    return job | {"content": [[key, number] for key, number in content if number > 0]}


def plain(draw: Draw, number: int, span: float) -> list[Spec]:
    """Prompts of many lengths with nothing in common."""
    jobs = []
    for _ in range(number):
        prompt = draw.one_of(
            draw.integer(1, 60), draw.integer(20, 400), draw.integer(20, 400),
            draw.integer(300, 1_500),
        )  # fmt: skip
        jobs.append(_job(draw, draw.seconds(span), prompt, _answer(draw), ()))
    return sorted(jobs, key=arrival)


def prefixes(draw: Draw, number: int, span: float) -> list[Spec]:
    """Prompts that begin alike: instructions, and documents about which several ask."""
    instructions = [draw.one_of(0, draw.integer(1, 300)) for _ in range(2)]
    documents = [draw.integer(16, 600) for _ in range(2)]
    jobs = []
    for key in range(100, 100 + number):
        which, own = draw.integer(0, 1), draw.integer(1, 200)
        if draw.chance(0.3):
            begin = (50 + which, documents[which])
            own = draw.one_of(0, 0, draw.integer(1, 60))
        else:
            begin = (which, instructions[which])
        spans = (begin, (key, own))
        jobs.append(_job(draw, draw.seconds(span), begin[1] + own, _answer(draw), spans))
    return sorted(jobs, key=arrival)


def repeats(draw: Draw, number: int, span: float) -> list[Spec]:
    """The same prompts again and again, whole, with lengths of whole blocks."""
    lengths = [BLOCK_SIZE * draw.integer(1, 30) for _ in range(3)]
    jobs = []
    for _ in range(number):
        which = draw.integer(0, 2)
        most = lengths[which]
        prompt = BLOCK_SIZE * draw.integer(1, most // BLOCK_SIZE) if draw.chance(0.3) else most
        jobs.append(_job(draw, draw.seconds(span), prompt, _answer(draw), ((50 + which, prompt),)))
    return sorted(jobs, key=arrival)


def overlapping(draw: Draw, number: int, span: float) -> list[Spec]:
    """Turns of conversations, the next one perhaps sent while the answer before it is written."""
    instructions = draw.one_of(0, draw.integer(1, 300))
    jobs: list[Spec] = []
    for key in range(100, 100 + number):
        time, prompt = draw.seconds(span), instructions
        for _ in range(draw.integer(1, 4)):
            prompt, answer = prompt + draw.integer(1, 200), _answer(draw)
            spans = ((1, instructions), (key, prompt + answer - instructions))
            jobs.append(_job(draw, time, prompt, answer, spans))
            prompt, time = prompt + answer, time + draw.seconds(span)
    return sorted(jobs[:number], key=arrival)


def conversations(draw: Draw, number: int, span: float) -> list[Spec]:
    """Turns of conversations, each sent some time after the answer before it is there."""
    instructions = [draw.one_of(0, draw.integer(1, 300)) for _ in range(2)]
    jobs: list[Spec] = []
    for key in range(100, 100 + number):
        which = draw.integer(0, 1)
        begin = prompt = instructions[which]
        first = draw.seconds(span)
        for turn in range(draw.integer(1, 6)):
            prompt, answer = prompt + draw.integer(1, 200), _answer(draw)
            spans = ((which, begin), (key, prompt + answer - begin))
            job = _job(draw, None if turn else first, prompt, answer, spans)
            if turn:
                think = draw.one_of(0.0, draw.seconds(0.05), draw.seconds(span))
                job |= {"after": len(jobs) - 1, "think": think}
            jobs.append(job)
            prompt += answer
    return jobs[:number]


def long_plain(draw: Draw, number: int, span: float) -> list[Spec]:
    """A stream of requests with the lengths of real ones."""
    del span
    rate, time, jobs = draw.one_of(2.0, 4.0, 8.0), 0.0, []
    for _ in range(number):
        time += draw.exponential(1 / rate)
        prompt, answer = draw.lognormal(6.5, 1.0, 16, 8_000), draw.lognormal(5.3, 0.7, 1, 1_500)
        jobs.append(_job(draw, time, prompt, answer, ()))
    return jobs


def long_conversations(draw: Draw, number: int, span: float) -> list[Spec]:
    """A stream of conversations with the lengths of real ones, under one instruction."""
    del span
    rate, time = draw.one_of(2.0, 4.0, 8.0) / 4, 0.0
    jobs: list[Spec] = []
    for key in range(100, 100 + number):
        time += draw.exponential(1 / rate)
        prompt = begin = 400
        for turn in range(draw.integer(1, 7)):
            prompt += draw.lognormal(4.5, 1.0, 4, 4_000)
            answer = draw.lognormal(5.0, 0.7, 1, 1_000)
            spans = ((1, begin), (key, prompt + answer - begin))
            job = _job(draw, None if turn else time, prompt, answer, spans)
            if turn:
                job |= {"after": len(jobs) - 1, "think": draw.exponential(3.0)}
            jobs.append(job)
            prompt += answer
    return jobs[:number]


def arrival(job: Spec) -> float:
    """Return when a job comes, seconds."""
    return float(job["arrival"])
