"""Runs clients behind a router through mist-sim and the reference, and compares all bits."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace

from mist_sim.core.hand_over import FirstToken, HandOver, Transfer
from mist_sim.hardware.predictors import Predictor
from mist_sim.metrics import Result
from mist_sim.network import Connector, Link
from mist_sim.routers import ROUTERS, FlowingPolicy
from mist_sim.simulation import Simulation
from mist_sim.traces import ClosedLoop, Workload
from tests.reference import cluster, flowing
from tests.reference.cluster import (
    NO_COSTS,
    AtGivenTimes,
    Costs,
    Sender,
    StepwiseCluster,
    Users,
    router_named,
)
from tests.reference.comparison import (
    EngineOptions,
    assert_same_drafts,
    assert_same_gaps,
    assert_same_requests,
    assert_same_visits,
    last_exit,
    with_paths,
    workload,
)
from tests.reference.stepwise import Job, Outcome, Step

SEED = 3


@dataclass(frozen=True)
class ClusterCase:
    """Clients, their router, and jobs in order of arrival, or of users in a closed loop.

    loop: None: jobs come at their arrival times. link: (bytes a second, latency in seconds) of the
        network; None: there is none. first_token: of which client users get it.
        transfer: who begins it. costs: of a transfer beside its bytes. flows: which answers go
        on elsewhere; None: all stay.
    """

    clients: tuple[EngineOptions, ...]
    jobs: tuple[Job, ...]
    router: str = "round_robin"
    loop: ClosedLoop | None = None
    link: tuple[float, float] | None = None
    first_token: FirstToken = "prefill"
    transfer: Transfer = "pull"
    costs: Costs = NO_COSTS
    flows: FlowingPolicy | None = None

    @property
    def options(self) -> EngineOptions:
        """Those of the first client."""
        return self.clients[0]

    def stepwise(self, predictor: Predictor) -> Served:
        """Return the reference after it served the jobs."""
        clients = StepwiseCluster(
            [options.stepwise_client(predictor) for options in self.clients],
            router_named(self.router, SEED),
            self._prepared,
            cluster.Link(*self.link) if self.link else None,
            self.first_token,
            self.transfer,
            self.costs,
            self._flows(),
        )
        sender = self._sender()
        clients.run(sender)
        left = last_exit(outcome for outcomes in clients.visits for outcome in outcomes)
        end = max(left, sender.done_at)
        for options, client in zip(self.clients, clients.clients, strict=True):
            options.cut_short(client, end)
        return Served(clients)

    def _flows(self) -> dict[str | None, flowing.Flow]:
        policy = self.flows
        if policy is None:
            return {}
        return {
            "p_heavy": flowing.Backflow(policy.approach_factor * policy.tpot, policy.max_backflows),
            "d_heavy": flowing.Degradation(policy.watermark, policy.counts_seats),
        }

    def _sender(self) -> Sender:
        loop = self.loop
        if loop is None:
            return AtGivenTimes(self.jobs)
        starts = [loop.ramp_up * user / loop.concurrency for user in range(loop.concurrency)]
        return Users(self.jobs, starts, loop.think_time)

    def _prepared(self, client: int, job: Job, number: int) -> Job:
        """Return a job with the path that it has in an engine with drafts."""
        drafting = self.clients[client].drafting
        return with_paths(drafting, [job], SEED, [number])[0] if drafting else job

    def simulation(self, predictor: Predictor) -> Simulation:
        clients = [
            options.client(predictor, f"engine{number}")
            for number, options in enumerate(self.clients)
        ]
        return Simulation(
            clients=clients,
            workload=self.workload,
            router=ROUTERS[self.router](),
            network=self._network(),
            seed=SEED,
            hand_over=HandOver(
                first_token=self.first_token, transfer=self.transfer, policy=self.flows
            ),
        )

    def _network(self) -> Link | None:
        if self.link is None:
            return None
        connector = Connector(
            start=self.costs.start,
            per_descriptor=self.costs.block,
            descriptors="block",
            post_processing=self.costs.block_afterwards,
        )
        return Link(bandwidth=self.link[0], latency=self.link[1], connector=connector)

    @property
    def workload(self) -> Workload:
        jobs = workload(self.jobs)
        return jobs if self.loop is None else replace(jobs, arrivals=self.loop)

    def simulate(self, predictor: Predictor) -> Result:
        return self.simulation(predictor).run()

    def with_job(self, job: Job) -> ClusterCase:
        """Return the case with one job more, behind those that arrive at the same time."""
        jobs = sorted((*self.jobs, job), key=lambda job: job.arrival_time)
        return replace(self, jobs=tuple(jobs))


@dataclass(frozen=True)
class Served:
    """A cluster that served its jobs."""

    cluster: StepwiseCluster

    @property
    def steps(self) -> list[Step]:
        """All steps, client by client."""
        return [step for client in self.cluster.clients for step in client.steps]

    @property
    def outcomes(self) -> list[Outcome]:
        return self.cluster.outcomes

    @property
    def num_ties(self) -> int:
        """Steps that end when one of another client does."""
        ends = [{step.end for step in client.steps} for client in self.cluster.clients]
        return sum(map(len, ends)) - len(set().union(*ends))


def assert_cluster_exact(case: ClusterCase, predictor: Predictor) -> Served:
    """Run a case both ways and compare all records; return the reference."""
    served = case.stepwise(predictor)
    reference, result = served.cluster, case.simulate(predictor)
    visits = result.recorder.visits.columns()
    left = zip(visits["client_id"].tolist(), visits["request_id"].tolist(), strict=True)
    assert list(left) == reference.left
    for client_id, client in enumerate(reference.clients):
        assert_same_visits(result, client, client_id, reference.numbers(client_id))
    assert_same_requests(result, dict(enumerate(reference.visits)))
    assert_same_gaps(result, reference.clients)
    assert_same_moves(result, reference)
    if all(options.drafting for options in case.clients) and len(case.clients) == 1:
        drafting = case.options.drafting
        assert_same_drafts(result, reference.clients[0], drafting.num_speculative_tokens)
    return served


def assert_same_moves(result: Result, reference: StepwiseCluster) -> None:
    """Compare what was handed over; a run does not wait for moves of those who gave up."""
    end = max((outcome.left_at for outcome in reference.outcomes), default=0.0)
    transfers = result.transfers
    names = ("request_id", "source", "client", "num_tokens", "start", "end")
    columns = (transfers[name][transfers["kind"] == "hand_over"].tolist() for name in names)
    number = result.client_names.index
    got = [
        (request_id, number(source), number(client), *rest)
        for request_id, source, client, *rest in zip(*columns, strict=True)
    ]
    expected = [astuple(move) for move in reference.moves]
    assert sorted(move for move in got if move[-1] < end) == sorted(
        move for move in expected if move[-1] < end
    )
