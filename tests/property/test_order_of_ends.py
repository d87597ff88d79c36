"""Requests that several engines end are recorded in order of time, even if engines run ahead."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.routers import ROUTERS
from mist_sim.simulation import Simulation
from mist_sim.traces import Workload
from tests.effort import examples
from tests.reference.engines import llm_engine
from tests.reference.predictors import EVEN

STEP = EVEN.seconds
REQUESTS = st.lists(
    st.tuples(st.integers(1, 80), st.integers(1, 5), st.integers(0, 40)), min_size=2, max_size=12
)
"""Tokens of prompts and of answers, and arrivals in eighths of a step."""


@pytest.mark.exact
@examples(200)
@example(requests=[(63, 1, 0), (16, 3, 1)])  # the prompt of one token's answer ends with its step
@example(requests=[(64, 1, 0), (16, 3, 1)])
@given(requests=REQUESTS)
def test_ends_are_recorded_in_the_order_of_time(requests):
    requests = sorted(requests, key=lambda request: request[2])
    prompts, answers, eighths = zip(*requests, strict=True)
    clients = [
        llm_engine(
            name,
            predictor=EVEN,
            scheduler=ChunkedScheduler(max_num_batched_tokens=16, max_num_seqs=4),
            num_gpu_blocks=100,
            block_size=16,
        )
        for name in "ab"
    ]
    workload = Workload.from_lists(
        list(prompts), list(answers), [each * STEP / 8 for each in eighths]
    )
    result = Simulation(clients=clients, workload=workload, router=ROUTERS["round_robin"]()).run()
    ends = result.recorder.requests.columns()["finished_at"].tolist()
    assert len(ends) == len(requests)
    assert ends == sorted(ends)
