"""Cases for the engine core, and how to run one."""

from collections.abc import Callable
from dataclasses import replace
from math import inf, nextafter
from typing import Any
from unittest.mock import PropertyMock, patch

from hypothesis import strategies as st

from mist_sim.clients import LlmClient
from mist_sim.clients.scheduling.order import ORDERS
from mist_sim.core.recorder import Recorder
from mist_sim.errors import ScenarioError
from mist_sim.hardware.predictors import Predictor
from mist_sim.metrics import Result
from mist_sim.models.speculative import SpeculativeConfig
from mist_sim.rng import Streams
from mist_sim.simulation import Simulation
from mist_sim.traces import Workload
from mist_sim.traces.arrivals import TraceArrivals
from mist_sim.traces.base import TraceRow
from mist_sim.traces.workload import Rows
from tests.property.strategies import (
    alike,
    alike_in_states,
    alike_in_windows,
    cases,
    drafts_in_states,
    finished,
    loaded,
    loaded_in_step,
    overlapped,
    pieces_in_windows,
    some_swap_space,
    step_ends,
)
from tests.property.test_flowing import crowds, flowing
from tests.property.test_hand_overs import apart
from tests.reference.cluster_case import ClusterCase
from tests.reference.comparison import Case, EngineOptions, workload
from tests.reference.memory import SwapSpace, Tier
from tests.reference.predictors import DYADIC
from tests.reference.stepwise import Job

OF_DRAFTS = ("caches_verified", "admits_lookahead", "pads_prompts")
"""Rules of versions that only drafts see."""

NAMES = ("round_robin", "least_outstanding", "power_of_two", "load", "prefix_affinity")


def served(case: Case) -> Case:
    """Return a case without what the core does not have."""
    options = replace(
        case.options,
        pipeline_parallel_size=1,
        lockstep=False,
        tiers=case.options.tiers if case.options.windows is None else (),
        swap=None,
    )
    return Case(options, case.jobs)


@st.composite
def engines(draw: st.DrawFn, longest: int = 120, drafts: bool | None = True) -> Case:
    """An engine that the core steps, planned ahead or not, mostly short of memory.

    drafts: as of `cases`.
    """
    drawn = cases(longest=longest, policy="chunked", drafts=drafts) | alike(drafts=drafts)
    drawn |= alike_in_windows(policy="chunked", drafts=drafts)
    if drafts is None:
        drawn |= drafts_in_states()
    else:
        drawn |= pieces_in_windows() | alike_in_states() | loaded() | loaded_in_step()
    whole = st.sampled_from(["continuous", "mixed", "static"]).flatmap(
        lambda policy: cases(longest=longest, policy=policy, drafts=drafts)
    )
    chunked = drawn.filter(lambda each: each.options.policy == "chunked")
    case = served(draw(chunked | whole))
    swap, windows, tiers = st.none(), case.options.windows, case.options.tiers
    keeps_states = windows is not None and windows.kept is not None
    if not (keeps_states or tiers):
        swap |= some_swap_space(case.options.num_blocks, 1)
    if not (windows or tiers or case.options.drafting):
        copied = some_swap_space(case.options.num_blocks, 1)
        swap |= copied.map(lambda each: replace(each, overlaps=True))
    return replace(
        case,
        options=replace(
            as_in_a_version(case.options),
            async_scheduling=draw(st.booleans()),
            uncached_first=draw(st.booleans()),
            caching=keeps_states or bool(tiers) or draw(st.booleans()),
            swap=draw(swap),
        ),
    )


@st.composite
def states_apart(draw: st.DrawFn) -> Case:
    """Models whose states are kept for others, where prompts have all their memory at once.

    They are whole, or those who give way are swapped, or both.
    """
    case = draw(alike_in_states() | drafts_in_states())
    options = replace(case.options, tiers=(), pipeline_parallel_size=1, lockstep=False)
    policy = draw(st.sampled_from(["chunked", "continuous", "mixed", "static"]))
    swap = some_swap_space(options.num_blocks, 1)
    if policy != "chunked":
        most = draw(st.none() | st.integers(30, 240))
        options = replace(options, policy=policy, max_num_batched_tokens=most)
        swap |= st.none()
    return Case(replace(stepped(draw, options), swap=draw(swap)), case.jobs)


@st.composite
def virtual_engines(draw: st.DrawFn) -> Case:
    """A pipeline whose lanes take turns, alone or with others, perhaps above tiers or drafting."""
    case = draw(cases(longest=120) | alike() | loaded() | loaded_in_step() | overlapped())
    options, ranks = case.options, draw(st.integers(2, 4))
    if options.pipeline_parallel_size == 1:
        most = options.max_num_batched_tokens
        num_drafts = options.drafting.num_speculative_tokens if options.drafting else 0
        options = replace(
            options,
            pipeline_parallel_size=ranks,
            num_blocks=options.num_blocks + ranks,
            max_num_seqs=options.max_num_seqs + ranks,
            max_num_batched_tokens=most and most + ranks * (1 + num_drafts),
            tiers=(),
            swap=None,
        )
    options = replace(options, async_scheduling=False, batch_queue=False)
    return Case(as_in_a_version(options), case.jobs)


def as_in_a_version(options: EngineOptions) -> EngineOptions:
    """Return options in which the rules of a version that pads prompts go with those before it."""
    return replace(
        options,
        hashes_ahead=options.caches_verified and options.pads_prompts,
        admits_lookahead=options.admits_lookahead or options.pads_prompts,
    )


def pausing(options: EngineOptions) -> EngineOptions:
    """Return options whose steps wait for swaps, as schedulers of one's own need it."""
    return replace(options, swap=options.swap and replace(options.swap, overlaps=False))


def crowd(number: int) -> Case:
    """Long answers side by side in memory for one or two: some give way, or give up meanwhile.

    Drawn evenly from a number, since few of Hypothesis's small cases get so far.
    """
    rng = Streams(number).generator("crowd")

    def draw(least: int, most: int) -> int:
        return int(rng.integers(least, most + 1))

    size = 2 ** draw(0, 2)
    jobs = [Job(0.0, draw(1, 12), draw(10, 40)) for _ in range(draw(3, 6))]
    later = sorted(rng.uniform(0.0, 0.1, draw(0, 3)))
    jobs += [Job(float(time), draw(1, 8), draw(1, 12)) for time in later]
    longest = max(-((job.num_prompt_tokens + job.num_output_tokens) // -size) for job in jobs)
    swap = SwapSpace(draw(1, draw(1, 3) * longest), 2.0**-9)
    drafting, num_drafts = None, draw(0, 4)
    if num_drafts:
        drafting = SpeculativeConfig(
            method=("ngram", "mtp")[draw(0, 1)],
            num_speculative_tokens=num_drafts,
            acceptance_rate=draw(0, 4) / 4,
        )
    options = EngineOptions(
        "chunked",
        num_blocks=longest + draw(-1, longest) + num_drafts,
        block_size=size,
        max_num_seqs=8,
        max_num_batched_tokens=8 * (num_drafts + draw(1, 4)),
        caching=rng.random() < 0.5,
        uncached_first=rng.random() < 0.5,
        async_scheduling=rng.random() < 0.7,
        swap=swap if rng.random() < (0.3 if num_drafts else 0.7) else None,
        drafting=drafting,
        whole_must_fit=rng.random() < 0.5,
        order=("fcfs", "priority")[draw(0, 1)] if num_drafts else "fcfs",
        **{name: bool(rng.random() < 0.5) for name in OF_DRAFTS if num_drafts},
    )
    options = as_in_a_version(options)
    ends = step_ends(finished(Case(options, tuple(jobs)), DYADIC))
    for _ in range(draw(0, 4)):
        who = draw(0, 2)
        jobs[who] = replace(jobs[who], timeout=ends[draw(0, len(ends) - 1)])
    if rng.random() < (0.6 if num_drafts else 0.3):  # the same conversation, answers included
        jobs = [replace(job, content=((0, 60),)) for job in jobs]
    return Case(options, tuple(jobs))


def _disturbed(
    case: Case, found: Result, draw: Callable[[int, int], int], chance: Callable[[float], bool]
) -> Case:
    """Return a case in which one gives up, or comes again, where a step or a copy ends, or near."""
    jobs = list(case.jobs)
    times = sorted({*found.recorder.step_ends[0][:], *found.transfers["end"]})
    time = float(times[draw(0, len(times) - 1)]) if times else 0.0
    if chance(0.5):
        time = nextafter(time, inf if chance(0.5) else 0.0)
    number = draw(0, len(jobs) - 1)
    if time > jobs[number].arrival_time and chance(0.7):
        jobs[number] = replace(jobs[number], timeout=time - jobs[number].arrival_time)
    else:
        jobs.append(replace(jobs[number], arrival_time=time, timeout=inf))
    return Case(case.options, tuple(sorted(jobs, key=lambda job: job.arrival_time)))


def copying(number: int) -> Case:
    """A crowd, some of which are copied to the host and back while steps go on.

    Requests come, and give up, where a step ends or a copy does, or just before or behind it.
    """
    rng = Streams(number).generator("copying")

    def draw(least: int, most: int) -> int:
        return int(rng.integers(least, most + 1))

    def chance(part: float) -> bool:
        return bool(rng.random() < part)

    size = 2 ** draw(0, 2)
    jobs = [Job(0.0, draw(1, 12), draw(4, 40)) for _ in range(draw(2, 7))]
    jobs += [Job(float(at), draw(1, 12), draw(1, 20)) for at in sorted(rng.uniform(0, 0.2, 4))]
    longest = max(-((job.num_prompt_tokens + job.num_output_tokens) // -size) for job in jobs)
    seconds = (0.0, 2.0**-14, 2.0**-11, 2.0**-9, 1e-2 / 3)[draw(0, 4)]
    policy = ("chunked", "chunked", "continuous", "mixed", "static")[draw(0, 4)]
    options = EngineOptions(
        policy,
        num_blocks=longest + draw(-1, longest),
        block_size=size,
        max_num_seqs=draw(2, 8),
        max_num_batched_tokens=8 + draw(0, 16) if policy == "chunked" else 64,
        caching=chance(0.6),
        uncached_first=chance(0.5),
        async_scheduling=chance(0.5),
        swap=SwapSpace(draw(1, draw(1, 4) * longest), seconds, overlaps=True),
        watermark=0.2 if chance(0.2) else 0.0,
        order=ORDERS[draw(0, len(ORDERS) - 1)] if chance(0.5) else "fcfs",
        threshold=draw(1, 8) if chance(0.3) else None,
        threshold_spares_one=chance(0.5),
        prefill_schedule_interval=draw(1, 3) if policy == "chunked" else 1,
        local_cadence=chance(0.5),
    )
    if options.order != "fcfs":
        jobs = [replace(job, priority=draw(0, 3)) for job in jobs]
    if chance(0.5):  # conversations in common, answers included
        jobs = [replace(job, content=((draw(0, 1), draw(1, 60)),)) for job in jobs]
    case = Case(options, tuple(jobs))
    for _ in range(draw(0, 4)):
        found = run_case(case, DYADIC)
        case = _disturbed(case, found, draw, chance)
    return case


def pipeline(number: int) -> Case:
    """A pipeline with a queue of batches, in memory for a few answers of which some end early.

    Requests come, and give up, where a batch returns, or at the next float before or behind it.
    """
    rng = Streams(number).generator("pipeline")

    def draw(least: int, most: int) -> int:
        return int(rng.integers(least, most + 1))

    def chance(part: float) -> bool:
        return bool(rng.random() < part)

    size, ranks, fills, ahead = draw(1, 4), draw(2, 4), chance(0.5), chance(0.7)
    most = 150 if chance(0.4) else 40
    jobs = [Job(0.0, draw(1, 20), draw(1, most)) for _ in range(draw(1, 6))]
    longest = max(-((job.num_prompt_tokens + job.num_output_tokens) // -size) for job in jobs)
    seats = draw(1, 8)
    options = EngineOptions(
        "chunked",
        num_blocks=longest + draw(-1, 2 * longest),
        block_size=size,
        max_num_seqs=seats,
        max_num_batched_tokens=seats + draw(0, 20),
        max_model_len=draw(20, 50) if chance(0.3) else None,
        whole_must_fit=chance(0.5),
        watermark=0.2 if chance(0.2) else 0.0,
        caching=chance(0.6),
        uncached_first=chance(0.5),
        async_scheduling=ahead,
        batch_queue=True,
        pipeline_parallel_size=ranks,
        data_parallel_size=draw(1, 2) if chance(0.2) else 1,
        staggers_decodes=fills and chance(0.5),
        fills_queue=fills,
        drains_preempted=chance(0.5),
        order=ORDERS[draw(0, len(ORDERS) - 1)] if chance(0.6) else "fcfs",
        pass_goes_on=chance(0.5),
        threshold=draw(1, 12) if chance(0.3) else None,
        threshold_spares_one=chance(0.5),
        max_partial=draw(1, 4),
    )
    jobs += [Job(float(time), draw(1, 20), draw(1, 30)) for time in sorted(rng.uniform(0, 0.2, 3))]
    if chance(0.4):  # conversations in common, answers included
        jobs = [replace(job, content=((draw(0, 1), draw(1, 60)),)) for job in jobs]
    if options.order == "priority" and ahead and not options.staggers_decodes and ranks > 2:
        options = replace(options, order="fcfs")  # where the reference differs from vLLM
    if options.order != "fcfs":
        jobs = [replace(job, priority=draw(0, 3)) for job in jobs]
    case = Case(options, tuple(jobs))
    for _ in range(draw(0, 4)):
        steps = run_case(case, DYADIC).recorder.step_ends
        ends = sorted(each for track in steps for each in track[:])
        if not ends:
            break
        time = ends[draw(0, len(ends) - 1)]
        if chance(0.5):
            time = nextafter(time, inf if chance(0.5) else 0.0)
        who = draw(0, len(jobs) - 1)
        if chance(0.6) and not jobs[who].arrival_time:
            jobs[who] = replace(jobs[who], timeout=time)
        else:
            jobs.append(Job(time, draw(1, 20), draw(1, 30), content=jobs[who].content))
        jobs.sort(key=lambda job: job.arrival_time)
        case = Case(options, tuple(jobs))
    return case


def above_tiers(number: int) -> Case:
    """Conversations in memory for a few of them, above tiers that have what left it.

    Requests come, and give up, where a step ends or blocks come, or just before or behind it.
    """
    rng = Streams(number).generator("tiers")

    def draw(least: int, most: int) -> int:
        return int(rng.integers(least, most + 1))

    def chance(part: float) -> bool:
        return bool(rng.random() < part)

    size, seats, num_talks = draw(1, 4), draw(2, 8), draw(1, 4)
    drafting, num_drafts = None, draw(0, 4) if chance(0.3) else 0
    if num_drafts:
        method, rate = ("ngram", "mtp")[draw(0, 1)], draw(0, 4) / 4
        drafting = SpeculativeConfig(
            method=method, num_speculative_tokens=num_drafts, acceptance_rate=rate
        )
    order = ORDERS[draw(0, len(ORDERS) - 1)] if chance(0.4) else "fcfs"
    jobs = [
        Job(
            float(time),
            draw(1, 30),
            draw(1, 20),
            draw(0, 2) if order != "fcfs" else 0,
            content=((draw(1, num_talks), draw(1, 60)),) if chance(0.9) else (),
        )
        for time in sorted(rng.uniform(0, 0.02 * draw(1, 20), draw(4, 14)))
    ]
    longest = max(-((job.num_prompt_tokens + job.num_output_tokens) // -size) for job in jobs)
    in_step, seconds = chance(0.3) and not drafting, (0.0, 2.0**-14, 2.0**-9, 2.0**-7)
    tiers = [
        Tier(draw(1, 4 * longest), seconds[draw(0, 3)], seconds[draw(0, 2)], chance(0.5), in_step)
        for _ in range(draw(1, 2))
    ]
    rules = ("reserves_prefills", "loaded_first", "preempted_first", "defers_frees")
    rules += ("spares_in_flight", "uncached_first", "pass_goes_on", "held_spares_hits")
    threshold = draw(1, 12) if chance(0.4) else None
    options = EngineOptions(
        "chunked",
        num_blocks=longest + draw(-1, 2 * longest) + num_drafts,
        block_size=size,
        max_num_seqs=seats,
        max_num_batched_tokens=seats * (1 + num_drafts) + draw(0, 24),
        drafting=drafting,
        order=order,
        threshold=threshold,
        threshold_spares_one=chance(0.5),
        max_partial=16 if in_step else draw(1, 3),
        # without it, a load waits for what is drafted behind a first piece, not in the reference
        whole_must_fit=chance(0.5) or drafting is not None,
        watermark=0.2 if chance(0.2) else 0.0,
        prefill_schedule_interval=1 if in_step else draw(1, 3),
        local_cadence=chance(0.3),
        caching=True,
        async_scheduling=chance(0.6),
        tiers=tuple(tiers),
        **{rule: chance(0.5) for rule in (*rules, *OF_DRAFTS)},
    )
    options = as_in_a_version(options)
    case = Case(options, tuple(jobs))
    for _ in range(draw(0, 3)):
        try:
            found = run_case(case, DYADIC)
        except ScenarioError:  # prompts take one another's blocks for ever
            break
        case = _disturbed(case, found, draw, chance)
    return case


def client(case: Case, predictor: Predictor, name: str = "engine") -> LlmClient:
    return case.options.client(predictor, name)


def plain_workload(case: Case) -> Workload:
    """The jobs without limits, from rows as a trace has them."""
    rows = [
        TraceRow(
            job.num_prompt_tokens, job.num_output_tokens, job.arrival_time, content=job.content
        )
        for job in case.jobs
    ]
    return Workload(Rows(rows), TraceArrivals())


def general_walks() -> Any:
    return patch.object(
        Simulation, "_walks_are_plain", new_callable=PropertyMock, return_value=False
    )


def run_case(case: Case, predictor: Predictor) -> Result:
    return Simulation(clients=[client(case, predictor)], workload=workload(case.jobs)).run()


def features(result: Result) -> set[str]:
    """What a case exercised."""
    requests, steps = result.requests, result.steps
    found = {"preempted"} if requests["num_preemptions"].any() else set()
    if requests["num_cached_tokens"].any():
        found.add("cached")
    if (steps["num_chunks"] > 1).any():
        found.add("several prompts in a step")
    if ((steps["num_chunks"] > 0) & (steps["num_decodes"] > 0)).any():
        found.add("prompts beside decodes")
    if ((steps["num_chunks"] > 0) & (steps["num_steps"] > 1)).any():
        found.add("several steps with a prompt")
    found |= set(result.transfers["kind"])
    return found | {f"status {status}" for status in requests["status"].unique()}


@st.composite
def roles(draw: st.DrawFn) -> ClusterCase:
    """Clients of prompts and of answers, with users who give up, each stepped by the core.

    Whole prompts, and clients whose requests are swapped, are among them.
    """
    case = draw(apart())
    clients = []
    for options in case.clients:
        swap = st.none()
        if not options.tiers:
            swap |= some_swap_space(options.num_blocks, 1)
            if not (options.windows or options.drafting):
                swap |= swap.map(lambda each: each and replace(each, overlaps=True))
        made = served(Case(options, ())).options
        clients.append(replace(stepped(draw, made), swap=draw(swap)))
    return replace(case, clients=tuple(clients))


def in_pieces(draw: st.DrawFn, case: ClusterCase) -> ClusterCase:
    """Return a case whose clients cut prompts, planned ahead or not."""
    clients = []
    for options in case.clients:
        drafting, least = options.drafting, options.max_num_seqs
        if drafting is not None:
            least *= 1 + drafting.num_speculative_tokens
        most = max(options.max_num_batched_tokens or 64, least)
        chunked = replace(options, policy="chunked", max_num_batched_tokens=most)
        clients.append(stepped(draw, served(Case(chunked, ())).options))
    return replace(case, clients=tuple(clients))


def stepped(draw: st.DrawFn, options: EngineOptions) -> EngineOptions:
    """Return options as in a version, planned ahead or not."""
    return replace(as_in_a_version(options), async_scheduling=draw(st.booleans()))


@st.composite
def flows(draw: st.DrawFn) -> ClusterCase:
    """Clients between which answers flow, each stepped by the core."""
    return in_pieces(draw, draw(flowing() | crowds()))


class Watched(Recorder):
    """A recorder of one's own, which may look at the records whenever a request ends."""
