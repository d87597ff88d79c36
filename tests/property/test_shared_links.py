"""Tiers inside a topology, shared ones too, over random lives of clients that share slow links."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from mist_sim.clients import LlmClient
from mist_sim.clients.kv_cache import CacheTier
from mist_sim.metrics import Result
from mist_sim.network import Fabric, Link, Network, Topology
from mist_sim.simulation import Simulation
from tests.effort import examples, features_seen, missing
from tests.property.test_failures import Lives, assert_served_by_those_who_are_there, lives, seen_in
from tests.reference.comparison import EngineOptions, workload
from tests.reference.predictors import DYADIC
from tests.reference.run_lengths import assert_rows_do_not_show, records
from tests.reference.stepwise import Job

SLOW = Topology(
    name="slow", gpus=4, gpus_per_switch=2, pcie=2e6, nics=2, nic=1e6, nodes=4, remote_storage=1e6
)
"""A block of 4 KiB takes 2 ms from the host, and 4 ms from the store at the leaf."""

CPU = CacheTier("cpu", 20, 1e-4, 2e-3)
BACK = replace(CPU, writes_back=True)
OWN = CacheTier("store", 40, 1e-3, 4e-3, at="remote/storage")
SHARED = replace(OWN, shared=True)
TIERS = ((CPU,), (BACK,), (OWN,), (SHARED,), (CPU, SHARED), (BACK, SHARED))


@dataclass(frozen=True)
class TieredLives:
    """Lives of clients whose engines have tiers, in a topology or not."""

    lives: Lives
    tiers: tuple[CacheTier, ...]
    is_placed: bool
    limits_pieces: bool

    def simulation(self) -> Simulation:
        plain = self.lives.simulation()
        for client in plain.clients:
            if isinstance(client, LlmClient):
                client.memory = replace(client.memory, tiers=self.tiers)
                if self.limits_pieces:
                    client.scheduler = replace(
                        client.scheduler, long_prefill_token_threshold=8, max_num_partial_prefills=1
                    )
        network: Network = (
            Fabric(topology=SLOW, spans_nodes=True)
            if self.is_placed
            else Link(bandwidth=1e6, latency=1e-3)
        )
        return Simulation(
            clients=plain.clients,
            workload=plain.workload,
            router=plain.router,
            network=network,
            lifecycle=plain.lifecycle,
            hand_over=plain.hand_over,
            slo=plain.slo,
        )


def tiered_lives() -> st.SearchStrategy[TieredLives]:
    plain = lives(flows=False)  # which nobody simulates with tiers
    return st.builds(TieredLives, plain, st.sampled_from(TIERS), st.booleans(), st.booleans())


def features(case: TieredLives, result: Result) -> set[str]:
    found = seen_in(result, case.lives)
    loads = result.transfers
    loads = loads[loads["kind"] == "load"]
    place = "in a topology" if case.is_placed else "without one"
    found |= {f"{source} {place}" for source in loads["source"]}
    losses = result.recorder.losses.columns()
    again = set(loads["request_id"]) & set(losses["request_id"].tolist())
    if case.tiers[-1].shared and again:
        found.add("lost, and loaded from a shared tier")
    return found


@examples(100)
@given(case=tiered_lives())
def test_nothing_is_lost_and_nothing_served_twice(case):
    result = case.simulation().run()
    requests, jobs = result.requests, case.lives.jobs
    assert sorted(requests["request_id"]) == list(range(len(jobs)))
    for row in requests[requests["status"] == "finished"].itertuples():
        tokens = result.token_times(row.request_id)
        assert (tokens[1:] >= tokens[:-1]).all()
        assert row.num_output_tokens == len(tokens) == jobs[row.request_id].num_output_tokens
    assert_served_by_those_who_are_there(result)
    for feature in features(case, result):
        event(feature)


@examples(30)
@given(case=tiered_lives())
def test_how_steps_are_put_together_does_not_show(case):
    assert_rows_do_not_show(lambda: case.simulation().run())


@examples(20)
@given(case=tiered_lives())
def test_runs_repeat(case):
    simulation = case.simulation()
    first = records(simulation.run())
    assert records(simulation.run()) == first


@pytest.mark.deep
def test_each_feature_is_reached():
    wanted = (
        "cpu in a topology",
        "cpu without one",
        "store in a topology",
        "store without one",
        "went on elsewhere",
        "finished after a loss",
        "lost, and loaded from a shared tier",
    )
    seen = features_seen(
        tiered_lives(), lambda case: features(case, case.simulation().run()), wanted
    )
    assert not missing(seen, wanted), seen


def test_a_prompt_that_is_held_back_sees_at_once_what_another_engine_wrote():
    """One engine's second prompt waits for the first one's pieces, and is loaded meanwhile."""
    options = EngineOptions("chunked", 100, 4, 4, 64, caching=True, threshold=8)
    tier = replace(SHARED, at="host")

    def run() -> Result:
        clients = [options.client(DYADIC, name) for name in ("a", "b")]
        for client in clients:
            client.memory = replace(client.memory, tiers=(tier,))
        content = ((0, 40),)
        jobs = [
            Job(0.0, 44, 2, content=content),  # at a, the others at b
            Job(0.0, 300, 2),
            Job(0.0, 4, 2),
            Job(0.0, 44, 2, content=content),
        ]
        return Simulation(clients=clients, workload=workload(jobs)).run()

    result = run()
    (load,) = result.transfers.itertuples()
    first_of_b, ahead = (result.requests.set_index("request_id").loc[k] for k in (0, 1))
    assert first_of_b["ttft"] < load.start < ahead["ttft"]
    assert_rows_do_not_show(run)
