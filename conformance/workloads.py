"""Random workloads, by class: how full the memory is, what is shared, who goes first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mist_sim.clients.kv_cache.capacity import NULL_BLOCKS
from mist_sim.rng import Streams

BLOCK_SIZE = 16

STEP = (1.1e-2 / 3, 7.7e-5 / 3, 2.3e-8 / 13)
"""Seconds of a step, of each token in it, and of each token of context; every sum rounds."""

HAND_OVER = (2.9e-4 / 3, 1.7e-8 / 7)
"""Seconds until the next rank of a pipeline has a step, and of each token in it."""

RANKS = {1: (1.0,), 2: (0.53, 0.61), 4: (0.27, 0.38, 0.23, 0.29)}
"""Parts of a step that the ranks take, which are not equal."""

Spec = dict[str, Any]
"""A workload in plain types: `jobs`, and the options of the engine under vLLM's names.

A job has `arrival` (seconds; None where it comes `think` seconds after the job of index `after`
ends), `prompt` and `answer` (tokens), `priority`, and `content`: spans of (id, tokens).
"""


@dataclass(frozen=True)
class WorkloadClass:
    """What the workloads of a class have in common.

    jobs: draws them. scarce: whether memory holds few of them at once. threshold: whether long
    prompts get a limited number of tokens a step. num_engines: side by side, each with a scheduler
    and memory of its own, to which jobs are dealt in turn; not those that follow others.
    """

    jobs: Callable[[Draw, int, float], list[Spec]]
    scarce: bool = False
    threshold: bool = False
    policy: str = "fcfs"
    caching: bool = True
    long: bool = False
    num_engines: int = 1
    interval: bool = False
    num_ranks: int = 1


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
    return sorted(jobs, key=_arrival)


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
    return sorted(jobs, key=_arrival)


def repeats(draw: Draw, number: int, span: float) -> list[Spec]:
    """The same prompts again and again, whole, with lengths of whole blocks."""
    lengths = [BLOCK_SIZE * draw.integer(1, 30) for _ in range(3)]
    jobs = []
    for _ in range(number):
        which = draw.integer(0, 2)
        most = lengths[which]
        prompt = BLOCK_SIZE * draw.integer(1, most // BLOCK_SIZE) if draw.chance(0.3) else most
        jobs.append(_job(draw, draw.seconds(span), prompt, _answer(draw), ((50 + which, prompt),)))
    return sorted(jobs, key=_arrival)


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
    return sorted(jobs[:number], key=_arrival)


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


def _arrival(job: Spec) -> float:
    return float(job["arrival"])


CLASSES = {
    "ample": WorkloadClass(plain, caching=False),
    "ample, priority": WorkloadClass(plain, policy="priority", caching=False),
    "ample, threshold": WorkloadClass(plain, threshold=True, caching=False),
    "ample, prefixes": WorkloadClass(prefixes),
    "ample, conversations": WorkloadClass(conversations),
    "ample, conversations, threshold": WorkloadClass(conversations, threshold=True),
    "ample, repeats": WorkloadClass(repeats),
    "ample, overlapping turns": WorkloadClass(overlapping),
    "scarce, no cache": WorkloadClass(plain, scarce=True, caching=False),
    "scarce": WorkloadClass(plain, scarce=True),
    "scarce, priority": WorkloadClass(plain, scarce=True, policy="priority", caching=False),
    "scarce, threshold": WorkloadClass(plain, scarce=True, threshold=True, caching=False),
    "scarce, prefixes": WorkloadClass(prefixes, scarce=True),
    "scarce, conversations": WorkloadClass(conversations, scarce=True),
    "scarce, conversations, priority": WorkloadClass(conversations, scarce=True, policy="priority"),
    "scarce, conversations, threshold": WorkloadClass(conversations, scarce=True, threshold=True),
    "scarce, repeats": WorkloadClass(repeats, scarce=True),
    "scarce, overlapping turns": WorkloadClass(overlapping, scarce=True),
    "two engines, scarce": WorkloadClass(plain, scarce=True, caching=False, num_engines=2),
    "two engines, scarce, priority": WorkloadClass(
        plain, scarce=True, policy="priority", num_engines=2
    ),
    "two engines, prefixes": WorkloadClass(prefixes, num_engines=2),
    "interval, ample": WorkloadClass(plain, caching=False, interval=True),
    "interval, scarce": WorkloadClass(plain, scarce=True, interval=True),
    "interval, scarce, priority": WorkloadClass(
        conversations, scarce=True, policy="priority", interval=True
    ),
    "interval, scarce, threshold": WorkloadClass(
        prefixes, scarce=True, threshold=True, interval=True
    ),
    "interval, scarce, repeats": WorkloadClass(repeats, scarce=True, interval=True),
    "interval, overlapping turns": WorkloadClass(overlapping, scarce=True, interval=True),
    "interval, long": WorkloadClass(long_conversations, long=True, interval=True),
    "pipeline of 2, ample": WorkloadClass(plain, caching=False, num_ranks=2),
    "pipeline of 2, prefixes": WorkloadClass(prefixes, num_ranks=2),
    "pipeline of 2, conversations": WorkloadClass(conversations, num_ranks=2),
    "pipeline of 2, scarce, no cache": WorkloadClass(
        plain, scarce=True, caching=False, num_ranks=2
    ),
    "pipeline of 2, scarce": WorkloadClass(plain, scarce=True, num_ranks=2),
    "pipeline of 2, scarce, conversations": WorkloadClass(conversations, scarce=True, num_ranks=2),
    "pipeline of 2, scarce, priority": WorkloadClass(
        plain, scarce=True, policy="priority", caching=False, num_ranks=2
    ),
    "pipeline of 4, ample": WorkloadClass(plain, caching=False, num_ranks=4),
    "pipeline of 4, prefixes": WorkloadClass(prefixes, num_ranks=4),
    "pipeline of 4, scarce, no cache": WorkloadClass(
        plain, scarce=True, caching=False, num_ranks=4
    ),
    "pipeline of 4, scarce": WorkloadClass(plain, scarce=True, num_ranks=4),
    "pipeline of 4, scarce, conversations": WorkloadClass(conversations, scarce=True, num_ranks=4),
    "long": WorkloadClass(long_plain, long=True),
    "long, conversations": WorkloadClass(long_conversations, long=True),
}


def workload(name: str, seed: int, most_jobs: int = 16) -> Spec:
    """Return the workload of a class and a seed; equal ones are equal on every machine.

    most_jobs: of the short classes.
    """
    kind = CLASSES[name]
    draw = Draw(Streams(seed).generator(f"conformance/{name}"))
    number = 120 if kind.long else draw.integer(3, most_jobs)
    jobs = kind.jobs(draw, number, draw.one_of(0.05, 0.5, 2.0))
    if kind.policy != "priority":
        jobs = [job | {"priority": 0} for job in jobs]
    blocks = [-(-(job["prompt"] + job["answer"]) // BLOCK_SIZE) for job in jobs]
    if kind.long:
        num_blocks, budget, seats = draw.one_of(800, 1_200, 2_000, 3_000), 2_048, 256
    else:
        full = int(max(blocks) * draw.one_of(1, 1.3, 2, 3))
        num_blocks = full if kind.scarce else sum(blocks) + 64
        budget, seats = draw.one_of(32, 64, 256, 512, 2_048), draw.one_of(2, 4, 8, 16, 32)
    interval = draw.integer(2, 8) if kind.interval else 1
    return {
        "name": name,
        "seed": seed,
        "jobs": jobs,
        "num_engines": kind.num_engines,
        "num_gpu_blocks": num_blocks + NULL_BLOCKS,
        "block_size": BLOCK_SIZE,
        "max_num_batched_tokens": budget,
        "max_num_seqs": min(seats, budget),
        "long_prefill_token_threshold": draw.one_of(8, 24, 100, 300) if kind.threshold else 0,
        "prefill_schedule_interval": interval,
        "policy": kind.policy,
        "enable_prefix_caching": kind.caching,
        "step": list(STEP),
        "ranks": list(RANKS[kind.num_ranks]),
        "hand_over": list(HAND_OVER),
    }
