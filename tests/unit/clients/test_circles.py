"""Clients that wait for one another's memory: the run ends and says who, whatever else comes.

A block has 4 tokens, a client 8 blocks, and the prompts take 5: two do not fit. Each client hands
over to the other one.
"""

import pytest

from mist_sim import ScenarioError
from mist_sim.core.candidates import Candidates
from mist_sim.core.hand_over import HandOver
from mist_sim.lifecycle import Autoscaling, Failures, Lifecycle, QueueLength
from mist_sim.metrics import Result
from mist_sim.network import Link
from mist_sim.routers import FlippingPolicy, LeastOutstandingRouter
from mist_sim.simulation import Simulation
from mist_sim.traces import Rows, TraceArrivals, TraceRow, Workload
from tests.property.test_clusters import STEP
from tests.reference.apart import engine, link
from tests.reference.comparison import EngineOptions, workload
from tests.reference.predictors import EVEN
from tests.reference.stepwise import Job
from tests.unit.clients.test_hand_over import row

TWO = [row(0.0, 20, 4), row(0.0, 20, 4)]
GROWING = "kv_cache must have room for more requests"


class Crossed:
    """All answers go on at the other client, if it is up."""

    def lacks(self, roles):
        return None

    def begin(self):
        pass

    def among(self, request, stage, candidates):
        if not stage.continues:
            return candidates
        place = (request.request_id + 1) % min(2, len(candidates))
        return Candidates([candidates[place]])

    def hands_over(self, request, here, candidates):
        return len(candidates) > 1


class InTurn:
    """Prompts go to the two clients in turn, answers to the first that may have them."""

    def choose(self, request, stage, candidates):
        place = 0 if stage.continues else request.request_id % min(2, len(candidates))
        return candidates[place].client_id


def run(
    rows: list[TraceRow] = TWO,
    lifecycle: Lifecycle | None = None,
    transfer: str = "pull",
    num_gpu_blocks: int = 8,
    others: tuple[str, ...] = (),
) -> Result:
    sizes = {"a": num_gpu_blocks, "b": num_gpu_blocks, **dict.fromkeys(others, num_gpu_blocks)}
    clients = [engine(None, name=name, num_gpu_blocks=size) for name, size in sizes.items()]
    return Simulation(
        clients=clients,
        workload=Workload(Rows(rows), TraceArrivals()),
        router=InTurn(),
        network=link(),
        hand_over=HandOver(policy=Crossed(), transfer=transfer),
        lifecycle=lifecycle,
    ).run()


def failing(name: str) -> Failures:
    return Failures(clients=(name,), mtbf=0.5, mttr=0.1)


@pytest.mark.parametrize(
    "lifecycle",
    [
        None,
        Lifecycle(failures=(Failures(clients=("c",), at=(0.1, 5.0), repair=1.0),)),
        Lifecycle(failures=(failing("c"),)),
        Lifecycle(autoscaling=(Autoscaling(clients=("c", "d"), policy=QueueLength(target=1.0)),)),
        Lifecycle(
            failures=(failing("c"), failing("d")),
            autoscaling=(Autoscaling(clients=("d",), policy=QueueLength(target=1.0)),),
        ),
    ],
    ids=["alone", "finite", "failures", "looks", "both"],
)
def test_two_clients_with_a_prompt_for_each_other_are_named(lifecycle):
    """Each keeps five of its eight blocks for the other, which needs five; nobody else helps."""
    with pytest.raises(ScenarioError, match=rf"{GROWING}.*Crossed.*\(a keeps 1, b keeps 1\)"):
        run(lifecycle=lifecycle, others=("c", "d"))


def test_places_that_were_taken_ahead_make_circle_too():
    """Memory for both answers is taken, and there is none for their prompts."""
    with pytest.raises(ScenarioError, match=r"\(a has reserved for 1, b has reserved for 1\)"):
        run(transfer="push")


def test_room_for_both_is_enough():
    assert run(num_gpu_blocks=12).summary["completed"] == 2


def test_a_failure_of_one_of_them_lets_the_other_go_on():
    """So failures at random are waited for, if they are of these."""
    result = run(lifecycle=Lifecycle(failures=(Failures(clients=("a",), mtbf=5.0, mttr=0.1),)))
    assert result.summary["completed"] == 2
    assert result.summary["num_client_failures"] >= 1


@pytest.mark.parametrize(
    ("transfer", "interval", "jobs"),
    [
        (
            "pull",
            0.0,
            [
                *((0, 16, 8), (1, 16, 8), (2, 28, 8), (2, 16, 8)),
                *((2, 24, 4), (3, 28, 8), (3, 16, 4), (4, 8, 2)),
            ],
        ),
        ("push", STEP, [(2, 28, 8), (2, 8, 4), (2, 8, 2), (2, 8, 4), (3, 24, 2), (5, 24, 8)]),
    ],
)
def test_clients_that_change_sides_get_out_of_it(transfer, interval, jobs):
    """Three with 8 blocks that may change sides at every step; who changes is empty at first."""
    options = EngineOptions("chunked", 8, 4, 4, 32)
    simulation = Simulation(
        clients=[options.client(EVEN, name) for name in "abc"],
        workload=workload([Job(time * STEP, prompt, answer) for time, prompt, answer in jobs]),
        router=LeastOutstandingRouter(),
        network=Link(bandwidth=2.0**21),
        hand_over=HandOver(
            policy=FlippingPolicy(max_waiting_tokens=0, interval=interval), transfer=transfer
        ),
    )
    fitting = [job for job in jobs if job[1] + job[2] <= 8 * 4]  # others are rejected
    assert simulation.run().summary["completed"] == len(fitting)
