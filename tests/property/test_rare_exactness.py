"""Rare cases that random search found, in which the engine and single steps once differed."""

from dataclasses import replace

import pytest

from mist_sim.models.speculative import SpeculativeConfig
from tests.reference.comparison import Case, EngineOptions, assert_exact
from tests.reference.host import Host
from tests.reference.memory import Tier
from tests.reference.predictors import AWKWARD, DYADIC
from tests.reference.state_memory import Kept
from tests.reference.stepwise import Job, Windows

pytestmark = pytest.mark.exact


@pytest.mark.parametrize("in_step", [False, True])
def test_the_only_one_who_waits_and_was_loaded_needs_blocks_for_a_piece_alone(in_step):
    """Its blocks are there; its prompt does not fit, but its first piece does."""
    tiers = (Tier(158, 0.0, 2.0**-9, in_step=in_step),)
    options = EngineOptions(
        "chunked", 30, 4, 2, 2, threshold=1, max_partial=64, whole_must_fit=False, caching=True
    )
    jobs = (Job(0.0, 62, 1, content=((0, 156),)), Job(0.0, 81, 1, content=((0, 25),)))
    for predictor in (AWKWARD, DYADIC):
        assert_exact(Case(replace(options, tiers=tiers), jobs), predictor)


def test_a_free_block_is_not_written_back_while_a_decode_has_filled_a_copy_of_it():
    """The tier keeps the first block of a preempted prompt instead, which is loaded."""
    tiers = (Tier(1, 2.0**-9, 1e-3 / 3, writes_back=True),)
    options = EngineOptions(
        "chunked", 45, 4, 4, 10, threshold=4, max_partial=4, caching=True, tiers=tiers
    )
    time = 0.03040704472687828
    jobs = (
        Job(0.0, 1, 32),
        Job(time, 76, 1, content=((0, 100),)),
        Job(time, 68, 10, content=((0, 215),)),
        Job(time, 81, 1),
    )
    engine = assert_exact(Case(options, jobs), DYADIC)
    assert engine.outcomes[3].preempted_at
    assert engine.outcomes[3].num_loaded_blocks == 1


def test_blocks_of_who_has_ended_are_found_in_the_step_that_was_planned_for_it():
    """The plan ahead did not know its end, and caches what it does know."""
    drafting = SpeculativeConfig(method="ngram", num_speculative_tokens=7, acceptance_rate=0.5)
    options = EngineOptions(
        "chunked",
        25,
        2,
        2,
        16,
        prefill_schedule_interval=4,
        local_cadence=True,
        caching=True,
        drafting=drafting,
        async_scheduling=True,
    )
    jobs = (Job(0.0, 29, 5, content=((0, 79),)), Job(1e-6, 33, 1, content=((0, 38),)))
    engine = assert_exact(Case(options, jobs), AWKWARD)
    assert engine.outcomes[1].num_cached_tokens == 32


def test_a_copy_of_who_sat_out_comes_behind_that_of_who_goes_on():
    """Both filled a block when the last plan had no blocks for them; each has cached it since."""
    options = EngineOptions(
        "chunked",
        8,
        27,
        4,
        81,
        defers_frees=True,
        spares_in_flight=True,
        caching=True,
        async_scheduling=True,
        tiers=(Tier(4, 2.0**-14, 2.0**-14, writes_back=True, in_step=True),),
    )
    jobs = (
        Job(0.0, 26, 30),
        Job(0.0, 1, 28),
        Job(0.0, 27, 84, content=((0, 70),)),
        Job(0.0, 27, 83, content=((0, 234),)),
    )
    engine = assert_exact(Case(options, jobs), AWKWARD)
    assert engine.outcomes[3].preempted_at


WRITES_AHEAD = SpeculativeConfig(
    method="mtp", num_speculative_tokens=4, acceptance_rate=[1.13e-05, 0.5, 0.9, 0.5]
)


def waiting_for_each_other(first: int, second: int, last: int) -> tuple[Job, ...]:
    """Return jobs of which those of one of three replicas have these prompts."""
    one = Job(0.25, 1, 1)
    others = one, one
    jobs = replace(one, num_prompt_tokens=first, num_output_tokens=3), *others
    jobs += replace(one, num_prompt_tokens=second, num_output_tokens=12), *others, one, *others
    return *jobs, replace(one, num_prompt_tokens=last, num_output_tokens=last - 4)


@pytest.mark.parametrize(
    ("num_blocks", "budget", "admits_lookahead", "prompts"),
    [(94, 38, False, (11, 14, 39)), (102, 29, True, (17, 18, 40))],
)
def test_who_was_loaded_gives_memory_up_for_who_goes_before_it(
    num_blocks, budget, admits_lookahead, prompts
):
    """The first one waits in the queue, or lacks memory only for what is written ahead."""
    options = EngineOptions(
        "chunked",
        num_blocks,
        1,
        4,
        budget,
        order="priority",
        loaded_first=admits_lookahead,
        admits_lookahead=admits_lookahead,
        data_parallel_size=3,
        caching=True,
        drafting=WRITES_AHEAD,
        async_scheduling=True,
        tiers=(Tier(105, 0.0, 2.0**-9),),
    )
    engine = assert_exact(Case(options, waiting_for_each_other(*prompts)), AWKWARD)
    assert {outcome.status for outcome in engine.outcomes} == {"finished"}


def test_a_load_begins_when_blocks_of_who_gave_up_are_free():
    """They are free with the end of the step that was in flight, though no other one leaves."""
    options = EngineOptions(
        "chunked",
        6,
        14,
        3,
        31,
        order="priority",
        defers_frees=True,
        caching=True,
        async_scheduling=True,
        tiers=(Tier(14, 0.0, 2.0**-14),),
        host=Host(2.0**-6, 0.0, 2.0**-6),
    )
    jobs = (
        Job(0.3359375, 1, 16, priority=1),
        Job(0.33984375, 30, 23),
        Job(0.3515625, 1, 20, timeout=0.35546875),
    )
    engine = assert_exact(Case(options, jobs), AWKWARD)
    assert engine.outcomes[0].num_loaded_blocks == 1


def test_what_is_written_ahead_counts_as_blocks_of_the_rest_of_a_prompt():
    """A load begins as soon as memory is left for what prompts lack, and not a step later."""
    drafting = SpeculativeConfig(
        method="mtp", num_speculative_tokens=6, acceptance_rate=0.8480025700540226
    )
    options = EngineOptions(
        "chunked",
        25,
        5,
        4,
        28,
        max_model_len=57,
        threshold=1,
        max_partial=2,
        reserves_prefills=True,
        caching=True,
        drafting=drafting,
        async_scheduling=True,
        tiers=(Tier(17, 2.0**-9, 2.0**-9, writes_back=True),),
    )
    late = 0.17588305146872132
    jobs = (
        Job(0.0, 1, 35, content=((0, 105),)),
        Job(0.0, 1, 1),
        Job(late, 37, 1),
        Job(late, 48, 6, content=((0, 18),)),
        Job(late, 36, 1),
        Job(late, 3, 1),
        Job(late, 36, 1),
        Job(late, 36, 1, content=((0, 56),)),
    )
    engine = assert_exact(Case(options, jobs), AWKWARD)
    assert engine.outcomes[7].num_loaded_blocks


@pytest.mark.parametrize("preempted_first", [False, True])
def test_who_is_preempted_goes_before_those_who_were_loaded_in_one_queue(preempted_first):
    """It does not fit, so that in one queue whose blocks are there waits behind it."""
    tiers = (Tier(40, 2.0**-11, 2.0**-10),)
    options = EngineOptions(
        "chunked",
        10,
        4,
        4,
        47,
        loaded_first=False,
        preempted_first=preempted_first,
        caching=True,
        tiers=tiers,
    )
    one, other = ((0, 60),), ((2, 60),)
    jobs = (
        Job(0.0, 16, 2, content=one),
        Job(0.0001, 14, 14, content=other),
        Job(0.0036, 34, 1, content=other),
        Job(0.0047, 16, 13, content=one),
        Job(0.0087, 25, 6, content=one),
    )
    engine = assert_exact(Case(options, jobs), AWKWARD)
    swapped = Case(replace(options, preempted_first=not preempted_first), jobs)
    assert engine.now != swapped.stepwise(AWKWARD).now


@pytest.mark.parametrize("drains", [False, True])
def test_nobody_passes_who_was_preempted_in_flight_unless_batches_drain(drains):
    options = EngineOptions(
        "chunked",
        10,
        4,
        2,
        12,
        batch_queue=True,
        pipeline_parallel_size=3,
        async_scheduling=True,
        staggers_decodes=True,
        fills_queue=True,
        drains_preempted=drains,
    )
    jobs = (Job(0.0, 15, 12), Job(0.0054, 11, 12), Job(0.009, 4, 4))
    engine = assert_exact(Case(options, jobs), AWKWARD)
    assert engine.outcomes[1].preempted_at
    preempted, later = engine.outcomes[1].preempted_at[0], engine.outcomes[2].started_at
    back = min(time for time in engine.outcomes[1].token_times if time > preempted)
    assert preempted < later
    assert (later < back) == drains


def test_tokens_on_their_way_name_no_block_of_who_is_preempted_under_drafts():
    """A block's name covers the token behind it, which the plan does not know."""
    drafting = SpeculativeConfig(method="mtp", num_speculative_tokens=2, acceptance_rate=0.8)
    options = EngineOptions(
        "chunked",
        8,
        3,
        4,
        40,
        caches_verified=True,
        hashes_ahead=True,
        admits_lookahead=True,
        pads_prompts=True,
        caching=True,
        drafting=drafting,
        async_scheduling=True,
    )
    jobs = (Job(0.0, 2, 6, content=((0, 60),)), Job(0.0, 4, 8, content=((0, 60),)))
    engine = assert_exact(Case(options, jobs), AWKWARD)
    assert any(outcome.preempted_at for outcome in engine.outcomes)


def test_a_load_given_back_goes_behind_the_preempted_one_that_waits_for_its_memory():
    """Before it, it would take the memory again, and the two would take turns until they give up.

    So a mistake here is a request that times out, and no endless run.
    """
    options = EngineOptions(
        "chunked",
        6,
        1,
        3,
        64,
        max_partial=3,
        loaded_first=False,
        preempted_first=True,
        caching=True,
        tiers=(Tier(200, 2.0**-9, 0.0),),
    )
    jobs = (
        Job(0.0, 1, 6, timeout=1.0),
        Job(2.0**-6, 1, 2, timeout=1.0),
        Job(2.0**-6, 4, 3, timeout=1.0),
    )
    engine = assert_exact(Case(options, jobs), DYADIC)
    assert [outcome.status for outcome in engine.outcomes] == ["finished"] * 3
    assert engine.outcomes[2].preempted_at


PREEMPT_EACH_OTHER = (Job(0.0, 1, 5), Job(0.0, 2, 7))
"""Both are computed in pieces of three tokens once they have been preempted."""

DEFERS_FREES = EngineOptions(
    "chunked",
    3,
    4,
    2,
    64,
    threshold=3,
    max_partial=2,
    reserves_prefills=True,
    defers_frees=True,
    caching=True,
    async_scheduling=True,
    tiers=(Tier(200, 0.0, 0.0),),
)


def test_requests_that_preempt_each_other_for_ever_are_refused():
    """The scheduler of vLLM 0.24 preempted both 1,499 times in 3,000 plans of this case."""
    Case(DEFERS_FREES, PREEMPT_EACH_OTHER).assert_refused(AWKWARD)


@pytest.mark.parametrize(
    "change",
    [
        {"defers_frees": False},
        {"spares_in_flight": True},
        {"threshold": None},
        {"num_blocks": 4},
        {"max_num_seqs": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_with_one_thing_changed_they_end(change):
    """Among them what the message of the refusal asks for, and the rule of vLLM 0.33."""
    case = Case(replace(DEFERS_FREES, **change), PREEMPT_EACH_OTHER)
    engine = assert_exact(case, AWKWARD)
    assert {outcome.status for outcome in engine.outcomes} == {"finished"}


def test_who_gives_up_ends_what_would_go_on_for_ever():
    """As in vLLM, where a client's abort leaves its memory to the others."""
    first, second = PREEMPT_EACH_OTHER
    engine = assert_exact(Case(DEFERS_FREES, (first, replace(second, timeout=0.25))), AWKWARD)
    assert [outcome.status for outcome in engine.outcomes] == ["finished", "timed_out"]


@pytest.mark.parametrize(
    ("ranks", "num_tokens", "longest", "num_behind"),
    [
        (2, 5, None, 0),
        (3, 5, None, 1),
        (4, 5, None, 2),
        (4, 2, None, 2),
        (4, 1, None, 0),
        (4, 5, 9, 0),
        (4, 5, 10, 1),
    ],
)
def test_pipelines_plan_steps_behind_the_end_of_answer(ranks, num_tokens, longest, num_behind):
    """0.19 plans no more of an answer once all its tokens but one have come, and they take blocks.

    With 4 ranks 4 batches are in flight: the last token but one comes while the last one and two
    that are discarded are on their way. Nothing is planned behind `max_model_len`.
    """
    options = EngineOptions(
        "chunked",
        *(40, 1, 4, 12),
        batch_queue=True,
        pipeline_parallel_size=ranks,
        async_scheduling=True,
        max_model_len=longest,
    )
    jobs = Job(0.0, 4, num_tokens), Job(1.0, 4, 1)
    engine = assert_exact(Case(options, jobs), AWKWARD)
    steps = range(num_tokens + num_behind)
    assert [step.num_used_blocks for step in engine.steps[:-1]] == [4 + step for step in steps]
    assert len(engine.outcomes[0].token_times) == num_tokens


@pytest.mark.exact
def test_who_waits_may_fit_behind_step_of_decodes():
    """Of three blocks the decode takes the first copy of what it holds, and the next one finds it.

    Then the next one needs one block in place of two, and the plan is not of decodes alone.
    """
    options = EngineOptions(
        "chunked", *(3, 1, 3, 3), caching=True, batch_queue=True, pipeline_parallel_size=2
    )
    short, other = Job(0.0, 1, 1, content=((0, 1),)), Job(0.0, 1, 1, content=((5, 1),))
    pair = Job(0.0, 1, 2, content=((0, 1),)), Job(0.0, 2, 1, content=((0, 2),))
    engine = assert_exact(Case(options, (*[short] * 7, other, *pair, *[short] * 3)), AWKWARD)
    assert any(step.batch.num_decodes and step.batch.chunks for step in engine.steps)


@pytest.mark.exact
def test_who_was_preempted_before_its_last_token_came_may_give_up():
    """0.33 lets it wait for that token, and its sender does not wait so long."""
    options = EngineOptions(
        "chunked",
        *(5, 8, 4, 10),
        pipeline_parallel_size=3,
        async_scheduling=True,
        batch_queue=True,
        fills_queue=True,
        drains_preempted=True,
    )
    one = Job(0.0, 1, 1)
    jobs = one, one, Job(0.0, 7, 2), Job(0.0, 9, 1, timeout=2**-9), one
    engine = assert_exact(Case(options, jobs), AWKWARD)
    assert engine.outcomes[3].gave_way
    assert engine.outcomes[3].status == "timed_out"


def test_plans_that_compute_nothing_leave_a_queue_when_they_are_the_oldest():
    """Before 0.24: so there is room for a decode beside a prompt in two pieces and another."""
    options = EngineOptions(
        "chunked",
        *(40, 4, 4, 12),
        batch_queue=True,
        pipeline_parallel_size=4,
        async_scheduling=True,
    )
    jobs = Job(0.0, 4, 1), Job(0.001, 24, 1), Job(0.0025, 4, 3), Job(1.0, 4, 1)
    engine = assert_exact(Case(options, jobs), AWKWARD)
    second_piece, prompt, decode = engine.steps[2:5]
    assert second_piece.batch.chunks == ((12, 12),)
    assert prompt.batch.chunks == ((4, 0),)
    assert decode.batch.num_decodes == 1
    assert prompt.planned == decode.planned


def chunks_of_pipeline(ranks, num_blocks, *jobs, **options):
    """Return the later pieces of prompts, by batch, of a pipeline that plans ahead, as in 0.19."""
    whole = EngineOptions(
        "chunked",
        *(num_blocks, 2, 2, 12),
        batch_queue=True,
        pipeline_parallel_size=ranks,
        async_scheduling=True,
        **options,
    )
    steps = assert_exact(Case(whole, jobs), AWKWARD).steps
    return [step.batch.chunks for step in steps[1:] if step.batch.chunks]


def test_who_is_preempted_in_flight_comes_back_before_its_token_has_come():
    """Its first piece ends with the tokens that have come, 2 of 3; with 0.33 it waits for all."""
    jobs = Job(0.0, 3, 2), Job(0.0, 1, 3)
    assert chunks_of_pipeline(3, 4, *jobs) == [((2, 0),), ((1, 2),)]
    assert chunks_of_pipeline(3, 4, *jobs, drains_preempted=True) == [((3, 0),)]


def test_who_is_preempted_before_its_last_token_comes_back_in_vain():
    jobs = Job(0.0, 1, 3), Job(0.0, 2, 3), Job(1.0, 2, 1)
    assert chunks_of_pipeline(4, 5, *jobs) == [((4, 0),), ((2, 0),)]
    assert chunks_of_pipeline(4, 5, *jobs, drains_preempted=True) == [((2, 0),)]


def test_who_is_preempted_before_its_last_token_finds_its_own_blocks_again():
    own = ((0, 1),)
    jobs = Job(0.0, 1, 8, content=own), Job(0.0, 1, 1, content=own)
    options = EngineOptions(
        "chunked",
        *(8, 1, 1, 1),
        caching=True,
        batch_queue=True,
        pipeline_parallel_size=3,
        async_scheduling=True,
    )
    in_vain = assert_exact(Case(options, jobs), AWKWARD).steps[-2]
    assert in_vain.batch.chunks == ((1, 6),)


def test_a_pipeline_plans_once_behind_its_last_request_while_steps_are_in_flight():
    """That plan computes nothing and takes a place in the queue: a second batch has to wait."""
    options = EngineOptions(
        "chunked",
        *(40, 4, 4, 12),
        batch_queue=True,
        pipeline_parallel_size=4,
        async_scheduling=True,
    )
    jobs = Job(0.0, 4, 4), Job(0.0085, 4, 4), Job(0.0095, 12, 1)
    first, second = assert_exact(Case(options, jobs), AWKWARD).steps[6:8]
    assert first.batch.chunks == ((4, 0), (8, 0))
    assert second.batch.chunks == ((4, 8),)
    assert first.planned < second.planned


def test_who_is_preempted_while_its_only_token_is_on_its_way_decodes_no_more():
    """No gap between tokens is written for it."""
    options = EngineOptions(
        "chunked",
        *(2, 1, 2, 2),
        caching=True,
        batch_queue=True,
        fills_queue=True,
        pipeline_parallel_size=2,
        async_scheduling=True,
    )
    jobs = [Job(0.0, 1, number, content=((0, 1),)) for number in (1, 1, 2, 1)]
    engine = assert_exact(Case(options, tuple(jobs)), AWKWARD)
    assert engine.outcomes[3].gave_way


def test_drafts_of_who_pauses_in_a_plan_that_computes_nothing_are_counted():
    """It leaves the decodes and joins them again, though it misses no step."""
    kept = Kept(waits=True, shared="always", goes_on=True)
    options = EngineOptions(
        "chunked",
        *(34, 26, 4, 78),
        order="priority",
        windows=Windows(2, 1, 3, 3, kept),
        caching=True,
        drafting=SpeculativeConfig(method="ngram", num_speculative_tokens=1, acceptance_rate=0.0),
        async_scheduling=True,
    )
    jobs = Job(0.0, 1, 23), Job(0.0, 1, 22), Job(1e-9, 9, 43), Job(1e-9, 3, 24)
    engine = assert_exact(Case(options, jobs), DYADIC)
    assert len(engine.outcomes[2].preempted_at) == 4
    assert not engine.outcomes[3].num_sat_out


@pytest.mark.parametrize("length", [1, 2])
def test_who_waits_is_admitted_in_place_of_all_who_miss_a_step(length):
    """The long prompt finds two blocks while others are loaded, and nobody gives way for it."""
    options = EngineOptions(
        "chunked",
        30,
        1,
        4,
        8,
        whole_must_fit=False,
        defers_frees=True,
        spares_in_flight=True,
        caching=True,
        async_scheduling=True,
        tiers=(Tier(200, 2.0**-4, 0.0),),
    )
    jobs = (
        Job(0.0, 12, 1, content=((0, 12),)),
        Job(1.0, 28, 1),
        Job(2.0, 13, 1, content=((0, 13),)),
        Job(2.0, 25, 1),
        Job(2.0, length, 2),
    )
    engine = assert_exact(Case(options, jobs), DYADIC)
    assert engine.outcomes[2].num_loaded_blocks
    batches = [step.batch for step in engine.steps]
    assert [batch.num_decodes for batch in batches if batch.chunks == ((length, 0),)] == [0]
