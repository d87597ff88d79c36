"""Random workloads, by class: how full the memory is, what is shared, who goes first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.jobs import (
    BLOCK_SIZE,
    Draw,
    Spec,
    arrival,
    conversations,
    long_conversations,
    long_plain,
    overlapping,
    plain,
    prefixes,
    repeats,
)
from mist_sim.clients.draft_paths import DraftPaths
from mist_sim.clients.kv_cache.capacity import NULL_BLOCKS
from mist_sim.models.kv_groups import StateCache
from mist_sim.models.speculative import SpeculativeConfig
from mist_sim.rng import Streams

STEP = (1.1e-2 / 3, 7.7e-5 / 3, 2.3e-8 / 13)
"""Seconds of a step, of each token in it, and of each token of context; every sum rounds."""

HAND_OVER = (2.9e-4 / 3, 1.7e-8 / 7)
"""Seconds until the next rank of a pipeline has a step, and of each token in it."""

LOADS = ((1.3e-4 / 3, 1.7e-5 / 3), (1.1e-3 / 3, 2.9e-4 / 7), (0.013 / 3, 0.0037 / 3))
"""Seconds of a load, and of each block in it: far less than a step, less, and several steps."""

RANKS = {1: (1.0,), 2: (0.53, 0.61), 4: (0.27, 0.38, 0.23, 0.29)}
"""Parts of a step that the ranks take, which are not equal."""


@dataclass(frozen=True)
class WorkloadClass:
    """What the workloads of a class have in common.

    jobs: draws them. scarce: whether memory holds few of them at once. threshold: whether long
    prompts get a limited number of tokens a step. num_engines: side by side, each with a scheduler
    and memory of its own, to which jobs are dealt in turn; not those that follow others.
    aborts: whether senders of jobs go away. ties: whether many jobs come at one time.
    block_size: tokens. drafts: method that drafts tokens, as vLLM names it; empty: none.
    num_window_groups, num_state_groups: groups of layers with a sliding window, or with a state,
    beside one of full attention. state_cache: vLLM's `mamba_cache_mode`. states_inside: whether
    kernels save states inside pieces (0.33).
    loads: whether computed blocks lie in a store below, too.
    loads_in_step: whether the step waits for them, and not the request.
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
    aborts: bool = False
    ties: bool = False
    block_size: int = BLOCK_SIZE
    drafts: str = ""
    num_window_groups: int = 0
    num_state_groups: int = 0
    state_cache: StateCache = "none"
    states_inside: bool = False
    loads: bool = False
    loads_in_step: bool = False


def _cached_states(
    mode: StateCache, name: str, *, inside: bool = False
) -> dict[str, WorkloadClass]:
    """Return the classes of models with states and a prefix cache."""
    jobs: dict[str, Callable[[Draw, int, float], list[Spec]]] = {
        "plain": plain,
        "prefixes": prefixes,
        "repeats": repeats,
        "conversations": conversations,
        "overlapping turns": overlapping,
    }
    kept: dict[str, Any] = {"state_cache": mode, "states_inside": inside}
    classes = {}
    for what, draws in jobs.items():
        for scarce in (False, True):
            room = ", scarce" if scarce else ", ample"
            classes[f"{name}, {what}{room}"] = WorkloadClass(
                draws, scarce=scarce, num_state_groups=2, **kept
            )
    for scarce in (False, True):
        room = ", scarce" if scarce else ", ample"
        classes[f"{name} and windows, conversations{room}"] = WorkloadClass(
            conversations, scarce=scarce, num_state_groups=2, num_window_groups=1, **kept
        )
    classes[f"{name}, conversations, scarce, priority"] = WorkloadClass(
        conversations, scarce=True, num_state_groups=1, policy="priority", **kept
    )
    classes[f"{name}, conversations, scarce, threshold"] = WorkloadClass(
        conversations, scarce=True, num_state_groups=1, threshold=True, **kept
    )
    return classes


def _drafted_states(method: str, name: str) -> dict[str, WorkloadClass]:
    """Return the classes of models with kept states whose decodes verify drafts (0.33)."""
    kept: dict[str, Any] = {"state_cache": "align", "num_state_groups": 2, "drafts": method}
    return {
        f"{name}, ample": WorkloadClass(plain, **kept),
        f"{name}, scarce": WorkloadClass(plain, scarce=True, **kept),
        f"{name}, prefixes": WorkloadClass(prefixes, **kept),
        f"{name}, scarce, overlapping turns": WorkloadClass(overlapping, scarce=True, **kept),
        f"{name}, inside, scarce, prefixes": WorkloadClass(
            prefixes, scarce=True, states_inside=True, **kept
        ),
        f"{name}, windows, scarce, prefixes": WorkloadClass(
            prefixes, scarce=True, num_window_groups=1, **kept
        ),
    }


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
    "pipeline of 2, windows, ample": WorkloadClass(
        plain, caching=False, num_ranks=2, num_window_groups=1
    ),
    "pipeline of 2, windows, prefixes": WorkloadClass(prefixes, num_ranks=2, num_window_groups=1),
    "pipeline of 2, windows, conversations": WorkloadClass(
        conversations, num_ranks=2, num_window_groups=1
    ),
    "pipeline of 2, windows, scarce, no cache": WorkloadClass(
        plain, scarce=True, caching=False, num_ranks=2, num_window_groups=1
    ),
    "pipeline of 2, windows, scarce, conversations": WorkloadClass(
        conversations, scarce=True, num_ranks=2, num_window_groups=1
    ),
    "pipeline of 2, windows, scarce, overlapping turns": WorkloadClass(
        overlapping, scarce=True, num_ranks=2, num_window_groups=1
    ),
    "pipeline of 2, windows in 3 groups, scarce, priority": WorkloadClass(
        plain, scarce=True, policy="priority", caching=False, num_ranks=2, num_window_groups=3
    ),
    "pipeline of 4, windows in 3 groups, scarce, prefixes": WorkloadClass(
        prefixes, scarce=True, num_ranks=4, num_window_groups=3
    ),
    "aborts, ample": WorkloadClass(plain, caching=False, aborts=True),
    "aborts, prefixes": WorkloadClass(prefixes, aborts=True),
    "aborts, scarce, no cache": WorkloadClass(plain, scarce=True, caching=False, aborts=True),
    "aborts, scarce, prefixes": WorkloadClass(prefixes, scarce=True, aborts=True),
    "aborts, scarce, priority": WorkloadClass(plain, scarce=True, policy="priority", aborts=True),
    "ties, priority": WorkloadClass(
        plain, scarce=True, policy="priority", caching=False, ties=True
    ),
    "ties, scarce, prefixes, priority": WorkloadClass(
        prefixes, scarce=True, policy="priority", ties=True
    ),
    "blocks of 1, prefixes": WorkloadClass(prefixes, block_size=1),
    "blocks of 1, scarce, repeats": WorkloadClass(repeats, scarce=True, block_size=1),
    "blocks of 1, scarce, conversations": WorkloadClass(conversations, scarce=True, block_size=1),
    "blocks of 1, scarce, overlapping turns": WorkloadClass(overlapping, scarce=True, block_size=1),
    "drafts by n-grams, ample": WorkloadClass(plain, caching=False, drafts="ngram"),
    "drafts by n-grams, prefixes": WorkloadClass(prefixes, drafts="ngram"),
    "drafts by n-grams, scarce, no cache": WorkloadClass(
        plain, scarce=True, caching=False, drafts="ngram"
    ),
    "drafts by n-grams, scarce, overlapping turns": WorkloadClass(
        overlapping, scarce=True, drafts="ngram"
    ),
    "drafts by EAGLE, ample": WorkloadClass(plain, caching=False, drafts="eagle"),
    "drafts by EAGLE, prefixes": WorkloadClass(prefixes, drafts="eagle"),
    "drafts by EAGLE, scarce, no cache": WorkloadClass(
        plain, scarce=True, caching=False, drafts="eagle"
    ),
    "drafts by EAGLE, scarce, overlapping turns": WorkloadClass(
        overlapping, scarce=True, drafts="eagle"
    ),
    "windows, ample": WorkloadClass(plain, caching=False, num_window_groups=1),
    "windows, prefixes": WorkloadClass(prefixes, num_window_groups=1),
    "windows, conversations": WorkloadClass(conversations, num_window_groups=1),
    "windows, scarce, no cache": WorkloadClass(
        plain, scarce=True, caching=False, num_window_groups=1
    ),
    "windows, scarce, conversations": WorkloadClass(
        conversations, scarce=True, num_window_groups=1
    ),
    "windows in 3 groups, scarce, no cache": WorkloadClass(
        plain, scarce=True, caching=False, num_window_groups=3
    ),
    "windows in 3 groups, scarce, prefixes": WorkloadClass(
        prefixes, scarce=True, num_window_groups=3
    ),
    "windows, drafts by n-grams, prefixes": WorkloadClass(
        prefixes, num_window_groups=1, drafts="ngram"
    ),
    "windows, drafts by n-grams, scarce, no cache": WorkloadClass(
        plain, scarce=True, caching=False, num_window_groups=1, drafts="ngram"
    ),
    "windows, drafts by n-grams, scarce, overlapping turns": WorkloadClass(
        overlapping, scarce=True, num_window_groups=1, drafts="ngram"
    ),
    "windows, drafts by EAGLE, prefixes": WorkloadClass(
        prefixes, num_window_groups=1, drafts="eagle"
    ),
    "windows, drafts by EAGLE, scarce, no cache": WorkloadClass(
        plain, scarce=True, caching=False, num_window_groups=1, drafts="eagle"
    ),
    "windows, drafts by EAGLE, scarce, overlapping turns": WorkloadClass(
        overlapping, scarce=True, num_window_groups=1, drafts="eagle"
    ),
    "states, ample": WorkloadClass(plain, caching=False, num_state_groups=3),
    "states, ample, threshold": WorkloadClass(
        plain, threshold=True, caching=False, num_state_groups=3
    ),
    "states, scarce": WorkloadClass(plain, scarce=True, caching=False, num_state_groups=3),
    "states, scarce, priority": WorkloadClass(
        plain, scarce=True, policy="priority", caching=False, num_state_groups=3
    ),
    "states in 1 group, scarce": WorkloadClass(
        plain, scarce=True, caching=False, num_state_groups=1
    ),
    "states, drafts by n-grams, scarce": WorkloadClass(
        plain, scarce=True, caching=False, num_state_groups=3, drafts="ngram"
    ),
    "states and windows, ample": WorkloadClass(
        plain, caching=False, num_window_groups=1, num_state_groups=2
    ),
    "states and windows, scarce": WorkloadClass(
        plain, scarce=True, caching=False, num_window_groups=1, num_state_groups=2
    ),
    **_cached_states("align", "aligned states"),
    **_cached_states("align", "states saved inside", inside=True),
    **_cached_states("all", "all states"),
    **_drafted_states("ngram", "drafted states, n-grams"),
    **_drafted_states("eagle", "drafted states, EAGLE"),
    "loads, prefixes": WorkloadClass(prefixes, scarce=True, loads=True),
    "loads, repeats": WorkloadClass(repeats, scarce=True, loads=True),
    "loads, conversations": WorkloadClass(conversations, scarce=True, loads=True),
    "loads, conversations, priority": WorkloadClass(
        conversations, scarce=True, policy="priority", loads=True
    ),
    "loads, overlapping turns": WorkloadClass(overlapping, scarce=True, loads=True),
    "loads, no prefixes": WorkloadClass(plain, scarce=True, loads=True),
    "loads in the step, prefixes": WorkloadClass(
        prefixes, scarce=True, loads=True, loads_in_step=True
    ),
    "loads in the step, repeats": WorkloadClass(
        repeats, scarce=True, loads=True, loads_in_step=True
    ),
    "loads in the step, conversations": WorkloadClass(
        conversations, scarce=True, loads=True, loads_in_step=True
    ),
    "loads in the step, overlapping turns, priority": WorkloadClass(
        overlapping, scarce=True, policy="priority", loads=True, loads_in_step=True
    ),
    "loads in the step, no prefixes": WorkloadClass(
        plain, scarce=True, loads=True, loads_in_step=True
    ),
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
    size = kind.block_size
    num_drafts = draw.integer(1, 5) if kind.drafts else 0
    extra = num_drafts * (2 if kind.drafts == "eagle" else 1)
    blocks = [-(-(job["prompt"] + job["answer"] + extra) // size) for job in jobs]
    if kind.long:
        num_blocks, budget, seats = draw.one_of(800, 1_200, 2_000, 3_000), 2_048, 256
    else:
        full = int(max(blocks) * draw.one_of(1, 1.3, 2, 3))
        num_blocks = full if kind.scarce else sum(blocks) + 64
        budget, seats = draw.one_of(32, 64, 256, 512, 2_048), draw.one_of(2, 4, 8, 16, 32)
    interval, rate = draw.integer(2, 8) if kind.interval else 1, 0.0
    threshold = draw.one_of(8, 24, 100, 300) if kind.threshold else 0
    if kind.ties:
        times = [draw.seconds(0.5) for _ in range(3)]
        jobs = sorted((job | {"arrival": draw.one_of(*times)} for job in jobs), key=arrival)
    if kind.aborts:
        jobs = [
            job | {"abort": draw.one_of(None, draw.seconds(0.3), draw.seconds(1.5))} for job in jobs
        ]
    window = draw.one_of(24, 100, 128, 500) if kind.num_window_groups else 0
    num_blocks *= 1 + kind.num_window_groups
    num_states = 1 + num_drafts if kind.state_cache == "none" else 3 + num_drafts
    if kind.state_cache == "all":
        num_blocks += kind.num_state_groups * (max(blocks) if kind.scarce else sum(blocks))
    num_blocks += kind.num_state_groups * num_states * (1 if kind.scarce else len(jobs))
    if num_drafts:
        rate = draw.one_of(0.0, 0.4, 0.7, 1.0)
        jobs = _with_paths(jobs, rate, num_drafts)
    return {
        "name": name,
        "seed": seed,
        "jobs": jobs,
        "num_engines": kind.num_engines,
        "num_gpu_blocks": num_blocks + NULL_BLOCKS,
        "block_size": size,
        "windows": [kind.num_window_groups, window],
        "states": kind.num_state_groups,
        "state_cache": kind.state_cache,
        "states_inside": kind.states_inside,
        "max_num_batched_tokens": budget,
        "max_num_seqs": min(seats, budget // (1 + num_drafts)),
        "long_prefill_token_threshold": threshold,
        "prefill_schedule_interval": interval,
        "policy": kind.policy,
        "enable_prefix_caching": kind.caching,
        "step": list(STEP),
        "ranks": list(RANKS[kind.num_ranks]),
        "hand_over": list(HAND_OVER),
        "drafts": [kind.drafts, num_drafts],
        "acceptance_rate": rate,
        "loads": list(draw.one_of(*LOADS)) if kind.loads else None,
        "loads_in_step": kind.loads_in_step,
    }


def _with_paths(jobs: list[Spec], rate: float, num_drafts: int) -> list[Spec]:
    """Return jobs with the tokens that each of their decode steps gives, as mist-sim draws them."""
    survival = SpeculativeConfig(
        method="ngram", num_speculative_tokens=num_drafts, acceptance_rate=rate
    ).survival
    paths = DraftPaths(Streams(0), survival)
    return [
        job | {"path": np.diff(paths.draw(number, job["answer"])).tolist()}
        for number, job in enumerate(jobs)
    ]
