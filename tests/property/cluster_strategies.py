"""What random clusters are made of: jobs, users, and links, whose times meet those of steps."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from hypothesis import strategies as st

from mist_sim.core.request import Content
from mist_sim.errors import ScenarioError
from mist_sim.traces import ClosedLoop
from tests.property.strategies import (
    few_steps,
    finished,
    lengths,
    step_ends,
    with_arrivals_on_boundaries,
)
from tests.reference.cluster import Costs
from tests.reference.cluster_case import ClusterCase
from tests.reference.predictors import AWKWARD, DYADIC, EVEN
from tests.reference.stepwise import Job

PREDICTORS = st.sampled_from([AWKWARD, DYADIC, EVEN, EVEN])
STEP = 2.0**-8  # seconds of every step of `EVEN`

# some think for as long as a step takes, some not at all
USERS = st.builds(
    ClosedLoop,
    concurrency=st.integers(1, 8),
    think_time=st.sampled_from([0.0, 0.0, STEP, 0.01]),
    ramp_up=st.sampled_from([0.0, 0.0, 2.0**-5, 0.05]),
)

LINKS = st.tuples(
    st.sampled_from([2.0**24, 2.0**22, 2.0**20, 3e6, 1e12]),  # of 1 KiB a token
    st.sampled_from([0.0, 0.0, STEP, 2.0**-10, 1e-3 / 3]),
)
# a token in 1/128, 1/8 or 1/4 of a step
LINKS_IN_STEPS = st.tuples(
    st.sampled_from([2.0**25, 2.0**21, 2.0**20]), st.sampled_from([0.0, STEP, 2 * STEP])
)
COSTS = [Costs(), Costs(), Costs(STEP, STEP / 8, STEP / 4), Costs(1e-4 / 3, 0.0, 1e-5)]

SHARED: tuple[Content, ...] = ((), ((0, 40),), ((1, 8), (2, 30)))
"""Contents of which some begin alike."""


def jobs_for(times: list[float], few: bool, longest: int = 60) -> st.SearchStrategy[list[Job]]:
    """Jobs at these times; if `few`, of a few kinds, so that equal ones meet on equal clients."""
    length = st.sampled_from([1, 5, 16]) if few else lengths(8, longest)
    limit = st.sampled_from([{}, {}, {}, {"timeout": 2**-5}, {"ttft_timeout": 2**-7}])
    if not few:
        limit = st.just({}) | st.just({}) | st.builds(dict, timeout=few_steps())
    content = st.sampled_from([(), (), ((0, 40),), ((1, 16), (2, 30))])
    each = [
        st.builds(
            lambda time, prompt, output, priority, content, limits: Job(
                time, prompt, output, priority, content, **limits
            ),
            st.just(time),
            length,
            length,
            st.integers(0, 1),
            content,
            limit,
        )
        for time in times
    ]
    return st.tuples(*each).map(list)


def users_in_steps(concurrency: st.SearchStrategy[int]) -> st.SearchStrategy[ClosedLoop]:
    """Users who begin and think in whole steps, or all at once."""
    return st.builds(
        ClosedLoop,
        concurrency=concurrency,
        think_time=st.sampled_from([0.0, 0.0, STEP]),
        ramp_up=st.sampled_from([0.0, 0.0, 4 * STEP]),
    )


def jobs_at_once(
    prompts: Sequence[int],
    longest: int,
    time_outs: Sequence[int],
    contents: Sequence[Content] = SHARED,
) -> st.SearchStrategy[Job]:
    """A job at time 0. longest: answer. time_outs: in steps; 0: none."""
    return st.builds(
        lambda prompt, output, num_steps, content: Job(
            0.0, prompt, output, content=content, timeout=num_steps * STEP if num_steps else inf
        ),
        st.sampled_from(prompts),
        st.integers(1, 6) | st.integers(6, longest),
        st.sampled_from(time_outs),
        st.sampled_from(contents),
    )


@st.composite
def in_half_steps(draw: st.DrawFn, jobs: Sequence[Job]) -> tuple[Job, ...]:
    """Let jobs come one after the other, in halves of a step, and most of them with others."""
    gaps = st.sampled_from([0, 0, 0, 1, 1, 2, 2, 3, 4, 7])
    halves, placed = 0, []
    for job in jobs:
        halves += draw(gaps)
        placed.append(replace(job, arrival_time=halves * STEP / 2))
    return tuple(placed)


@st.composite
def of_users_or_in_half_steps(draw: st.DrawFn, case: ClusterCase) -> ClusterCase:
    """Return a case whose jobs are sent by users, all in steps, or come by themselves."""
    if draw(st.booleans()):
        return replace(case, loop=draw(users_in_steps(st.integers(2, 8) | st.just(3))))
    return replace(case, jobs=draw(in_half_steps(case.jobs)))


def with_time_outs_together(data: st.DataObject, case: ClusterCase, predictor) -> ClusterCase:
    """Let several jobs have the same time-out, which for the first ones is the end of a step."""
    start = [replace(job, arrival_time=0.0, timeout=inf, ttft_timeout=inf) for job in case.jobs]
    case = replace(case, jobs=tuple(start))
    ends = sorted(set(step_ends(finished(case, predictor))))
    if not ends:
        return case
    end = data.draw(st.sampled_from(ends), label="end")
    those = st.lists(st.booleans(), min_size=len(start), max_size=len(start))
    jobs = [
        replace(job, timeout=end) if gives_up else job
        for job, gives_up in zip(start, data.draw(those, label="who gives up"), strict=True)
    ]
    return replace(case, jobs=tuple(jobs))


def with_times_that_meet(data: st.DataObject, case: ClusterCase, predictor) -> ClusterCase:
    """Move some arrivals to the ends of steps, or, where users send, some time-outs.

    Clients that wait for one another have no run with such ends: that case stays as it is.
    """
    try:
        if case.loop is None and data.draw(st.booleans(), label="on boundaries"):
            return with_arrivals_on_boundaries(data, case, predictor)
        if case.loop and data.draw(st.booleans(), label="time-outs together"):
            return with_time_outs_together(data, case, predictor)
    except ScenarioError:
        pass
    return case
