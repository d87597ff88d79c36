"""Random engines and workloads, with memory pressure and times that meet."""

from collections.abc import Callable
from dataclasses import replace
from math import inf, nextafter
from typing import Any

from hypothesis import strategies as st

from mist_sim.clients.scheduling.order import ORDERS
from mist_sim.core.request import Content
from mist_sim.errors import ScenarioError
from mist_sim.hardware.predictors import Predictor
from mist_sim.metrics import Result
from mist_sim.models.speculative import SpeculativeConfig
from tests.reference.comparison import POLICIES, Case, EngineOptions
from tests.reference.host import Host
from tests.reference.memory import SwapSpace, Tier
from tests.reference.state_memory import Kept
from tests.reference.stepwise import Job, Windows


def lengths(block_size: int, longest: int) -> st.SearchStrategy[int]:
    """Token counts; half of them at, before or behind the end of a block."""
    cycles = st.integers(1, max(1, longest // block_size))
    near_a_boundary = st.tuples(cycles, st.integers(-1, 1)).map(
        lambda pair: max(1, pair[0] * block_size + pair[1])
    )
    return st.integers(1, longest) | near_a_boundary


def arrival_times(num_jobs: int) -> st.SearchStrategy[list[float]]:
    """Sorted arrivals in seconds: all at once, in bursts, on a dyadic grid, or anywhere."""
    at_once = st.just([0.0] * num_jobs)
    moment = st.floats(0, 0.5, allow_subnormal=False)
    bursts = st.lists(moment, min_size=1, max_size=3).flatmap(
        lambda moments: st.lists(st.sampled_from(moments), min_size=num_jobs, max_size=num_jobs)
    )
    grid = st.integers(0, 128).map(lambda tick: tick / 256)
    anywhere = st.lists(moment, min_size=num_jobs, max_size=num_jobs)
    on_grid = st.lists(grid, min_size=num_jobs, max_size=num_jobs)
    return st.one_of(anywhere, bursts, on_grid, at_once).map(sorted)


def some_windows(longest: int) -> st.SearchStrategy[Windows]:
    """Windows shorter and longer than most contexts; with and without full attention."""
    sizes = st.integers(1, longest // 4) | st.integers(1, 2 * longest)
    return st.builds(Windows, sizes, st.integers(0, 2), st.integers(1, 3))


def parallelism(max_num_seqs: int) -> st.SearchStrategy[dict[str, Any]]:
    """One engine, pipelines, replicas, both, replicas in lockstep, and those that plan ahead."""
    ranks, replicas = st.integers(1, min(4, max_num_seqs)), st.integers(1, 3)
    alone = st.just({})
    pipelines = st.fixed_dictionaries({"pipeline_parallel_size": ranks})
    either = st.fixed_dictionaries(
        {"pipeline_parallel_size": ranks, "data_parallel_size": replicas}
    )
    one_rank = st.just(1)
    together = st.fixed_dictionaries(
        {
            "pipeline_parallel_size": one_rank | ranks,
            "data_parallel_size": replicas,
            "lockstep": st.just(True),
        }
    )
    ahead = st.fixed_dictionaries(
        {"async_scheduling": st.just(True), "data_parallel_size": st.just(1) | replicas}
    )
    return st.one_of(alone, ahead, pipelines, either, together)


def few_steps() -> st.SearchStrategy[float]:
    """Seconds of some steps of either predictor of the tests."""
    return st.floats(4e-4, 8e-3) | st.integers(8, 64).map(lambda tick: tick / 2048)


def time_limits() -> st.SearchStrategy[dict[str, float]]:
    """The limits of a job: none, or some of the length of a few steps or of whole answers."""
    seconds = few_steps() | st.floats(1e-3, 0.5) | st.integers(1, 128).map(lambda tick: tick / 256)
    names = ("timeout", "ttft_timeout", "ttft_deadline")
    return st.just({}) | st.dictionaries(st.sampled_from(names), seconds, max_size=3)


def some_tiers(num_blocks: int, lanes: int) -> st.SearchStrategy[tuple[Tier, ...]]:
    """None, or up to three tiers, smaller and larger than the GPU's memory, fast and slow."""
    seconds = st.sampled_from([0.0, 2.0**-14, 2.0**-9, 1e-3 / 3])
    most = num_blocks * lanes
    size = st.integers(lanes, 3 * most) | st.integers(most, 3 * most)
    tier = st.builds(Tier, size, seconds, seconds, st.booleans())
    tiers = st.lists(tier, min_size=1, max_size=3).map(tuple)
    return st.sampled_from([True, True, False]).flatmap(lambda some: tiers if some else st.just(()))


def some_host_time() -> st.SearchStrategy[Host]:
    """None, or some that is shorter and longer than the steps of the tests' predictors."""
    seconds = st.sampled_from([0.0, 2.0**-9, 1e-3 / 3, 2.0**-6])
    per_sequence = st.sampled_from([0.0, 2.0**-12, 1e-4 / 3])
    return st.just(Host()) | st.builds(Host, seconds, per_sequence, seconds)


def some_swap_space(num_blocks: int, lanes: int) -> st.SearchStrategy[SwapSpace]:
    """Smaller and larger than the GPU's memory, fast and slow."""
    seconds = st.sampled_from([0.0, 2.0**-14, 2.0**-9, 1e-3 / 3])
    return st.builds(SwapSpace, st.integers(lanes, 2 * num_blocks * lanes), seconds)


@st.composite
def contents(draw: st.DrawFn, block_size: int) -> Callable[[int, int], Content]:
    """Return what draws the content of a job of so many prompt and output tokens.

    Jobs of one case share it: a few conversations, and a tree of blocks like those of a trace,
    which need not be as long as those of the cache.
    """
    hashed = draw(st.integers(1, 2 * block_size) | st.just(block_size))

    def draw_one(num_prompt_tokens: int, num_output_tokens: int) -> Content:
        num_tokens = num_prompt_tokens + draw(st.sampled_from([0, num_output_tokens]))
        kind = draw(st.sampled_from(["conversation", "blocks", "none"]))
        if kind == "conversation":
            return ((draw(st.integers(0, 2)) * 2, num_tokens),)
        if kind == "none":
            return ()
        turns = draw(st.lists(st.sampled_from([0, 0, 0, 1]), max_size=8))
        node, spans = 1, []
        for start in range(0, num_tokens, hashed):
            node = 2 * node + (turns.pop() if turns else 0)
            spans.append((2 * node + 1, min(hashed, num_tokens - start)))
        return tuple(spans)

    return draw_one


def some_drafting() -> st.SearchStrategy[SpeculativeConfig]:
    """Few and many drafts, from never to always accepted, with a model's lookahead or without."""
    rate = st.sampled_from([0.0, 0.5, 0.9, 1.0]) | st.floats(0, 1)
    return st.integers(1, 8).flatmap(
        lambda number: st.builds(
            SpeculativeConfig,
            method=st.sampled_from(["ngram", "mtp"]),
            num_speculative_tokens=st.just(number),
            acceptance_rate=rate | st.lists(rate, min_size=number, max_size=number),
        )
    )


@st.composite
def cases(
    draw: st.DrawFn,
    max_jobs: int = 12,
    longest: int = 200,
    policy: str | None = None,
    ample: bool = False,
    drafts: bool | None = True,
) -> Case:
    """One engine with jobs; unless `ample`, most pools hold few of them at once.

    drafts: whether some draft tokens; None: all do.
    Where lanes or replicas share the jobs there are up to twice as many of them.
    """
    block_size = draw(st.sampled_from([1, 2, 3, 4, 8, 16, 32]) | st.integers(1, 32))
    prompt = lengths(block_size, draw(st.sampled_from([longest, longest // 10])))
    output = lengths(block_size, longest)
    max_num_seqs = draw(st.integers(1, 16) | st.integers(4, 16))
    without = st.nothing() if drafts is None else st.none() | st.none()
    drafting = draw(without | some_drafting() if drafts is not False else st.none())
    parallel = draw(parallelism(max_num_seqs))
    lanes = parallel.get("pipeline_parallel_size", 1)
    if lanes * parallel.get("data_parallel_size", 1) > 1:
        max_jobs *= draw(st.integers(1, 2))
    num_jobs = draw(st.integers(1, max_jobs) | st.just(max_jobs))
    times = draw(arrival_times(num_jobs))
    priority = st.integers(0, 2)
    content = draw(contents(block_size))
    limits = draw(st.sampled_from([st.just({}), st.just({}), st.just({}), time_limits()]))
    jobs = []
    for time in times:
        tokens = draw(prompt), draw(output)
        jobs.append(Job(time, *tokens, draw(priority), content(*tokens), **draw(limits)))
    windows = draw(st.none() | st.none() | some_windows(longest))
    num_queries = drafting.num_speculative_tokens + 1 if drafting else 1
    num_spare = drafting.num_speculative_tokens + drafting.num_lookahead_tokens if drafting else 0
    pages = 1 if windows is None else windows.num_full_groups + windows.num_window_groups
    most = [
        pages * -(-(job.num_prompt_tokens + job.num_output_tokens - 1 + num_spare) // block_size)
        for job in jobs
    ]
    largest, together = max(most), sum(most)
    num_blocks = draw(
        st.integers(together, together + 8)
        if ample
        else st.integers(largest, largest + largest // 4 + 3)
        | st.integers(largest, max(largest, together // 2))
        | st.integers(max(1, largest - 2), together + 1)
    )
    policy = policy or draw(st.sampled_from(sorted(POLICIES)))
    max_num_batched_tokens = draw(
        st.integers(0, 8).map(lambda spare: num_queries * max_num_seqs + spare)
        | st.integers(num_queries * max_num_seqs, num_queries * max_num_seqs + 2 * longest)
        if policy == "chunked"
        else st.none() | st.integers(longest // 4, 2 * longest)
    )
    caching = draw(st.sampled_from([True, True, False]))
    options = EngineOptions(
        policy,
        num_blocks * lanes + draw(st.integers(0, lanes - 1)),
        block_size,
        max_num_seqs,
        max_num_batched_tokens,
        order=draw(st.just("fcfs") | st.sampled_from(ORDERS)),
        watermark=draw(st.just(0.0) | st.floats(0.0, 0.3)),
        max_model_len=draw(st.none() | st.integers(longest // 2, 2 * longest)),
        threshold=draw(st.none() | st.integers(1, 40)),
        threshold_spares_one=draw(st.booleans()),
        pass_goes_on=draw(st.booleans()),
        max_partial=draw(st.just(1) | st.integers(1, 4)),
        whole_must_fit=draw(st.sampled_from([True, True, False])),
        prefill_schedule_interval=draw(st.just(1) | st.integers(2, 6)),
        local_cadence=draw(st.sampled_from([True, True, False])),
        held_spares_hits=draw(st.booleans()),
        caches_verified=draw(st.booleans()),
        admits_lookahead=draw(st.booleans()),
        pads_prompts=draw(st.booleans()),
        reserves_prefills=draw(st.booleans()),
        loaded_first=draw(st.booleans()),
        preempted_first=draw(st.booleans()),
        defers_frees=draw(st.booleans()),
        spares_in_flight=draw(st.booleans()),
        windows=windows,
        **parallel,
        caching=caching,
        uncached_first=draw(st.booleans()),
        tiers=draw(some_tiers(num_blocks, lanes)) if caching and windows is None else (),
        drafting=drafting,
        max_num_waiting=draw(st.sampled_from([*[None] * 6, 1, 3])),
        drop_expired=draw(st.booleans()),
        early_rejection=draw(st.booleans()),
        host=draw(some_host_time()),
    )
    hashes_ahead = options.caches_verified and options.pads_prompts  # as in the newest version
    options = replace(options, hashes_ahead=hashes_ahead)
    if not options.tiers:
        options = replace(options, swap=draw(st.none() | some_swap_space(num_blocks, lanes)))
    return Case(options, tuple(jobs))


@st.composite
def fetched(draw: st.DrawFn, of: st.SearchStrategy[Case] | None = None) -> Case:
    """Prompts of which most begin with entries that are kept elsewhere, behind a slow link."""
    case = draw(cases(longest=120) if of is None else of)
    seconds = st.sampled_from([0.0, 2.0**-14, 2.0**-9, 1e-3 / 3, 2.0**-6])
    options = replace(case.options, elsewhere=(draw(seconds), draw(seconds)))
    jobs = [
        replace(job, num_elsewhere=draw(st.just(0) | st.integers(0, job.num_prompt_tokens - 1)))
        for job in case.jobs
    ]
    return Case(options, tuple(jobs))


@st.composite
def overlapped(draw: st.DrawFn) -> Case:
    """Swaps that overlap with steps, in memory for few requests.

    A copy of a request takes from less than a step to many, so that some have not gone when there
    is room for them again, and host memory for few of them is full of those who come back.
    """
    policy = draw(st.sampled_from(["chunked", "chunked", *sorted(POLICIES)]))
    case = draw(cases(longest=120, policy=policy, drafts=False))
    options = replace(case.options, windows=None, tiers=())
    fast = some_swap_space(options.num_blocks, options.pipeline_parallel_size)
    lanes = options.pipeline_parallel_size
    size = st.integers(lanes, max(lanes, options.num_blocks // 2)) | st.just(options.num_blocks)
    slow = st.builds(SwapSpace, size, st.sampled_from([2.0**-9, 1e-2 / 3, 2.0**-7, 2.0**-5]))
    swap = draw(fast | slow | slow)
    return Case(replace(options, swap=replace(swap, overlaps=True)), case.jobs)


@st.composite
def alike(draw: st.DrawFn, drafts: bool | None = True) -> Case:
    """Chunked prompts of one conversation, several in pieces at a time, in scarce memory.

    drafts: as of `cases`.
    """
    case = draw(cases(max_jobs=8, longest=120, policy="chunked", drafts=drafts))
    drafting = case.options.drafting
    num_queries = drafting.num_speculative_tokens + 1 if drafting else 1
    options = replace(
        case.options,
        caching=True,
        windows=None,
        threshold=draw(st.integers(1, 12)),
        max_partial=4,
        max_num_seqs=16,
        max_num_batched_tokens=16 * num_queries + draw(st.integers(0, 48)),
    )
    jobs = tuple(replace(job, content=((0, draw(st.integers(1, 250))),)) for job in case.jobs)
    return Case(options, jobs)


@st.composite
def loaded(draw: st.DrawFn) -> Case:
    """Prompts of one conversation, in pieces, in scarce memory above tiers that have most of it."""
    case = draw(alike() | ahead(drafts=None))
    lanes = case.options.pipeline_parallel_size
    tiers = draw(some_tiers(max(1, case.options.num_blocks // lanes), lanes).filter(bool))
    options = replace(case.options, caching=True, windows=None, swap=None, tiers=tiers)
    jobs = tuple(replace(job, content=((0, draw(st.integers(1, 250))),)) for job in case.jobs)
    return Case(options, jobs)


@st.composite
def loaded_in_step(draw: st.DrawFn) -> Case:
    """The same, where the step that admits a prompt waits for what is loaded of it."""
    case = draw(
        cases(longest=120, policy="chunked", drafts=False, ample=draw(st.sampled_from([0, 0, 1])))
    )
    lanes = case.options.pipeline_parallel_size
    tiers = draw(some_tiers(max(1, case.options.num_blocks // lanes), lanes).filter(bool))
    options = replace(
        case.options,
        caching=True,
        windows=None,
        swap=None,
        threshold=draw(st.none() | st.integers(1, 12)),
        max_partial=64,  # never reached
        prefill_schedule_interval=1,
        tiers=tuple(replace(tier, in_step=True) for tier in tiers),
        async_scheduling=case.options.pipeline_parallel_size == 1 and draw(st.booleans()),
    )
    jobs = tuple(replace(job, content=((0, draw(st.integers(1, 250))),)) for job in case.jobs)
    return Case(options, jobs)


@st.composite
def copies(draw: st.DrawFn) -> Case:
    """Requests with the same content, answers included, in small blocks and scarce memory.

    Several fill the same blocks. Who waits finds copies that nobody holds, and when these are
    evicted, others that somebody does.
    """
    size = draw(st.sampled_from([1, 2, 4]))
    longest = draw(st.integers(8, 16)) * size
    content = st.sampled_from([((0, longest),)] * 5 + [()])
    jobs = []
    for time in sorted(draw(st.lists(st.just(0.0) | st.floats(0, 0.03), min_size=4, max_size=8))):
        total = draw(st.integers(longest // 2, longest))
        most = draw(st.sampled_from([3 * size, total // 2, total - 1]))
        prompt = draw(st.integers(1, most))
        jobs.append(Job(time, prompt, total - prompt, draw(st.integers(0, 2)), draw(content)))
    blocks = [-(-(job.num_prompt_tokens + job.num_output_tokens - 1) // size) for job in jobs]
    options = EngineOptions(
        draw(st.sampled_from(["mixed", "continuous", "chunked"])),
        draw(st.integers(max(blocks), max(*blocks, sum(blocks) * 2 // 3))),
        size,
        max_num_seqs=16,
        max_num_batched_tokens=draw(st.integers(longest, 3 * longest).map(lambda most: most + 16)),
        order=draw(st.sampled_from(["fcfs", "fcfs", "priority"])),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.1])),
        caching=True,
        uncached_first=draw(st.booleans()),
        async_scheduling=draw(st.booleans()),
    )
    return Case(options, tuple(jobs))


@st.composite
def ahead(draw: st.DrawFn, drafts: bool | None = False) -> Case:
    """An engine that plans ahead, in scarce memory, with answers of few blocks: some end often."""
    policy = draw(st.sampled_from(["chunked"] * 4 + sorted(POLICIES)))
    case = draw(cases(longest=60, policy=policy, drafts=drafts))
    plain = {"tiers": (), "swap": None, "windows": None} if draw(st.booleans()) else {}
    options = replace(
        case.options,
        async_scheduling=True,
        pipeline_parallel_size=1,
        lockstep=False,
        order=draw(st.sampled_from(["fcfs", "priority"])),
        **plain,
    )
    return Case(options, case.jobs)


@st.composite
def exposed(draw: st.DrawFn) -> Case:
    """An engine that plans ahead, in ample memory, and does not hide all of its host's time."""
    case = draw(cases(max_jobs=8, longest=60, ample=True, drafts=False))
    host = replace(
        case.options.host,
        exposed_step=draw(st.sampled_from([0.0, 2.0**-10, 1e-3 / 7])),
        exposed_sequence=draw(st.sampled_from([2.0**-13, 1e-4 / 7])),
    )
    options = replace(
        case.options, async_scheduling=True, pipeline_parallel_size=1, lockstep=False, host=host
    )
    return Case(options, case.jobs)


@st.composite
def ahead_together(draw: st.DrawFn) -> Case:
    """Replicas that step together and plan ahead, with little to do now and then."""
    case = draw(cases(longest=60, ample=draw(st.booleans()), drafts=False))
    options = replace(
        case.options,
        async_scheduling=True,
        pipeline_parallel_size=1,
        data_parallel_size=draw(st.integers(2, 3)),
        lockstep=True,
        tiers=(),
    )
    return Case(options, case.jobs)


@st.composite
def alike_in_windows(draw: st.DrawFn, max_jobs: int = 12, **options: Any) -> Case:
    """Requests that begin alike, one after the other or at once, for a model with short windows.

    Half of the pools have room for all, so that much of what windows left is found again.

    options: of `cases`.
    """
    case = draw(cases(max_jobs, longest=120, ample=draw(st.booleans()), **options))
    size = case.options.block_size
    reach = st.integers(1, 6 * size) | st.integers(1, 4).map(lambda blocks: blocks * size + 1)
    windows = Windows(draw(reach), draw(st.sampled_from([1, 1, 2, 0])), draw(st.integers(1, 3)))
    changed = replace(
        case.options,
        caching=True,
        tiers=(),
        windows=windows,
        caps_windows=draw(st.booleans()),
        returns_unseen=draw(st.booleans()),
        hybrid_drops=draw(st.sampled_from([0, 0, 1, None])),
    )
    content = draw(contents(size))
    late = draw(st.sampled_from([0.0, 0.05, 1.0]))
    jobs = [
        replace(
            job,
            arrival_time=job.arrival_time + late * number,
            content=content(job.num_prompt_tokens, job.num_output_tokens),
        )
        for number, job in enumerate(case.jobs)
    ]
    return Case(changed, tuple(jobs))


@st.composite
def alike_in_states(draw: st.DrawFn, max_jobs: int = 12) -> Case:
    """Requests that begin alike, for a model whose states are kept for others.

    Half of the models have windows, too. Before 0.33 a step has room for a block.
    """
    case = draw(alike_in_windows(max_jobs))
    options, size = case.options, case.options.block_size
    goes_on = draw(st.booleans())
    kept = Kept(
        dense=draw(st.sampled_from([False, False, True])),
        waits=draw(st.sampled_from([True, True, False])),
        shared=draw(st.sampled_from(["always"] if goes_on else ["never", "at_first"])),
        goes_on=goes_on,
        inside=goes_on and draw(st.booleans()),
    )
    windows = options.windows or Windows(1, 1, 0)
    num_windows = draw(st.sampled_from([0, 0, windows.num_window_groups]))
    windows = Windows(
        windows.size if num_windows else 1,
        max(1, windows.num_full_groups),
        num_windows,
        draw(st.integers(1, 3)),
        kept,
    )
    least = 1 if goes_on else size
    budget = max(least, draw(st.integers(1, 4 * size)), options.max_num_seqs)
    options = replace(
        options,
        policy="chunked",
        windows=windows,
        num_blocks=options.num_blocks + 3 * windows.num_state_groups,
        max_num_batched_tokens=budget,
        threshold=options.threshold and max(options.threshold, least),
        drafting=None,
        swap=None,
    )
    return Case(options, case.jobs)


METHODS = ["ngram", "eagle"]


@st.composite
def drafts_in_states(draw: st.DrawFn, max_jobs: int = 10) -> Case:
    """Requests that begin alike and draft, where states are kept.

    As from vLLM 0.33 on, or as in 0.16 to 0.25, where drafts of a layer cost a hit a block.
    """
    case = draw(alike_in_states(max_jobs))
    options, kept = case.options, case.options.kept
    is_new = draw(st.booleans())
    shared = "always" if is_new else draw(st.sampled_from(["never", "at_first"]))
    kept = replace(kept, dense=False, goes_on=is_new, shared=shared, inside=is_new and kept.inside)
    assert options.windows
    number, size = draw(st.integers(1, 3)), options.block_size
    model = draw(st.sampled_from([None, "llama-3.2-1b"]))
    drafting = SpeculativeConfig(
        method="draft_model" if model else draw(st.sampled_from(["ngram"] if is_new else METHODS)),
        model=model,
        num_speculative_tokens=number,
        acceptance_rate=draw(st.sampled_from([0.0, 0.4, 0.8, 1.0])),
    )
    least = (1 + number) * options.max_num_seqs
    options = replace(
        options,
        windows=replace(options.windows, kept=kept),
        drafting=drafting,
        caches_verified=is_new,
        admits_lookahead=is_new,
        returns_unseen=is_new,
        hybrid_drops=0 if is_new else draw(st.sampled_from([0, 0, 1])),
        num_blocks=options.num_blocks + (number + 2) * (options.windows.num_groups + 3),
        max_num_batched_tokens=max(least, options.max_num_batched_tokens or size),
    )
    return Case(options, case.jobs)


@st.composite
def pieces_in_windows(draw: st.DrawFn) -> Case:
    """Few requests, with long prompts in many small pieces, for a model with short windows.

    They share content, and memory is scarce, so a prompt meets what is left of others' blocks: most
    often of the same conversation's end, whose beginning is lost.
    """
    size = draw(st.sampled_from([1, 2, 4, 8]))
    windows = Windows(
        draw(st.integers(1, 6 * size)), draw(st.sampled_from([1, 1, 2, 0])), draw(st.integers(1, 3))
    )
    budget = draw(st.integers(1, 4).map(lambda blocks: blocks * size) | st.integers(1, 4 * size))
    content = draw(contents(size))
    longest = draw(st.sampled_from([20 * size, 80 * size]))
    late = draw(st.sampled_from([0.0, 0.05, 1.0]))
    jobs = []
    for number in range(draw(st.integers(2, 6))):
        tokens = draw(lengths(size, longest)), draw(st.integers(1, 3 * size))
        spans = content(*tokens) if draw(st.integers(0, 3)) == 0 else ((1, tokens[0]),)
        jobs.append(Job(late * number, *tokens, content=spans))
    num_seqs = draw(st.integers(1, min(3, budget)))
    pages = windows.num_full_groups + windows.num_window_groups
    longest_of_all = max(job.num_prompt_tokens + job.num_output_tokens for job in jobs)
    most = pages * -(-longest_of_all // size)
    options = EngineOptions(
        "chunked",
        draw(st.integers(max(1, most // 2), most + most // 4) | st.integers(most, 3 * most)),
        size,
        num_seqs,
        budget,
        whole_must_fit=draw(st.booleans()),
        caps_windows=draw(st.booleans()),
        returns_unseen=draw(st.booleans()),
        uncached_first=draw(st.booleans()),
        async_scheduling=draw(st.booleans()),
        windows=windows,
        caching=True,
    )
    return Case(options, tuple(jobs))


@st.composite
def overloads(draw: st.DrawFn, max_jobs: int = 12) -> Case:
    """Jobs that come at once, or nearly so, and time limits of a few steps for all of them."""
    case = draw(cases(max_jobs))
    names = draw(st.sampled_from([["ttft_deadline"], ["timeout"], ["timeout", "ttft_timeout"]]))
    jobs = [
        replace(
            job,
            arrival_time=draw(st.just(0.0) | st.floats(0.0, 0.01)),
            **{name: draw(few_steps()) for name in names},
        )
        for job in case.jobs
    ]
    jobs.sort(key=lambda job: job.arrival_time)
    early = draw(st.booleans())
    options = replace(case.options, early_rejection=early)
    return Case(options, tuple(jobs))


@st.composite
def overloads_of_alike(draw: st.DrawFn) -> Case:
    """Prompts of one conversation that come nearly at once, of which some are turned away early."""
    case = draw(alike())
    time, seconds = st.just(0.0) | st.floats(0.0, 0.01), few_steps()
    jobs = [replace(job, arrival_time=draw(time), ttft_deadline=draw(seconds)) for job in case.jobs]
    jobs.sort(key=lambda job: job.arrival_time)
    return Case(replace(case.options, early_rejection=True), tuple(jobs))


def finished(case: Case, predictor: Predictor) -> Result:
    """Return the run of a case by the engine, which takes a tenth of the reference's time.

    Where it only places what the reference is asked about afterwards, it is as good.
    """
    try:
        return case.simulate(predictor)
    except ScenarioError:
        case.stepwise(predictor)  # leaves out what never ends
        raise


def step_ends(result: Result) -> list[float]:
    """Return when steps end, in order."""
    return sorted(time for ends in result.recorder.step_ends for time in ends[:].tolist())


def boundaries(case: Case, predictor: Predictor) -> tuple[set[float], set[float]]:
    """Return when steps are planned or end, and when jobs leave.

    Only the reference tells when ranks of a pipeline plan: between two ends.
    """
    if any(
        options.pipeline_parallel_size > 1 for options in getattr(case, "clients", [case.options])
    ):
        engine = case.stepwise(predictor)
        times = {time for step in engine.steps for time in (step.planned, step.end)}
        return times, {outcome.finished_at for outcome in engine.outcomes}
    result = finished(case, predictor)
    starts = {
        start for table in result.recorder.steps for start in table.columns()["start"].tolist()
    }
    left = result.recorder.requests.columns()["finished_at"].tolist()
    return starts | set(step_ends(result)), set(left)


def with_arrivals_on_boundaries(data: st.DataObject, case: Case, predictor: Predictor) -> Case:
    """Add jobs that arrive when a step ends or is planned, or the next float before or behind.

    Each is placed by a run of the case with those before it, in order of time, so that it does
    meet the end of a step.
    """
    length = lengths(case.options.block_size, 60)
    earliest = 0.0
    for _ in range(data.draw(st.integers(1, 4), label="number of boundaries")):
        times, left = boundaries(case, predictor)
        ends = sorted(time for time in times if time >= earliest)
        if not ends:
            break
        boundary = st.sampled_from(ends) | st.sampled_from(sorted(left & set(ends)) or ends)
        earliest = data.draw(boundary, label="boundary")
        for shift in data.draw(
            st.lists(st.sampled_from([-inf, 0.0, 0.0, inf]), min_size=1, max_size=2), label="shifts"
        ):
            time = max(0.0, nextafter(earliest, shift)) if shift else earliest
            tokens = data.draw(length), data.draw(length)
            like = data.draw(st.sampled_from(case.jobs), label="content")
            case = case.with_job(Job(time, *tokens, content=like.content))
    return case


def with_time_outs_on_boundaries(data: st.DataObject, case: Case, predictor: Predictor) -> Case:
    """Let jobs give up at the end of a step, or the next float before or behind it.

    Only those that arrive at time 0 are sure to meet it to the bit: for others the sum of arrival
    and time-out rounds.
    """
    jobs = list(case.jobs)
    jobs[0] = replace(jobs[0], arrival_time=0.0)
    for _ in range(data.draw(st.integers(1, 4), label="number of time-outs")):
        ends = step_ends(finished(replace(case, jobs=tuple(jobs)), predictor))
        early = [
            position for position, job in enumerate(jobs) if job.arrival_time < max(ends, default=0)
        ]
        if not early:
            break
        position = data.draw(st.just(0) | st.sampled_from(early), label="who")
        job = jobs[position]
        end = data.draw(st.sampled_from([t for t in ends if t > job.arrival_time]), label="end")
        shift = data.draw(st.sampled_from([-inf, 0.0, 0.0, inf]), label="shift")
        time = (nextafter(end, shift) if shift else end) - job.arrival_time
        name = data.draw(
            st.sampled_from(["timeout", "ttft_timeout", "ttft_deadline"]), label="limit"
        )
        jobs[position] = replace(job, **{name: time})
    return replace(case, jobs=tuple(jobs))


@st.composite
def queued(draw: st.DrawFn) -> Case:
    """A pipeline with one scheduler and a queue of batches, mostly in scarce memory."""
    case = draw(cases(longest=draw(st.sampled_from([40, 120])), policy="chunked", drafts=False))
    options = replace(case.options, windows=None)
    return Case(draw(in_a_queue(options)), case.jobs)


@st.composite
def queued_in_windows(draw: st.DrawFn) -> Case:
    """The same for a model with windows; half of the cases begin alike, or have long prompts."""
    case = draw(
        alike_in_windows(policy="chunked", drafts=False)
        | pieces_in_windows()
        | cases(longest=120, policy="chunked", drafts=False)
    )
    options = case.options
    if options.windows is None:
        options = replace(options, windows=draw(some_windows(120)), tiers=(), swap=None)
    options = replace(options, returns_unseen=draw(st.booleans()), caps_windows=draw(st.booleans()))
    return Case(draw(in_a_queue(options)), case.jobs)


@st.composite
def queued_in_states(draw: st.DrawFn) -> Case:
    """The same for a model whose prefix cache keeps states."""
    case = draw(alike_in_states())
    return Case(draw(in_a_queue(case.options)), case.jobs)


@st.composite
def in_a_queue(draw: st.DrawFn, options: EngineOptions) -> EngineOptions:
    """Options of an engine, made into those of pipelines with a queue of batches."""
    ranks, fills = draw(st.integers(2, 4)), draw(st.booleans())
    ahead, staggers = draw(st.booleans()), fills and draw(st.booleans())
    # not known to be exact: priorities where three steps and more are planned ahead (vLLM 0.19)
    orders = ["fcfs"] if ahead and not staggers and ranks > 2 else ["fcfs", "fcfs", "priority"]
    return replace(
        options,
        batch_queue=True,
        pipeline_parallel_size=ranks,
        num_blocks=max(1, options.num_blocks // options.pipeline_parallel_size),
        data_parallel_size=draw(st.sampled_from([1, 1, 1, 2])),
        lockstep=False,
        order=draw(st.sampled_from(orders)),
        async_scheduling=ahead,
        staggers_decodes=staggers,
        fills_queue=fills,
        drains_preempted=draw(st.booleans()),
        prefill_schedule_interval=1,
        tiers=(),
        swap=None,
    )


@st.composite
def in_few_blocks(draw: st.DrawFn) -> Case:
    """Requests that come nearly at once to a memory of two to six blocks, which one may fill alone.

    Most are in pieces, several at a time, and a first piece lets them in; some have priorities,
    drafts that are never accepted, tiers, swaps, a cadence or a queue of batches.
    """
    size, num_blocks = draw(st.integers(1, 4)), draw(st.integers(2, 6))
    room = size * num_blocks
    jobs = []
    for time in sorted(draw(st.lists(st.just(0.0) | st.floats(0, 0.05), min_size=2, max_size=5))):
        prompt = draw(st.integers(1, room))
        output = draw(st.integers(1, room - prompt + 1))
        content = draw(st.just(()) | st.integers(1, room).map(lambda number: ((0, number),)))
        jobs.append(Job(time, prompt, output, draw(st.integers(0, 2)), content))
    drafting = draw(st.none() | st.none() | st.none() | some_drafting())
    num_queries = drafting.num_speculative_tokens + 1 if drafting else 1
    max_num_seqs = draw(st.integers(1, 5))
    caching = draw(st.booleans())
    options = EngineOptions(
        draw(st.sampled_from(["chunked"] * 6 + sorted(POLICIES))),
        num_blocks,
        size,
        max_num_seqs,
        num_queries * max_num_seqs + draw(st.integers(0, 8)),
        order=draw(st.sampled_from(["priority", *ORDERS])),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.3])),
        threshold=draw(st.sampled_from([None, 1, 2, 3, 4, 26])),
        max_partial=draw(st.integers(1, 4)),
        whole_must_fit=draw(st.sampled_from([False, False, True])),
        prefill_schedule_interval=draw(st.sampled_from([1, 1, 2, 4])),
        caching=caching,
        drafting=drafting,
        async_scheduling=draw(st.booleans()),
        **{name: draw(st.booleans()) for name in _RULES_OF_PLANS},
    )
    kind = draw(st.sampled_from(["plain", "plain", "tiers", "swaps", "queue"]))
    if kind == "tiers" and caching:
        options = replace(options, tiers=draw(some_tiers(num_blocks, 1)))
    elif kind == "swaps":
        swap = draw(some_swap_space(num_blocks, 1))
        options = replace(
            options, swap=replace(swap, overlaps=not drafting and draw(st.booleans()))
        )
    elif kind == "queue" and options.policy == "chunked" and not drafting:
        options = draw(in_a_queue(options))
    options = replace(options, hashes_ahead=options.caches_verified and options.pads_prompts)
    return Case(options, tuple(jobs))


_RULES_OF_PLANS = (
    *("threshold_spares_one", "pass_goes_on", "local_cadence", "held_spares_hits"),
    *("caches_verified", "admits_lookahead", "pads_prompts", "reserves_prefills", "loaded_first"),
    *("preempted_first", "defers_frees", "spares_in_flight", "uncached_first"),
)
