"""Tokens of pipelines that grow: tables and totals equal what their outcomes add up to."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim.clients import Client
from mist_sim.core.hand_over import HandOver
from mist_sim.core.request import Request, Stage
from mist_sim.core.visit import Longer, Served, Visit
from mist_sim.lifecycle import Failures, Lifecycle
from mist_sim.metrics import Result
from mist_sim.simulation import Simulation
from mist_sim.stages import Decode, Prefill
from mist_sim.traces import Retries, Rows, TimeLimits, TraceArrivals, TraceRow, Workload
from tests.effort import examples
from tests.reference.apart import engine, link

Turn = tuple[int, int]  # tokens of a prompt and of its answer
SETUPS = ("one", "failures", "pull", "push", "retries")


@dataclass(frozen=True)
class Round:
    """What an outcome says: turns that come next, what changes, and turns of children."""

    turns: tuple[Turn, ...]
    changes: tuple[Longer, ...]
    children: tuple[Turn, ...]


@dataclass(frozen=True)
class Job:
    """A request: its declared turns, how many come before its plan, and what this one decides."""

    turns: tuple[Turn, ...]
    num_before: int
    rounds: tuple[Round, ...]

    def stages(self) -> tuple[Stage, ...]:
        before, after = self.turns[: self.num_before], self.turns[self.num_before :]
        return (*stages_of(before), Plan(), *stages_of(after))

    def by_hand(self) -> Turn:
        """Return the tokens of its prompts and of its answers, once each."""
        lengths = {Prefill: [p for p, _ in self.turns], Decode: [a for _, a in self.turns]}
        for each in self.rounds:
            for change in each.changes:
                end = len(self.turns) if change.every else self.num_before + 1
                for turn in range(self.num_before, end):
                    lengths[change.stage][turn] += change.num_tokens
            lengths[Prefill] += [p for p, _ in each.turns]
            lengths[Decode] += [a for _, a in each.turns]
        return sum(lengths[Prefill]), sum(lengths[Decode])


def stages_of(turns: tuple[Turn, ...]) -> tuple[Stage, ...]:
    pairs = [(Prefill(num_prompt_tokens=p), Decode(num_tokens=a - 1)) for p, a in turns]
    return tuple(stage for pair in pairs for stage in pair)


@dataclass(frozen=True, kw_only=True)
class Plan(Stage):
    """Decides what comes next; number: which of its request's rounds it is."""

    kind: ClassVar[str] = "plan"
    number: int = 0


class Planner(Client):
    """Decides at once what the jobs say."""

    def __init__(self, jobs: tuple[Job, ...]) -> None:
        super().__init__("planner", frozenset({"plan"}))
        self.jobs = jobs

    def accept(self, visit: Visit) -> None:
        self.begin(visit)
        number, rounds = visit.stages[0].number, self.jobs[visit.request.request_id].rounds
        if number < len(rounds):
            each = rounds[number]
            again = (Plan(number=number + 1),)
            children = tuple(Request(0, None, stages_of((turn,))) for turn in each.children)
            visit.outcome = Served((*stages_of(each.turns), *again), children, each.changes)
        self.finish(visit)

    def abort(self, visit: Visit) -> None:
        """No time passes in which a visit could be given up."""


def turns(least: int, most: int) -> st.SearchStrategy[tuple[Turn, ...]]:
    each = st.tuples(st.integers(20, 60), st.integers(10, 20))
    return st.lists(each, min_size=least, max_size=most).map(tuple)


def jobs() -> st.SearchStrategy[tuple[Job, ...]]:
    changes = st.builds(
        Longer, st.sampled_from([Prefill, Decode]), st.integers(-1, 30), st.booleans()
    )
    rounds = st.builds(Round, turns(0, 1), st.lists(changes, max_size=2).map(tuple), turns(0, 2))
    job = st.builds(Job, turns(2, 3), st.integers(0, 1), st.lists(rounds, max_size=3).map(tuple))
    return st.lists(job, min_size=1, max_size=4).map(tuple)


def served(jobs: tuple[Job, ...], setup: str) -> Result:
    """Serve jobs that arrive 1/4 s apart with engines of a setup."""
    rows = [TraceRow(1, 1, number / 4) for number in range(len(jobs))]
    stages = iter([job.stages() for job in jobs])
    more: dict[str, object] = {}
    clients = [engine(None, name="a", num_gpu_blocks=2000)]
    limits: dict[str, object] = {}
    if setup == "failures":
        clients.append(engine(None, name="b", num_gpu_blocks=2000))
        fail = [Failures(clients=(name,), mtbf=3.0, mttr=0.05) for name in "ab"]
        more["lifecycle"] = Lifecycle(failures=tuple(fail))
    elif setup in ("pull", "push"):
        clients = [engine(role, num_gpu_blocks=2000) for role in ("prefill", "decode")]
        more |= {"network": link(), "hand_over": HandOver(transfer=setup)}
    elif setup == "retries":
        limits["time_limits"] = TimeLimits(timeout=3.2)
        limits["retries"] = Retries(max_attempts=2, on=("timed_out",))
    return Simulation(
        clients=[Planner(jobs), *clients],
        workload=Workload(Rows(rows), TraceArrivals(), lambda row: next(stages), **limits),
        **more,
    ).run()


def assert_counted(jobs: tuple[Job, ...], result: Result) -> None:
    """Rows of requests that finished, of their children too, and the summary equal a hand count."""
    table = result.requests.set_index("request_id").query("status == 'finished'")
    own = [number for number in range(len(jobs)) if number in table.index]
    expected = {number: jobs[number].by_hand() for number in own}
    columns = ["num_prompt_tokens", "num_output_tokens"]
    found = {number: tuple(table.loc[number, columns]) for number in own}
    assert found == expected
    assert result.summary["total_input_tokens"] == sum(prompt for prompt, _ in expected.values())
    assert result.summary["total_output_tokens"] == sum(answer for _, answer in expected.values())
    assert not table["truncated"].any()
    if len(own) == len(jobs) and result.summary["num_retries"] == 0:
        given = [turn for job in jobs for each in job.rounds for turn in each.children]
        children = table[table.index < 0][columns].itertuples(index=False, name=None)
        assert sorted(children) == sorted(given)


@pytest.mark.parametrize("setup", SETUPS)
@examples(60)
@given(jobs=jobs())
def test_tokens_equal_a_hand_count(setup, jobs):
    result = served(jobs, setup)
    assert_counted(jobs, result)
    computed = result.clients["num_prefill_tokens"].sum()
    if setup in ("one", "pull", "push"):
        assert computed == result.requests["num_prompt_tokens"].sum()


MANY = tuple(
    Job(
        ((40, 12), (50, 10)),
        number % 2,
        (
            Round(((30, 10),), (Longer(Prefill, 25, every=True),), ((20, 10),)),
            Round((), (Longer(Prefill, -5), Longer(Decode, 8)), ()),
        ),
    )
    for number in range(4)
)


@pytest.mark.parametrize(
    ("setup", "happens"), [("failures", "num_lost_visits"), ("retries", "num_retries")]
)
def test_there_are_losses_and_other_attempts(setup, happens):
    """So what is computed again is not counted again."""
    result = served(MANY, setup)
    assert result.summary[happens] > 0
    assert result.summary["completed"] > 0
    assert_counted(MANY, result)
    assert result.clients["num_prefill_tokens"].sum() > result.requests["num_prompt_tokens"].sum()
