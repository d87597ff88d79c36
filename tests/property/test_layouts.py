"""A client whose layout changes gives what a plain stepwise client gives: equal bits."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import event, given, reject
from hypothesis import strategies as st

from mist_sim.errors import ScenarioError
from mist_sim.hardware.predictors import Predictor
from mist_sim.metrics import Result
from mist_sim.simulation import Simulation
from tests.effort import examples, features_seen, missing
from tests.property.strategies import alike, cases, copies, fetched, finished, step_ends
from tests.property.test_failures import Lives, assert_nothing_is_lost, lives
from tests.reference.changing import change_at
from tests.reference.cluster import AtGivenTimes, StepwiseCluster, in_turn
from tests.reference.comparison import (
    Case,
    EngineOptions,
    assert_same_drafts,
    assert_same_gaps,
    assert_same_records,
    with_paths,
    workload,
)
from tests.reference.layouts import Change, ChangingClient
from tests.reference.predictors import AWKWARD, DYADIC
from tests.reference.run_lengths import assert_rows_do_not_show
from tests.reference.stepwise import EndlessError, Job


@dataclass(frozen=True)
class ChangingCase:
    """One client and its jobs, and the layouts that it is asked to have."""

    case: Case
    changes: tuple[Change, ...]

    def stepwise(self, predictor: Predictor) -> ChangingClient:
        """Return the reference; a drawn case is left out that never ends, which both refuse."""
        try:
            return self._stepwise(predictor)
        except EndlessError:
            with pytest.raises(ScenarioError, match="none got a token in between"):
                self.simulate(predictor)
            reject()

    def _stepwise(self, predictor: Predictor) -> ChangingClient:
        options, jobs = self.case.options, list(self.case.jobs)
        if options.drafting:
            jobs = with_paths(options.drafting, jobs, 0, range(len(jobs)))
        client = ChangingClient(options, predictor, self.changes)
        StepwiseCluster([client], in_turn()).run(AtGivenTimes(jobs))
        return client

    def simulate(self, predictor: Predictor) -> Result:
        client = self.case.client(predictor)
        for change in reversed(self.changes):
            change_at(client, change.at, change.options.client(predictor).layout, change.seconds)
        return Simulation(clients=[client], workload=workload(self.case.jobs)).run()


@st.composite
def changing(draw: st.DrawFn, predictor: Predictor, base: Any = None) -> ChangingCase:
    """Cases with one to three changes, at ends of steps, within them, and elsewhere."""
    case = draw(base if base is not None else cases(max_jobs=8, longest=100))
    plain: dict[str, Any] = {"tiers": (), "swap": None, "windows": None, "early_rejection": False}
    plain["prefill_schedule_interval"] = draw(st.sampled_from([1, 1, 3]))
    order = draw(st.sampled_from([case.options.order, "priority", "shortest_prompt_first"]))
    options = replace(case.options, order=order, **plain)
    most = options.max_num_seqs
    ranks = st.integers(1, min(4, most))
    changes = []
    others = draw(
        st.lists(st.tuples(ranks, st.integers(1, 3), st.booleans()), min_size=1, max_size=3)
    )
    if max(options.pipeline_parallel_size, *(size for size, *_ in others)) > 1:
        options = replace(options, prefill_schedule_interval=1)
    case = Case(options, case.jobs)
    known = ChangingCase(case, ())
    for size, replicas, lockstep in others:
        whole = options.num_blocks * options.data_parallel_size
        num_blocks = draw(
            st.just(max(size, whole // replicas))
            | st.integers(max(size, whole // (2 * replicas)), 2 * whole + size)
        )
        later = replace(
            options,
            num_blocks=num_blocks,
            max_num_seqs=draw(st.just(most) | st.integers(size, most)),
            pipeline_parallel_size=size,
            data_parallel_size=replicas,
            lockstep=lockstep and replicas > 1,
            async_scheduling=size == 1 and not options.drafting and draw(st.booleans()),
        )
        last = changes[-1].at if changes else 0.0
        ends = sorted({end for end in step_ends(finished(known, predictor)) if end > last})
        if not ends:
            break
        place = draw(st.integers(0, len(ends) - 1))
        before = ends[place - 1] if place else last
        at = draw(st.sampled_from([ends[place], (before + ends[place]) / 2]))
        seconds = draw(st.sampled_from([0.0, 2.0**-9, 2.0**-6, 1e-2 / 3, 0.1]))
        changes.append(Change(at, later, seconds))
        known = ChangingCase(case, tuple(changes))
    return known


def assert_exact(case: ChangingCase, predictor: Predictor) -> ChangingClient:
    """Run a case both ways and compare all records."""
    reference, result = case.stepwise(predictor), case.simulate(predictor)
    assert_same_records(result, reference, 0, range(len(case.case.jobs)))
    assert_same_gaps(result, [reference])
    if drafting := case.case.options.drafting:
        assert_same_drafts(result, reference, drafting.num_speculative_tokens)
    return reference


def features(client: ChangingClient) -> set[str]:
    """What a case exercised."""
    found = set()
    if client.num_carried:
        found.add("carried")
    if client.num_again:
        found.add("computed again")
    return found


@pytest.mark.exact
@examples(150)
@given(data=st.data(), predictor=st.sampled_from([AWKWARD, DYADIC]))
def test_random_changes(data, predictor):
    case = data.draw(changing(predictor))
    for feature in features(assert_exact(case, predictor)):
        event(feature)


@examples(100)
@given(data=st.data(), predictor=st.sampled_from([AWKWARD, DYADIC]))
def test_changes_with_prompts_that_begin_alike(data, predictor):
    assert_exact(data.draw(changing(predictor, alike())), predictor)


@pytest.mark.exact
@examples(150)
@given(data=st.data(), predictor=st.sampled_from([AWKWARD, DYADIC]))
def test_changes_with_copies_of_blocks(data, predictor):
    assert_exact(data.draw(changing(predictor, copies())), predictor)


@st.composite
def crowded(draw: st.DrawFn) -> ChangingCase:
    """All seats are taken and others wait when a layout with fewer of them is asked for."""
    num_seats = draw(st.integers(2, 5))
    lengths = st.tuples(st.integers(1, 20), st.integers(2, 20))
    num_jobs = num_seats + draw(st.integers(1, 4))
    drawn = draw(st.lists(lengths, min_size=num_jobs, max_size=num_jobs))
    jobs = [Job(0.0, *tokens) for tokens in drawn]
    policy = draw(st.sampled_from(["chunked", "continuous", "mixed"]))
    options = EngineOptions(policy, 20 * num_jobs, 4, num_seats, 20 * num_jobs)
    later = replace(options, max_num_seqs=draw(st.integers(1, num_seats - 1)))
    case = Case(options, tuple(jobs))
    at = ChangingCase(case, ()).stepwise(AWKWARD).steps[0].end
    return ChangingCase(case, (Change(at, later, draw(st.sampled_from([0.0, 0.1]))),))


@pytest.mark.exact
@examples(100)
@given(case=crowded())
def test_who_finds_no_seat_goes_before_those_that_wait(case):
    num_fewer = case.case.options.max_num_seqs - case.changes[0].options.max_num_seqs
    assert assert_exact(case, AWKWARD).num_again == num_fewer


HARD = ("carried", "computed again")


@pytest.mark.deep
def test_each_feature_of_changes_is_reached():
    seen = features_seen(changing(DYADIC), lambda case: features(case.stepwise(DYADIC)), HARD)
    assert not missing(seen, HARD), seen


# --- lives of clients with several layouts --------------------------------------------------------


@dataclass(frozen=True)
class ChangingLives:
    """Clients that fail, drain and come back, some with prefill and decode apart, in layouts.

    changes: name of a client, when it is asked, options of the layout, seconds of the transition.
    """

    lives: Lives
    changes: tuple[tuple[str, float, dict[str, Any], float], ...]

    def simulation(self) -> Simulation:
        simulation = self.lives.simulation()
        clients = {client.name: client for client in simulation.clients}
        for name, at, options, seconds in reversed(self.changes):
            of = replace(self.lives.plain, **options).client(AWKWARD)
            change_at(clients[name], at, of.layout, seconds)
        return simulation


@st.composite
def changing_lives(draw: st.DrawFn) -> ChangingLives:
    case = draw(lives(flows=False))
    engines = [name for name, options in case.clients if options["role"] != "preprocess"]
    size = case.num_blocks
    forms = st.sampled_from(
        [
            {},
            {"async_scheduling": True},
            {"pipeline_parallel_size": 2},
            {"data_parallel_size": 2, "num_blocks": size // 2},
            {"num_blocks": 2 * size, "pipeline_parallel_size": 4},
        ]
    )
    seconds = st.sampled_from([0.0, 2.0**-8, 0.01, 0.05])
    time = st.sampled_from([0.0, 0.01, 0.05, 0.11, 0.3]) | st.floats(0, 0.5)
    change = st.tuples(st.sampled_from(engines), time, forms, seconds)
    return ChangingLives(case, tuple(draw(st.lists(change, min_size=1, max_size=6))))


@pytest.mark.exact
@examples(100)
@given(data=st.data(), predictor=st.sampled_from([AWKWARD, DYADIC]))
def test_changes_with_prompts_from_entries_kept_elsewhere(data, predictor):
    assert_exact(data.draw(changing(predictor, fetched())), predictor)


@examples(100)
@given(case=changing_lives())
def test_nothing_is_lost_when_layouts_change(case):
    result = case.simulation().run()
    assert_nothing_is_lost(case.lives, result)
    for name in result.layouts:
        event("fails" if name in set(result.client_states["client"]) else "changes")
    if len(result.transfers) and result.layouts:
        event("hands over")


@examples(30)
@given(case=changing_lives())
def test_the_length_of_runs_does_not_show_when_layouts_change(case):
    simulate = case.simulation().run
    assert_rows_do_not_show(simulate)
