"""The decode clock gives what a plain stepwise engine gives: equal bits, not a tolerance."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise, product
from math import isnan

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from mist_sim.clients.kv_cache.pages import HeldPages
from mist_sim.core.request import Request, Stage
from mist_sim.core.views import ClientView
from mist_sim.hardware import Cluster, GpuSpec, load_gpu
from mist_sim.hardware.cluster import GATHERS, All2AllBackend
from mist_sim.hardware.predictors import Predictor, RooflinePredictor, TablePredictor
from mist_sim.models import SpeculativeConfig, load_model
from mist_sim.simulation import Simulation
from tests.effort import examples, features_seen, missing
from tests.property.strategies import (
    ahead,
    ahead_together,
    alike,
    alike_in_states,
    alike_in_windows,
    cases,
    copies,
    drafts_in_states,
    exposed,
    fetched,
    finished,
    loaded,
    loaded_in_step,
    overlapped,
    overloads,
    overloads_of_alike,
    pieces_in_windows,
    queued,
    queued_in_windows,
    step_ends,
    with_arrivals_on_boundaries,
    with_time_outs_on_boundaries,
)
from tests.reference.comparison import (
    POLICIES,
    Case,
    EngineOptions,
    Reference,
    assert_exact,
    workload,
)
from tests.reference.measured import measured_experts, measured_layers
from tests.reference.memory import SwapSpace, Tier
from tests.reference.predictors import AWKWARD, DYADIC, SLOWER, STEEP
from tests.reference.run_lengths import assert_rows_do_not_show
from tests.reference.state_memory import Kept
from tests.reference.stepwise import Job, Outcome, Step, Windows


@cache
def roofline() -> RooflinePredictor:
    model = replace(load_model("llama-3.1-8b"), num_nextn_predict_layers=1)
    return RooflinePredictor(model, Cluster(without_l2("h100-sxm")))


def without_l2(name: str) -> GpuSpec:
    """Return a GPU in whose cache no pages of shared prefixes stay: the reference counts none."""
    return replace(load_gpu(name), l2_cache=None, l2_bandwidth=None)


@cache
def groupless_roofline() -> RooflinePredictor:
    """Time heads without groups where the longest context counts, the draft model's too."""
    model = replace(load_model("llama-2-7b"), num_nextn_predict_layers=1)
    return RooflinePredictor(model, Cluster(without_l2("a100-80gb-sxm"), 4))


@cache
def windowed_roofline() -> RooflinePredictor:
    """Time a model with sliding windows, to which a layer is added that drafts (MTP)."""
    model = replace(load_model("gpt-oss-120b"), num_nextn_predict_layers=1)
    return RooflinePredictor(model, Cluster(load_gpu("h100-sxm")))


def fate(outcome: Outcome) -> set[str]:
    """What became of a job."""
    found = set()
    if outcome.preempted_at:
        found.add("preempted")
        if not outcome.first_token_at <= outcome.preempted_at[0]:
            found.add("preempted before its first token")
    if len(outcome.preempted_at) > 2:
        found.add("preempted more than twice")
    if outcome.num_cached_tokens:
        found.add("cached at its first admission")
    if outcome.num_accepted:
        found.add("drafts accepted")
        if outcome.preempted_at:
            found.add("drafts accepted and preempted")
    if outcome.swapped_tokens:
        found.add("swapped out")
    if len(outcome.swapped_tokens) > 2:
        found.add("swapped out more than once")
    if len(outcome.preempted_at) > len([n for n in outcome.swapped_tokens if n < 0]) > 0:
        found.add("swapped out once, computed again another time")
    if outcome.num_loaded_blocks:
        found.add("loaded from a tier")
    if outcome.status != "finished":
        found.add(how_failed(outcome))
    return found | how_moved(outcome)


def how_moved(outcome: Outcome) -> set[str]:
    if not outcome.num_fetched_tokens:
        return {"sat a step out"} if outcome.num_sat_out else set()
    more = {
        "fetched in part": outcome.num_cached_tokens,
        "fetched and preempted": outcome.preempted_at,
    }
    return {"fetched", *(name for name, is_so in more.items() if is_so)}


def features(engine: Reference) -> set[str]:
    """What a case exercised."""
    found = set().union(*map(fate, engine.outcomes))
    if any(lane.num_ever_padded for lane in engine.tracks):
        found.add("drafts beside the last token of a prompt")
    if any(outcome.gave_way for outcome in engine.outcomes):
        found.add("preempted after its end")
    if engine.tracks[0].windows and "cached at its first admission" in found:
        found.add("cached with windows")
        if "drafts accepted" in found:
            found.add("cached with windows and drafts")
    if len(engine.tracks) > 1 and "preempted" in found:
        found.add("lanes that are preempted")
    if len(engine.tracks) > 1 and engine.tracks[0].plans_ahead:
        found.add("several engines that plan ahead")
    if any(step.start < step.planned for step in engine.steps):
        found.add("lanes that wait for one another")
    return found | step_features(engine)


def step_features(engine: Reference) -> set[str]:
    """What the steps of a case exercised."""
    found = set()
    if any(len(step.batch.chunks) > 1 for step in engine.steps):
        found.add("several prompts in a step")
    if any(context for step in engine.steps for _, context in step.batch.chunks):
        found.add("a prompt in chunks")
    if any(step.batch.chunks and step.batch.num_decodes for step in engine.steps):
        found.add("prompts beside decodes")
    decodes = [step.batch for step in engine.steps if step.batch.num_decodes]
    beyond = [b for b in decodes if (b.window_sum or b.context_sum) < b.context_sum]
    if beyond:
        found.add("a context beyond its window")
    if any(batch.num_drafts for batch in beyond):
        found.add("drafts beyond a window")
    return found


def how_failed(outcome: Outcome) -> str:
    if outcome.status == "rejected":
        return "rejected later" if outcome.token_times else "rejected without a token"
    if outcome.left_at > outcome.finished_at:
        return "given up in a step"
    if isnan(outcome.started_at):
        return "given up before its turn"
    return "given up between steps, or preempted"


# --- random cases -----------------------------------------------------------------------------


def exact(
    strategy: st.SearchStrategy[Case],
    number: int = 60,
    *predictors: Predictor,
    meeting: Callable[..., Case] = lambda data, case, predictor: case,
) -> Callable[..., None]:
    """Return a test that so many cases of a strategy are exact.

    predictors: AWKWARD and DYADIC unless others are named. meeting: what moves times to ends of
    steps.
    """

    @examples(number)
    @given(
        case=strategy, predictor=st.sampled_from(predictors or (AWKWARD, DYADIC)), data=st.data()
    )
    def test(case: Case, predictor: Predictor, data: st.DataObject) -> None:
        for feature in features(assert_exact(meeting(data, case, predictor), predictor)):
            event(feature)

    return test


ARRIVING = {"meeting": with_arrivals_on_boundaries}
GIVEN_UP = {"meeting": with_time_outs_on_boundaries}
quick = pytest.mark.exact

test_random_cases = quick(exact(cases(), 60, AWKWARD, DYADIC, SLOWER))
test_arrivals_on_the_end_of_a_step = quick(exact(cases(max_jobs=6), **ARRIVING))
test_prompts_that_begin_from_entries_kept_elsewhere = quick(exact(fetched(), 300, **ARRIVING))
test_swaps_that_overlap_with_steps = quick(exact(overlapped(), 150, **ARRIVING))
test_prompts_that_begin_alike = quick(exact(alike(), 300))
test_prompts_that_are_loaded_from_tiers = quick(exact(loaded(), 300))
test_steps_that_wait_for_blocks_of_tiers = quick(exact(loaded_in_step(), 300, **ARRIVING))
test_copies_of_blocks_that_are_evicted = quick(exact(copies(), 300))
test_engines_that_plan_ahead = quick(exact(ahead(), 150))
test_engines_that_draft_and_plan_ahead = quick(exact(ahead(drafts=None), 300, **ARRIVING))
test_pipelines_with_a_queue_of_batches = quick(exact(queued(), 150, **ARRIVING))
test_queues_of_batches_in_windows = quick(exact(queued_in_windows(), 150, **ARRIVING))
test_replicas_that_step_together_plan_ahead = quick(exact(ahead_together(), 150, **ARRIVING))
test_engines_that_do_not_hide_all_of_their_hosts_time = exact(exposed(), 60)
test_prompts_that_begin_alike_in_windows = quick(exact(alike_in_windows(), 150))
test_pieces_of_prompts_in_windows = exact(pieces_in_windows(), 300)
test_time_outs_at_the_end_of_a_step = quick(exact(cases(max_jobs=6), **GIVEN_UP))
test_overloads = exact(overloads(), 150)
test_early_rejection_of_prompts_that_begin_alike = exact(overloads_of_alike(), 60, STEEP)
test_prompts_that_begin_alike_where_states_are_kept = quick(exact(alike_in_states(), 150))
test_drafts_where_states_are_kept = quick(exact(drafts_in_states(), 150))
test_long_requests = exact(cases(max_jobs=5, longest=2_000), 10, AWKWARD, **ARRIVING)


@examples(60)
@given(case=cases(max_jobs=8), data=st.data())
def test_roofline(case, data):
    plain = data.draw(st.sampled_from([roofline(), groupless_roofline()]))
    predictor = windowed_roofline() if case.options.windows else plain
    assert_exact(with_arrivals_on_boundaries(data, case, predictor), predictor)


@cache
def state_roofline() -> RooflinePredictor:
    """Time a model most of whose layers keep a state, with a layer that drafts."""
    return RooflinePredictor(load_model("qwen3.5-35b-a3b"), Cluster(load_gpu("h100-sxm"), 2))


@examples(30)
@given(case=cases(max_jobs=6), groups=st.integers(1, 4), data=st.data())
def test_pages_of_states(case, groups, data):
    """A sequence has one page of every group of states, from its first token to its last."""
    windows = Windows(1, 1, 0, groups)
    case = replace(case, options=replace(case.options, caching=False, tiers=(), windows=windows))
    predictor = state_roofline()
    assert_exact(with_arrivals_on_boundaries(data, case, predictor), predictor)


@pytest.mark.exact
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("num_blocks", [8, 9, 10, 11, 12, 60])
def test_prompt_before_younger_decodes_where_states_are_kept(num_blocks, asynchronous):
    """Every second piece ends at a block; the one behind it takes all tokens of its step."""
    kept = Kept(dense=False, waits=True, shared="always", goes_on=True)
    windows = Windows(1, 1, 0, 1, kept)
    options = EngineOptions("chunked", num_blocks, 8, 4, 6, windows=windows, caching=True)
    options = replace(options, async_scheduling=asynchronous, pass_goes_on=True)
    jobs = (Job(0.0, 40, 3), Job(0.0, 2, 15), Job(0.0, 2, 15))
    assert_exact(Case(options, jobs), AWKWARD)


@cache
def layer_table() -> TablePredictor:
    """Measured layers: uneven contexts count, and small cases cross the points of its grid."""
    model = load_model("llama-3.1-8b")
    path = measured_layers(model.num_layers)
    return TablePredictor(model, Cluster(load_gpu("h100-sxm")), path, "layer_profile")


@examples(60)
@given(case=cases(max_jobs=8, drafts=False), data=st.data())
def test_measured_tables(case, data):
    assert_exact(with_arrivals_on_boundaries(data, case, layer_table()), layer_table())


@cache
def expert_table(
    data_parallel_size: int, tensor_parallel_size: int, backend: All2AllBackend
) -> TablePredictor:
    """Measured layers with experts: whole on one rank, sliced, or spread over several."""
    model = load_model("qwen3-30b-a3b")
    path = measured_experts(model.num_layers, tensor_parallel_size)
    spread = data_parallel_size > 1
    cluster = Cluster(
        load_gpu("h100-sxm"),
        tensor_parallel_size=tensor_parallel_size,
        data_parallel_size=data_parallel_size,
        enable_expert_parallel=spread,
        expert_load_imbalance=1.5 if spread else 1.0,
        all2all_backend=backend if spread else GATHERS,
    )
    return TablePredictor(model, cluster, path, "layer_profile")


@examples(60)
@given(
    case=cases(max_jobs=8, drafts=False),
    size=st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2)]),
    backend=st.sampled_from([GATHERS, "deepep_low_latency", "deepep_v2"]),
    data=st.data(),
)
def test_measured_experts(case, size, backend, data):
    """Under tensor, data and expert parallelism, in lockstep too."""
    predictor = expert_table(*size, backend)
    assert_exact(with_arrivals_on_boundaries(data, case, predictor), predictor)


HARD = (
    "preempted more than twice",
    "rejected without a token",
    "given up in a step",
    "given up before its turn",
    "several prompts in a step",
    "a prompt in chunks",
    "prompts beside decodes",
    "lanes that wait for one another",
    "lanes that are preempted",
    "several engines that plan ahead",
    "a context beyond its window",
    "cached at its first admission",
    "drafts accepted",
    "drafts accepted and preempted",
    "drafts beyond a window",
    "loaded from a tier",
    "swapped out",
    "swapped out more than once",
)
HARD_AHEAD = ("preempted after its end", "preempted more than twice")
HARD_FETCHED = ("fetched", "fetched in part", "fetched and preempted", "given up before its turn")
HARD_OVERLAPPED = ("swapped out more than once", "sat a step out", "lanes that are preempted")
HARD_IN_WINDOWS = (
    "cached with windows",
    "cached with windows and drafts",
    "drafts beside the last token of a prompt",
)
HARD_IN_QUEUES = ("cached with windows", "preempted", "a context beyond its window")


@pytest.mark.deep
@pytest.mark.parametrize(
    ("strategy", "wanted"),
    [
        (cases(), HARD),
        (ahead(), HARD_AHEAD),
        (alike_in_windows(), HARD_IN_WINDOWS),
        (queued_in_windows(), HARD_IN_QUEUES),
        (fetched(), HARD_FETCHED),
        (overlapped(), HARD_OVERLAPPED),
    ],
)
def test_each_hard_feature_is_reached(strategy, wanted):
    """A change of the strategies that loses the pressure on memory shows here."""
    seen = features_seen(strategy, lambda case: features(case.stepwise(DYADIC)), wanted)
    assert not missing(seen, wanted), seen


# --- chosen cases -----------------------------------------------------------------------------


@pytest.mark.parametrize("predictor", [AWKWARD, roofline()], ids=["affine", "roofline"])
@pytest.mark.parametrize("policy", POLICIES)
def test_outputs_of_thousands_of_tokens(policy, predictor):
    """Runs double up to thousands of steps; late arrivals cut them."""
    options = EngineOptions(policy, 4_000, 16, 8, 4_096)
    jobs = [Job(0.0, 100, 9_000), Job(0.0, 37, 6_001), Job(1e-3, 1_024, 4_096)]
    case = Case(options, tuple(jobs))
    ends = step_ends(finished(case, predictor))
    for position in (700, 2_345, 5_000):
        case = case.with_job(Job(ends[position], 64, 500))
    engine = assert_exact(case, predictor)
    assert all(outcome.status == "finished" for outcome in engine.outcomes)
    runs = case.simulate(predictor).steps["num_steps"]
    assert runs.max() > 500
    assert len(runs) < len(engine.steps) / 100


def test_long_answers_that_windows_leave_behind_are_few_runs():
    """What decodes give back does not cut a run, also where a cache keeps what they had."""
    windows = Windows(100, 1, 2)
    options = EngineOptions("chunked", 20_000, 16, 8, 4_096, windows=windows, caching=True)
    content = ((0, 400),)
    jobs = [Job(0.0, 500, 4_000, content=content), Job(1.0, 400, 2_501, content=content)]
    engine = assert_exact(Case(options, tuple(jobs)), AWKWARD)
    assert engine.outcomes[1].num_cached_tokens == 384
    runs = Case(options, tuple(jobs)).simulate(AWKWARD).steps["num_steps"]
    assert len(runs) < len(engine.steps) / 100


@pytest.mark.parametrize("content", [(), ((0, 3_000),), ((0, 500), (1, 1_700), (2, 800))])
def test_long_prompts_that_windows_leave_behind_are_few_runs(content):
    """What a prompt gives back piece by piece does not cut a run; its blocks are found again."""
    windows = Windows(100, 1, 2)
    options = EngineOptions("chunked", 1_000, 16, 8, 64, windows=windows, caching=True)
    begins = ((7, 30),)  # so that the cache is in use
    jobs = [Job(0.0, 100, 2, content=begins), Job(1.0, 3_000, 2, content=content)]
    jobs += [Job(9.0, 1_000, 1, content=content[:1]), Job(19.0, 3_000, 2, content=content)]
    engine = assert_exact(Case(options, tuple(jobs)), AWKWARD)
    found = [outcome.num_cached_tokens for outcome in engine.outcomes]
    assert (found[3] > 2_900) == bool(content)
    chunked = [step for step in engine.steps if step.batch.chunks]
    runs = Case(options, tuple(jobs)).simulate(AWKWARD).steps
    assert len(chunked) > 3_000 // 64
    assert (runs["num_chunks"] > 0).sum() < 16


def test_pieces_of_prompts_with_nothing_in_common_are_few_runs():
    """Those that begin alike are planned step by step; after what they share they are not."""
    options = EngineOptions("chunked", 500, 16, 8, 64, threshold=16, max_partial=4, caching=True)
    apart = [Job(0.0, 1_000, 2, content=((k, 1_000),)) for k in range(4)]
    alike = [Job(0.0, 1_000, 2, content=((9, 160), (k, 840))) for k in range(4)]
    for jobs, most in ((apart, 16), (alike, 40)):
        case = Case(options, tuple(jobs))
        engine = assert_exact(case, AWKWARD)
        assert len(engine.steps) > 60
        assert len(case.simulate(AWKWARD).steps) < most


def test_free_pages_are_those_in_the_queue(monkeypatch):
    """After every call by which pages come or go."""
    checked = []

    def watch(name):
        method = getattr(HeldPages, name)

        def call(self, *arguments):
            method(self, *arguments)
            assert self._table.num_free == self._pool.num_free
            checked.append(name)

        monkeypatch.setattr(HeldPages, name, call)

    names = {"begin_with", "extend", "leave_behind", "end"}
    for name in names:
        watch(name)
    windows = Windows(10, 1, 2)
    swap = SwapSpace(60, 0.001)
    options = EngineOptions("chunked", 100, 4, 8, 16, windows=windows, caching=True, swap=swap)
    jobs = [Job(0.005 * k, 60 + k, 80 + k, content=((k % 3, 50),)) for k in range(12)]
    assert_exact(Case(options, tuple(jobs)), AWKWARD)
    assert names <= set(checked)


@pytest.mark.parametrize("window", [3, 30, 100])
def test_the_next_in_line_finds_what_others_name_hold_and_return_while_it_waits(window):
    for num_blocks in (24, 26, 34, 44, 58):
        windows = Windows(window, 1, 1)
        options = EngineOptions(
            "chunked",
            num_blocks,
            4,
            8,
            16,
            threshold=8,
            max_partial=4,
            windows=windows,
            caching=True,
        )
        jobs = [Job(0.0005 * k, 40 + 3 * k, 6, content=((k % 2, 40),)) for k in range(8)]
        assert_exact(Case(options, tuple(jobs)), AWKWARD)


DRAFTS = SpeculativeConfig(method="eagle", num_speculative_tokens=3, acceptance_rate=0.5)


@pytest.mark.parametrize("predictor", [AWKWARD, roofline()], ids=["affine", "roofline"])
@pytest.mark.parametrize("policy", POLICIES)
def test_drafted_outputs_of_thousands_of_tokens(policy, predictor):
    """Paths longer than what the clock first looks ahead."""
    options = EngineOptions(policy, 4_000, 16, 8, 4_096, drafting=DRAFTS)
    jobs = (Job(0.0, 100, 9_000), Job(0.0, 37, 6_001), Job(1e-3, 1_024, 4_096), Job(9.0, 5, 700))
    engine = assert_exact(Case(options, jobs), predictor)
    assert all(outcome.status == "finished" for outcome in engine.outcomes)
    mean = 1 + sum(outcome.num_accepted for outcome in engine.outcomes) / sum(
        outcome.num_decode_steps for outcome in engine.outcomes
    )
    assert mean == pytest.approx(1 + sum(DRAFTS.survival), rel=0.03)


@pytest.mark.parametrize("policy", POLICIES)
def test_drafts_under_memory_pressure(policy):
    options = EngineOptions(policy, 30, 4, 8, 64, max_model_len=100, drafting=DRAFTS)
    jobs = tuple(Job(0.001 * k, 8 + k, 50 + 3 * k) for k in range(12))
    engine = assert_exact(Case(options, jobs), AWKWARD)
    assert sum(len(outcome.preempted_at) for outcome in engine.outcomes) > 5


@pytest.mark.parametrize("predictor", [AWKWARD, roofline()], ids=["affine", "roofline"])
@pytest.mark.parametrize("others", [0, 3])
def test_a_prompt_of_thousands_of_tokens_in_chunks(others, predictor):
    options = EngineOptions("chunked", 1_000, 16, 16, 128)
    jobs = [Job(0.0, 20 + k, 300 + k) for k in range(others)]
    long_prompt = Job(0.05, 5_000, 30)
    case = Case(options, (*jobs, long_prompt, Job(0.06, 50, 10)))
    engine = assert_exact(case, predictor)
    chunked = [step for step in engine.steps if step.batch.chunks]
    assert len(chunked) > 5_000 // 128
    runs = case.simulate(predictor).steps
    assert runs.loc[runs["num_chunks"] == 1, "num_steps"].max() > 10


@pytest.mark.parametrize("policy", POLICIES)
def test_a_fixed_case_under_memory_pressure(policy):
    options = EngineOptions(policy, 30, 4, 8, 64)
    jobs = tuple(Job(0.001 * k, 8 + k, 50 + 3 * k) for k in range(12))
    engine = assert_exact(Case(options, jobs), AWKWARD)
    assert sum(len(outcome.preempted_at) for outcome in engine.outcomes) > 5


@pytest.mark.exact
def test_the_urgent_and_others_under_memory_pressure():
    """Some preempt themselves when their turn comes, and decodes behind them sit a step out."""
    plain = EngineOptions("chunked", 30, 4, 8, 64, order="priority", max_partial=8)
    several = replace(plain, threshold=8)
    first_piece = [replace(each, whole_must_fit=False) for each in (plain, several)]
    sat_out = 0
    for options, shift in product((plain, several, *first_piece), range(6)):
        jobs = [Job(0.0004 * k, 8 + k, 50 + 3 * k, (k + shift) % 3) for k in range(12)]
        engine = assert_exact(Case(options, tuple(jobs)), AWKWARD)
        sat_out += sum(gaps(outcome, engine.steps) for outcome in engine.outcomes)
    assert sat_out > 3


@pytest.mark.exact
def test_nobody_behind_one_that_preempts_itself_sits_out_where_the_pass_goes_on():
    options = EngineOptions("chunked", 30, 4, 8, 64, order="priority", pass_goes_on=True)
    for shift in range(3):
        jobs = [Job(0.0004 * k, 8 + k, 50 + 3 * k, (k + shift) % 3) for k in range(12)]
        assert_exact(Case(options, tuple(jobs)), AWKWARD)


def test_who_begins_again_in_blocks_that_another_holds_needs_none_that_is_free():
    """Preempted for the last free block, it comes back with a piece that takes none."""
    drafting = SpeculativeConfig(method="mtp", num_speculative_tokens=6, acceptance_rate=0.0)
    options = EngineOptions(
        "chunked", 152, 1, 16, 112, threshold=1, whole_must_fit=False, caching=True
    )
    options = replace(options, drafting=drafting, pipeline_parallel_size=2)
    jobs = (
        Job(0.0, 2, 63, content=((0, 2),)),
        Job(0.0, 1, 1, content=((0, 1),)),
        Job(0.0, 1, 27, content=((0, 2),)),
    )
    assert_exact(Case(options, jobs), AWKWARD)


@pytest.mark.exact
def test_who_waits_needs_less_when_a_copy_is_evicted_that_nobody_holds():
    """The last one gave way, and its blocks are the first copy of what the first one decodes.

    When a decode takes them, it finds the other copy, which takes no free block, and fits.
    """
    options = EngineOptions(
        "mixed",
        17,
        16,
        15,
        None,
        watermark=0.1,
        caching=True,
        uncached_first=True,
        async_scheduling=True,
    )
    jobs = (
        Job(0.0, 1, 36, content=((4, 57),)),
        Job(0.0, 15, 36),
        Job(0.0, 32, 33),
        Job(0.0, 31, 36),
        Job(0.0, 33, 33, content=((4, 41),)),
    )
    engine = assert_exact(Case(options, jobs), DYADIC)
    last_prompt = engine.steps[-1].batch
    assert last_prompt.num_decodes == 3
    assert last_prompt.chunks == ((33, 32),)


@pytest.mark.exact
def test_who_passes_in_a_step_for_decodes_stands_still_in_the_next_one():
    """A prompt whose blocks were loaded is admitted in a held step, for one piece of several."""
    options = EngineOptions(
        "chunked",
        23,
        3,
        13,
        13,
        threshold=1,
        prefill_schedule_interval=3,
        local_cadence=True,
        caching=True,
        async_scheduling=True,
        tiers=(Tier(52, 0.0, 2.0**-9),),
    )
    jobs = (Job(0.0, 26, 27), Job(0.0, 18, 5), Job(0.0, 2, 3))
    for predictor in (AWKWARD, DYADIC):
        engine = assert_exact(Case(options, jobs), predictor)
    assert any(outcome.num_loaded_blocks for outcome in engine.outcomes)


@pytest.mark.exact
def test_prompts_that_begin_alike_are_planned_step_by_step_whoever_waits():
    """Two enter the same blocks in turn, while one without content waits to be admitted."""
    options = EngineOptions("chunked", 83, 2, 5, 109, threshold=9, max_partial=4, caching=True)
    alike = ((0, 160),)
    jobs = (
        Job(0.0, 28, 1),
        Job(0.0, 28, 6),
        Job(0.0, 66, 2, content=alike),
        Job(0.0, 79, 1, content=alike),
        Job(0.0, 10, 1),
    )
    engine = assert_exact(Case(options, jobs), AWKWARD)
    assert engine.outcomes[3].preempted_at


@pytest.mark.exact
def test_who_outgrows_the_pool_leaves_what_plan_knows():
    """It gives way to nobody, but its last block was filled by a step that its plan did not see."""
    tiers = (Tier(2, 0.0, 1e-3 / 3),)
    options = EngineOptions("chunked", 2, 8, 9, 10, caching=True, tiers=tiers)
    options = replace(options, async_scheduling=True)
    engine = assert_exact(Case(options, (Job(0.0, 1, 17), Job(0.0, 8, 2))), AWKWARD)
    assert [outcome.status for outcome in engine.outcomes] == ["rejected", "finished"]
    assert engine.outcomes[1].num_loaded_blocks == 1


@pytest.mark.exact
def test_who_is_preempted_ahead_has_left_the_blocks_behind_its_window():
    """The plan does not know its newest token, but its window has moved on with it."""
    options = EngineOptions(
        "mixed", 18, 1, 16, 44, windows=Windows(2, 2, 1), caching=True, async_scheduling=True
    )
    engine = assert_exact(Case(options, (Job(0.0, 1, 5), Job(0.0, 1, 4))), AWKWARD)
    assert engine.outcomes[1].preempted_at


@pytest.mark.exact
def test_free_blocks_that_no_step_filled_are_used_first():
    options = EngineOptions("chunked", 7, 2, 8, 64, caching=True, uncached_first=True)
    one, other = ((0, 160),), ((2, 160),)
    jobs = (Job(0.0, 3, 6, content=one), Job(0.0, 2, 4, content=one), Job(0.0, 7, 2, content=other))
    engine = assert_exact(Case(options, jobs), AWKWARD)
    in_turn = Case(replace(options, uncached_first=False), jobs).stepwise(AWKWARD)
    assert engine.now != in_turn.now


@pytest.mark.exact
def test_who_was_alone_gets_small_pieces_when_another_comes_that_has_no_seat():
    options = EngineOptions(
        "chunked", 100, 4, 1, 10, threshold=3, threshold_spares_one=True, max_partial=4
    )
    engine = assert_exact(Case(options, (Job(0.0, 60, 2), Job(0.0005, 6, 2))), AWKWARD)
    pieces = [num_new for step in engine.steps for num_new, _ in step.batch.chunks]
    assert pieces[:4] == [10, 10, 3, 3]


@pytest.mark.exact
def test_a_block_of_an_answer_is_found_in_the_step_that_fills_it():
    """Who is admitted in that step computes only its last token."""
    options = EngineOptions("chunked", 20, 4, 16, 86, caching=True)
    content = ((0, 160),)
    jobs = (Job(0.0, 1, 12, content=content), Job(0.004, 13, 1, content=content))
    engine = assert_exact(Case(options, jobs), AWKWARD)
    assert engine.steps[-1].batch.context_sum == 11
    assert engine.outcomes[1].num_cached_tokens == 12


def test_a_load_that_the_last_request_gives_up_does_not_end():
    """The simulation is over before the blocks are there."""
    tiers = (Tier(73, 2.0**-9, 2.0**-9, writes_back=True),)
    options = EngineOptions("chunked", 30, 4, 7, 74, caching=True, tiers=tiers)
    content = ((5, 28),)
    jobs = (
        Job(0.0, 1, 28, content=content),
        Job(0.0, 62, 52),
        Job(0.25, 17, 1, content=content, ttft_timeout=2.0**-8),
    )
    engine = assert_exact(Case(options, jobs), AWKWARD)
    assert engine.outcomes[2].status == "timed_out"
    assert not engine.outcomes[2].num_loaded_blocks


def gaps(outcome: Outcome, steps: list[Step]) -> int:
    """Return how often an answer stood still for a single step in which others computed."""
    ends = [step.end for step in steps]
    places = [ends.index(time) for time in outcome.token_times]
    return sum(
        later - earlier == 2 and not any(ends[earlier] <= time <= ends[later] for time in lost)
        for earlier, later in pairwise(places)
        for lost in [outcome.preempted_at]
    )


@pytest.mark.parametrize("groups", [(0, 1), (1, 1), (1, 6)])
@pytest.mark.parametrize("policy", POLICIES)
def test_windows_under_memory_pressure(policy, groups):
    """Long answers cross their windows in the middle of what would be one run."""
    windows = Windows(100, *groups)
    options = EngineOptions(policy, 80 * sum(groups), 4, 8, 512, windows=windows)
    jobs = tuple(Job(0.001 * k, 8 + 30 * k, 150 + 7 * k) for k in range(8))
    for predictor in (AWKWARD, windowed_roofline()):
        engine = assert_exact(Case(options, jobs), predictor)
        assert any(step.batch.window_sum < step.batch.context_sum for step in decoding(engine))
    preempted = [outcome for outcome in engine.outcomes if outcome.preempted_at]
    assert preempted or not groups[0]


@pytest.mark.parametrize("groups", [(0, 1), (1, 1), (1, 6)])
@pytest.mark.parametrize("policy", POLICIES)
def test_drafts_of_models_with_windows_under_memory_pressure(policy, groups):
    """Answers that outgrow their windows, and paths longer than what the clock looks ahead."""
    windows, num_blocks = Windows(100, *groups), 290 * groups[0] + 40 * groups[1]
    options = EngineOptions(policy, num_blocks, 4, 8, 512, windows=windows, drafting=DRAFTS)
    jobs = [Job(0.001 * k, 8 + 30 * k, 150 + 7 * k) for k in range(8)]
    case = Case(options, (*jobs, Job(0.5, 5, 900), Job(0.6, 12, 1_100)))
    engine = assert_exact(case, AWKWARD)
    assert any(step.batch.window_sum < step.batch.context_sum for step in decoding(engine))
    preempted = [outcome for outcome in engine.outcomes if outcome.preempted_at]
    assert preempted or not groups[0]
    mtp = replace(DRAFTS, method="mtp")
    assert_exact(replace(case, options=replace(options, drafting=mtp)), windowed_roofline())


def decoding(engine: Reference) -> list[Step]:
    return [step for step in engine.steps if step.batch.num_decodes]


@pytest.mark.parametrize("policy", POLICIES)
def test_one_request_that_outgrows_the_pool_is_rejected_on_the_way(policy):
    options = EngineOptions(policy, 10, 4, 8, 64)
    engine = assert_exact(Case(options, (Job(0.0, 30, 50), Job(0.0, 4, 4))), AWKWARD)
    assert [outcome.status for outcome in engine.outcomes] == ["rejected", "finished"]
    assert len(engine.outcomes[0].token_times) == 10 * 4 - 30 + 1


# --- what the tables say of requests and memory -------------------------------------------------

REJECTED_ON_THE_WAY = Case(
    EngineOptions("continuous", 10, 4, 8, 35), (Job(0.0, 30, 50), Job(0.0, 41, 4), Job(0.0, 4, 4))
)


@pytest.mark.parametrize("policy", POLICIES)
def test_peak_memory_is_that_of_any_step(policy):
    case = Case(EngineOptions(policy, 1_000, 4, 8, 64), (Job(0.0, 4, 3_000), Job(0.0, 9, 50)))
    peak = max(step.num_peak_blocks for step in case.stepwise(AWKWARD).steps)
    assert case.simulate(AWKWARD).clients["peak_used_blocks"].item() == peak


def test_request_rejected_on_way_counts_tokens_it_got():
    requests = REJECTED_ON_THE_WAY.simulate(AWKWARD).requests
    assert requests["num_output_tokens"].tolist() == [
        len(outcome.token_times) for outcome in REJECTED_ON_THE_WAY.stepwise(AWKWARD).outcomes
    ]


def test_a_request_rejected_on_the_way_is_told_that_memory_is_short():
    reasons = REJECTED_ON_THE_WAY.simulate(AWKWARD).requests["reason"]
    assert "KV cache" in reasons[0]
    assert "max_num_batched_tokens" in reasons[1]


def test_stages_that_were_not_served_have_no_row():
    stages = REJECTED_ON_THE_WAY.simulate(AWKWARD).stages
    assert set(stages["request_id"]) == {0, 2}
    assert stages["started_at"].notna().all()


# --- the cut of runs does not show ------------------------------------------------------------


@pytest.mark.exact
@examples(40)
@given(case=cases(), data=st.data())
def test_the_length_of_runs_changes_nothing(case, data):
    case = with_arrivals_on_boundaries(data, case, AWKWARD)
    assert_rows_do_not_show(lambda: case.simulate(AWKWARD))


# --- what routers see -------------------------------------------------------------------------


@dataclass
class SpyRouter:
    """Notes the counts of the only client at every arrival."""

    seen: list[tuple[int, int, int]] = field(default_factory=list)

    def choose(self, request: Request, stage: Stage, candidates: Sequence[ClientView]) -> int:
        view = candidates[0]
        self.seen.append((view.num_waiting, view.num_running, view.num_outstanding))
        return view.client_id


def is_inside(outcome: Outcome, now: float) -> bool:
    """Tell whether a job is still there for an arrival.

    Steps end before an arrival; who gives up between them, or is dropped by a plan, does so
    after it.
    """
    given_up = outcome.status != "finished" and outcome.left_at == outcome.finished_at
    at_arrival = isnan(outcome.started_at) and outcome.status == "rejected"
    return outcome.left_at > now or (given_up and not at_arrival and outcome.left_at == now)


@given(case=cases(max_jobs=6), predictor=st.sampled_from([AWKWARD, DYADIC]), data=st.data())
def test_counts_in_view_are_exact_at_any_time(case, predictor, data):
    """At equal times steps end before an arrival looks, and plans are made after it."""
    case = with_arrivals_on_boundaries(data, case, predictor)
    router, client = SpyRouter(), case.options.client(predictor)
    Simulation(clients=[client], workload=workload(case.jobs), router=router).run()
    outcomes = case.stepwise(predictor).outcomes
    assert len(router.seen) == len(case.jobs)
    for position, (num_waiting, num_running, num_outstanding) in enumerate(router.seen):
        now = case.jobs[position].arrival_time
        inside = [outcome for outcome in outcomes[:position] if is_inside(outcome, now)]
        assert num_outstanding == len(inside) == num_waiting + num_running
        if not any(outcome.preempted_at for outcome in inside):
            assert num_running == sum(outcome.started_at < now for outcome in inside)


@pytest.mark.exact
def test_a_step_of_prompts_leaves_no_token_of_drafts_unknown():
    """An answer whose drafts came two steps ago gives way: all three blocks that it filled stay."""
    text = ((0, 1),)
    options = EngineOptions(
        "continuous",
        num_blocks=7,
        block_size=1,
        max_num_seqs=3,
        max_num_batched_tokens=None,
        order="priority",
        caching=True,
        async_scheduling=True,
        drafting=SpeculativeConfig(method="ngram", num_speculative_tokens=1, acceptance_rate=0.9),
    )
    lengths = [(1, text), (1, text), (1, text), (1, ()), (4, ()), (1, text), (2, text)]
    jobs = tuple(Job(0.0, 1, answer, content=content) for answer, content in lengths)
    outcomes = assert_exact(Case(options, jobs), AWKWARD).outcomes
    assert outcomes[4].preempted_at
