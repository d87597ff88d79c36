"""Each router's rule on made-up views; and the indices that make it cheap."""

from dataclasses import replace
from math import inf
from statistics import median_low

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim import ChunkedScheduler, LlmClient, SequentialClient, Simulation, Workload
from mist_sim.clients.roster import LiveCandidates, LoadIndex, PrefixHolders, Roster, bits_of
from mist_sim.core.recorder import Recorder
from mist_sim.core.request import Request
from mist_sim.core.views import ClientState
from mist_sim.core.visit import HeldKv
from mist_sim.environment import Environment
from mist_sim.rng import Streams
from mist_sim.routers import (
    HeavyLightRouter,
    LeastOutstandingRouter,
    LoadRouter,
    PlacementAwareRouter,
    PowerOfTwoRouter,
    PrefixAffinityRouter,
    SessionAffinityRouter,
)
from mist_sim.routers.load import RunningMedian
from mist_sim.stages import Postprocess, completion
from mist_sim.testing import Candidates, FakeView
from tests.reference.engines import llm_engine
from tests.reference.predictors import ConstantPredictor


def chosen(
    router,
    *views: FakeView,
    num_prompt_tokens: int = 100,
    session_id: int | None = None,
    kv: HeldKv | None = None,
):
    content = ((1, num_prompt_tokens),)
    stages = completion(num_prompt_tokens, 2)
    known = {"session_id": session_id, "content": content, "kv": kv}
    request = Request(0, 0.0, stages, num_prompt_tokens, 2, **known)
    return router.choose(request, stages[0], Candidates(views))


# --- rules ------------------------------------------------------------------------------------


def test_least_outstanding_takes_the_first_of_equals():
    views = FakeView(3, 2, 1), FakeView(5, 0, 2), FakeView(8, 1, 1)
    assert chosen(LeastOutstandingRouter(), *views) == 5


def test_prefix_affinity_takes_longest_prefix_then_least_busy():
    router = PrefixAffinityRouter()
    assert chosen(router, FakeView(0), FakeView(1, 9, num_cached=48)) == 1
    assert chosen(router, FakeView(0, num_cached=48), FakeView(1, 9, num_cached=64)) == 1
    assert chosen(router, FakeView(0, 5, num_cached=64), FakeView(1, 4, num_cached=64)) == 1
    assert chosen(router, FakeView(0, 4, num_cached=64), FakeView(1, 4, num_cached=64)) == 0


def test_prefix_affinity_goes_by_load_below_the_threshold():
    views = FakeView(0), FakeView(1, 9, num_cached=29)
    assert chosen(PrefixAffinityRouter(), *views) == 0
    assert chosen(PrefixAffinityRouter(cache_threshold=0.25), *views) == 1
    views = FakeView(0), FakeView(1, 9, num_cached=30)
    assert chosen(PrefixAffinityRouter(), *views) == 1


@pytest.mark.parametrize(
    ("outstanding", "least", "stays"),
    [(64, 0, True), (65, 0, False), (300, 200, True), (301, 200, False), (160, 100, True)],
)
def test_a_candidate_is_too_busy_above_both_thresholds(outstanding, least, stays):
    views = FakeView(0, least), FakeView(1, outstanding, num_cached=90)
    assert (chosen(PrefixAffinityRouter(), *views) == 1) is stays


def test_one_busy_client_keeps_nobody_from_the_caches_of_others():
    views = FakeView(0), FakeView(1, 500, num_cached=99), FakeView(2, 3, num_cached=50)
    assert chosen(PrefixAffinityRouter(), *views) == 2


def test_a_session_stays_unless_its_client_is_too_busy_or_gone():
    router = SessionAffinityRouter(balance_abs_threshold=2)
    router.seed(Streams(0).generator("router"))
    assert chosen(router, FakeView(0, 1), FakeView(1), session_id=7) == 1
    assert chosen(router, FakeView(0), FakeView(1, 2), session_id=7) == 1
    assert chosen(router, FakeView(0), FakeView(1, 2)) == 0  # no session
    assert chosen(router, FakeView(0), FakeView(1, 3), session_id=7) == 0
    assert chosen(router, FakeView(0, 1), FakeView(1), session_id=7) == 0  # its home by now
    assert chosen(router, FakeView(1, 1), FakeView(2), session_id=7) == 2


def test_the_session_idle_for_longest_is_forgotten_first():
    router = SessionAffinityRouter(max_sessions=2)
    for session_id in (1, 2, 1, 3):  # forgets 2
        assert chosen(router, FakeView(0), FakeView(1, 5), session_id=session_id) == 0
    assert chosen(router, FakeView(0, 6), FakeView(1, 5), session_id=1) == 0
    assert chosen(router, FakeView(0, 6), FakeView(1, 5), session_id=2) == 1


class Draws:
    """A stream that gives what a test says."""

    def __init__(self, *numbers: float) -> None:
        self._numbers = iter(numbers)

    def random(self) -> float:
        return next(self._numbers)


@pytest.mark.parametrize(
    ("draws", "loads", "expected"),
    [
        ((0.0, 0.0), (2, 1, 0), 1),  # the first and, of the others, the first
        ((0.5, 0.3), (1, 1, 0), 1),  # the second and the first: of equals, as drawn
        ((0.9, 0.0), (2, 1, 5), 0),  # the third and the first
        ((0.9, 0.9), (2, 1, 5), 1),
    ],
)
def test_power_of_two_compares_two_different_ones(draws, loads, expected):
    router = PowerOfTwoRouter()
    router.seed(Draws(*draws))
    assert chosen(router, *(FakeView(k, load) for k, load in enumerate(loads))) == expected


def test_power_of_two_takes_the_only_one():
    router = PowerOfTwoRouter()
    router.seed(Draws(0.7))
    assert chosen(router, FakeView(4)) == 4


def test_load_counts_work_and_not_requests():
    many = FakeView(0, 1, 9, num_prompt_tokens=500, num_remaining_tokens=70.0)
    long = FakeView(1, 0, 1, num_prompt_tokens=900, num_remaining_tokens=90.0)
    assert chosen(LeastOutstandingRouter(), many, long) == 1
    assert chosen(LoadRouter(), many, long) == 0
    assert chosen(LoadRouter(by="tokens_remaining"), many, long) == 0


def test_kv_load_is_the_share_of_the_memory_that_there_is():
    """10 + 8 blocks of 100 against 30 of 400; what waits will hold blocks as well."""
    small = FakeView(0, num_waiting_tokens=128, num_kv_blocks=10, num_gpu_blocks=100, block_size=16)
    large = FakeView(1, num_kv_blocks=30, num_gpu_blocks=400, block_size=16)
    assert chosen(LoadRouter(by="kv_cache"), small, large) == 1
    small = FakeView(0, num_kv_blocks=7, num_gpu_blocks=100, block_size=16)
    assert chosen(LoadRouter(by="kv_cache"), small, large) == 0


def test_equal_work_goes_where_fewer_requests_are():
    for by in ("kv_cache", "tokens_remaining"):
        assert chosen(LoadRouter(by=by), FakeView(0, 2), FakeView(1, 1), FakeView(2, 1)) == 1


@pytest.mark.parametrize(
    ("heavy_share", "num_heavy"), [(0.01, 1), (0.25, 1), (0.5, 2), (0.7, 3), (0.99, 3)]
)
def test_heavy_requests_have_the_last_candidates(heavy_share, num_heavy):
    router = HeavyLightRouter(threshold=100.0, heavy_share=heavy_share)
    views = [FakeView(number, num_prompt_tokens=9 - number) for number in range(4)]
    assert chosen(router, *views, num_prompt_tokens=101) == 3  # the least of its part
    assert chosen(router, *views, num_prompt_tokens=100) == 3 - num_heavy
    views = [FakeView(number, num_prompt_tokens=number) for number in range(4)]
    assert chosen(router, *views, num_prompt_tokens=101) == 4 - num_heavy
    assert chosen(router, FakeView(7), num_prompt_tokens=101) == 7


def test_the_threshold_is_the_median_of_prompts_seen():
    router = HeavyLightRouter()
    router.seed(Streams(0).generator("router"))
    views = FakeView(0), FakeView(1)
    prompts = [50, 60, 55, 54, 10, 56]  # medians: 50, 50, 55, 54, 54, 54
    routed = [chosen(router, *views, num_prompt_tokens=prompt) for prompt in prompts]
    assert routed == [0, 1, 0, 0, 0, 1]


def test_answers_weigh_what_is_expected_of_them():
    router = HeavyLightRouter(by="tokens_remaining", threshold=80.0)
    for mean, part in ((80.0, 0), (81.0, 1)):
        views = FakeView(0, mean_answer=mean), FakeView(1, mean_answer=mean)
        assert chosen(router, *views, num_prompt_tokens=5000) == part


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60))
def test_a_running_median_is_the_lower_median(values):
    median = RunningMedian()
    for number, value in enumerate(values, 1):
        median.add(value)
        assert median.value == median_low(values[:number])


def held() -> HeldKv:
    entries = {"num_tokens": 90, "num_prompt_tokens": 89, "num_output_tokens": 1}
    return HeldKv("p", lambda: None, **entries, last_token_at=0.0)


def test_placement_aware_takes_the_nearest_then_least_busy():
    router = PlacementAwareRouter(balance_abs_threshold=3)
    near = [FakeView(0, seconds_away=2.0), FakeView(1, 3, seconds_away=1.0)]
    near.append(FakeView(2, 2, seconds_away=1.0))
    assert chosen(router, *near, kv=held()) == 2
    assert chosen(router, *near) == 0  # brings nothing
    busy = [FakeView(0, seconds_away=2.0), FakeView(1, 4, seconds_away=1.0)]
    assert chosen(router, *busy, FakeView(2, 1, seconds_away=2.0), kv=held()) == 0


@pytest.mark.parametrize(
    ("router", "options"),
    [
        (PrefixAffinityRouter, {"cache_threshold": 1.5}),
        (PrefixAffinityRouter, {"balance_abs_threshold": -1}),
        (SessionAffinityRouter, {"balance_rel_threshold": 0.5}),
        (SessionAffinityRouter, {"max_sessions": 0}),
        (LoadRouter, {"by": "output_length"}),
        (HeavyLightRouter, {"by": "requests"}),
        (HeavyLightRouter, {"threshold": 0.0}),
        (HeavyLightRouter, {"threshold": inf}),
        (HeavyLightRouter, {"heavy_share": 0.0}),
        (HeavyLightRouter, {"heavy_share": 1.0}),
        (PlacementAwareRouter, {"balance_abs_threshold": -1}),
    ],
)
def test_parameters_out_of_range_are_refused(router, options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} (must be|has no)"):
        router(**options)


# --- indices ----------------------------------------------------------------------------------


@given(data=st.data(), numbers=st.sets(st.integers(0, 300), min_size=1, max_size=80))
def test_an_index_orders_clients_as_sorting_does(data, numbers):
    states = [ClientState(number, str(number)) for number in sorted(numbers)]
    index = LoadIndex(states, "num_outstanding")
    for _ in range(data.draw(st.integers(0, 40))):
        state = data.draw(st.sampled_from(states))
        state.outstanding = data.draw(st.integers(0, 6))
        index.note(state)
        assert index.first() is min(states, key=lambda each: each.num_outstanding)
    some = data.draw(st.sets(st.sampled_from(states), min_size=1), label="some")
    most = data.draw(st.integers(0, 6) | st.just(inf))
    expected = [each for each in some if each.num_outstanding <= most]
    expected.sort(key=lambda each: (each.num_outstanding, each.client_id))
    assert list(index.among(bits_of(list(some)), most)) == expected


class Kv:
    """KV memory with several caches, whose content a test sets."""

    block_size = 4

    def watch(self, watcher) -> bool:
        self.watcher = watcher
        return True


def test_holders_are_those_with_any_cache_that_has_blocks():
    holders, one, other = PrefixHolders(4), Kv(), Kv()
    holders.watch(2, one)
    holders.watch(5, other)
    request = Request(0, 0.0, completion(21, 1), 21, 1, content=((1, 8), (2, 2), (3, 20)))
    for content_id in (1, 1, 3):
        one.watcher.enter(content_id)
    other.watcher.enter(1)
    both = 1 << 2 | 1 << 5
    assert holders.levels(request, both) == [(1 << 2, 20), (both, 8)]
    assert holders.levels(request, 1 << 5) == [(1 << 5, 8)]
    one.watcher.leave(1)
    assert holders.levels(request, both) == [(1 << 2, 20), (both, 8)]
    one.watcher.leave(1)
    assert holders.levels(request, both) == [(1 << 5, 8)]
    other.watcher.leave(1)
    assert holders.levels(request, both) == []


def test_longest_prefix_wins_among_holders_of_same_content():
    states = [ClientState(number, str(number)) for number in range(3)]
    request = Request(0, 0.0, completion(41, 1), 41, 1, content=((1, 20), (2, 40)))
    for state, (outstanding, found) in zip(states, [(0, 8), (3, 20), (2, 20)], strict=True):
        state.outstanding = outstanding
        state.kv = Kv()
        state.kv.prefix_tokens = lambda request, found=found: found
    candidates = LiveCandidates(states, {})
    assert candidates.longest_prefix(request, 9) == (None, 0)
    for state in states:
        state.kv.watcher.enter(1)
    assert candidates.longest_prefix(request, 9) == (states[2], 20)
    assert candidates.longest_prefix(request, 1) == (states[0], 8)


# --- clients that come and go -----------------------------------------------------------------


def engine(name: str, **options) -> LlmClient:
    return llm_engine(
        name,
        scheduler=ChunkedScheduler(max_num_batched_tokens=2048),
        predictor=ConstantPredictor(1.0),
        num_gpu_blocks=1000,
        **options,
    )


def test_candidates_follow_clients_that_leave_and_join():
    roster, recorder, env = Roster(), Recorder(), Environment()

    def join(name):
        client = engine(name)
        client.start(env, roster.next_id(), recorder)
        roster.join(client)
        return client

    first, second = join("a"), join("b")
    before = roster.candidates("prefill")
    assert roster.candidates("decode") is before  # one index for both
    assert before.least() is first.view
    roster.leave(first.client_id)
    assert list(roster.candidates("prefill")) == [second.view]
    assert roster.candidates("prefill").get(first.client_id) is None
    assert first.view.watchers == ()
    third = join("c")
    candidates = roster.candidates("prefill")
    for state, count in ((second.view, "num_waiting"), (third.view, "num_running")):
        assert candidates.least() is second.view or state is third.view
        state.outstanding += 1
        setattr(state.phases, count, 1)
        for watcher in state.watchers:
            watcher(state)
    assert candidates.least("num_waiting") is third.view
    assert candidates.least("num_running") is second.view
    assert candidates.numbers("num_outstanding").tolist() == [1, 1]
    assert not list(roster.candidates("nothing"))


def test_next_stage_is_routed_ahead_with_same_candidates():
    """A client that asks ahead has the router choose before its own visit begins."""
    asked = []

    class Notes:
        def choose(self, request, stage, candidates):
            asked.append((stage.kind, [view.num_outstanding for view in candidates]))
            return candidates.least().client_id

    def run(asks_ahead):
        asked.clear()
        llm = engine("llm")
        llm.traits = replace(llm.traits, asks_ahead=asks_ahead)
        after = [
            SequentialClient(name, serves={"postprocess"}, service_time=lambda stage: 2.0)
            for name in "xy"
        ]
        workload = Workload.from_lists(
            [10] * 2, [3] * 2, [0.0, 0.5], pipeline=lambda row: (*completion(10, 3), Postprocess())
        )
        result = Simulation(clients=[llm, *after], workload=workload, router=Notes()).run()
        stages = result.stages
        return list(stages[stages.stage == "postprocess"].client)

    assert run(asks_ahead=False) == ["x", "y"]  # the first one is there when the second comes
    assert [kind for kind, _ in asked] == ["prefill"] * 2 + ["postprocess"] * 2
    assert asked[3] == ("postprocess", [1, 0])
    assert run(asks_ahead=True) == ["x", "x"]  # nobody was there when it was chosen
    assert [kind for kind, _ in asked] == ["prefill", "postprocess"] * 2
    assert asked[1] == asked[3] == ("postprocess", [0, 0])
