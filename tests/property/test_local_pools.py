"""Hand-overs within nodes, of several models, with roles that flip and memory that is scarce.

Nothing is lost, entries stay in their node and with their model, and runs of any length give the
same bits; so do clients that fail.
"""

from dataclasses import dataclass, replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from mist_sim.core.hand_over import HandOver
from mist_sim.lifecycle import Failures, Lifecycle, OnFailure
from mist_sim.metrics import Result
from mist_sim.network import Fabric
from mist_sim.routers import ROUTERS, FlippingPolicy, OverflowPolicy
from mist_sim.simulation import Simulation
from tests.effort import examples, features_seen, missing
from tests.property.strategies import arrival_times
from tests.reference.comparison import EngineOptions, workload
from tests.reference.predictors import AWKWARD
from tests.reference.run_lengths import assert_rows_do_not_show
from tests.reference.stepwise import Job

ROLES = {"none": ["prefill", "decode"], "overflow": [None, "decode"], "flipping": [None, None]}
POLICIES = {
    "none": lambda: None,
    "overflow": OverflowPolicy,
    "flipping": lambda: FlippingPolicy(
        num_prefill=2, max_waiting_tokens=30, max_waiting=1, interval=0.02
    ),
}


@dataclass(frozen=True)
class Pools:
    """Engines of (name, role, model, node), and what comes to them."""

    clients: tuple[tuple[str, str | None, str, str], ...]
    jobs: tuple[Job, ...]
    router: str
    policy: str
    hand_over: HandOver
    num_blocks: int
    lifecycle: Lifecycle | None

    def simulation(self) -> Simulation:
        plain = EngineOptions("chunked", self.num_blocks, 4, 3, 64, caching=True)
        clients = []
        for name, role, model, node in self.clients:
            client = replace(plain, role=role).client(AWKWARD, name)
            client.traits, client.place = replace(client.traits, model=model), node
            clients.append(client)
        models = {model: 1.0 for _, _, model, _ in self.clients}
        return Simulation(
            clients=clients,
            workload=replace(workload(self.jobs), models=models),
            router=ROUTERS[self.router](),
            network=Fabric(topology="hgx-h100", nodes=2),
            hand_over=replace(self.hand_over, policy=POLICIES[self.policy]()),
            lifecycle=self.lifecycle,
        )


@st.composite
def pools(draw: st.DrawFn) -> Pools:
    """One or two of each role and model in each of two nodes."""
    policy = draw(st.sampled_from(sorted(ROLES)))
    clients = tuple(
        (f"{model}{place}-{node}-{k}", role, model, node)
        for model in draw(st.sampled_from([("a",), ("a", "b")]))
        for node in ("node0", "node1")
        for place, role in enumerate(ROLES[policy])
        for k in range(draw(st.integers(1, 2)))
    )
    jobs = tuple(
        Job(
            time,
            draw(st.integers(1, 60)),
            draw(st.integers(1, 40)),
            **draw(st.sampled_from([{}, {}, {"timeout": 0.2}])),
        )
        for time in draw(arrival_times(draw(st.integers(4, 16))))
    )
    failure = st.builds(
        Failures,
        clients=st.sampled_from(clients).map(lambda client: (client[0],)),
        at=st.sampled_from([0.01, 0.05, 0.11]).map(lambda time: (time,)),
        repair=st.sampled_from([None, 0.05]),
    )
    on_failure = st.sampled_from([OnFailure(), OnFailure(policy="resume")])
    failures = st.lists(failure, min_size=1, max_size=2).map(tuple)
    lives = st.none() | st.builds(Lifecycle, failures=failures, on_failure=on_failure)
    return Pools(
        clients,
        jobs,
        draw(st.sampled_from(["round_robin", "least_outstanding", "random"])),
        policy,
        HandOver(
            pools="local",
            transfer=draw(st.sampled_from(["pull", "push"])),
            first_token=draw(st.sampled_from(["prefill", "decode"])),
        ),
        draw(st.sampled_from([26, 26, 60])),
        draw(lives),
    )


def seen_in(case: Pools, result: Result) -> set[str]:
    """What a case exercised."""
    moves, requests = result.transfers, result.requests
    found = {f"{status}, {case.policy}" for status in requests["status"]}
    if len({model for _, _, model, _ in case.clients}) > 1 and len(moves):
        found.add(f"hand-overs of several models, {case.hand_over.transfer}")
    if requests["num_preemptions"].any():
        found.add("memory is scarce")
    if (requests["queued"] > 0).any():
        found.add(f"requests wait, {case.hand_over.transfer}")
    if case.lifecycle is not None and len(result.recorder.losses.columns()["request_id"]):
        found.add("some are lost")
    sides = {name: {"prefill": 0, "decode": 0} for name, *_ in case.clients}
    for client, stage in zip(result.stages["client"], result.stages["stage"], strict=True):
        sides[client][stage] += 1
    if case.policy == "flipping" and any(all(counts.values()) for counts in sides.values()):
        found.add("a client flips")
    return found


@examples(150)
@given(case=pools())
def test_nothing_is_lost_and_entries_stay_in_their_node_and_with_their_model(case):
    result = case.simulation().run()
    requests = result.requests
    assert sorted(requests["request_id"]) == list(range(len(case.jobs)))
    for row in requests.itertuples():
        times = result.token_times(row.request_id)
        assert bool(row.reason) == (row.status != "finished")
        assert (times[1:] >= times[:-1]).all()
        if row.status == "finished":
            assert len(times) == case.jobs[row.request_id].num_output_tokens
    homes = {name: (model, node) for name, _, model, node in case.clients}
    moves = result.transfers[result.transfers["kind"] == "hand_over"]
    for source, client in zip(moves["source"], moves["client"], strict=True):
        assert homes[source] == homes[client]
    if case.lifecycle is None and case.policy == "none":
        assert not (requests["status"] == "rejected").any()
    for feature in seen_in(case, result):
        event(feature)


@examples(40)
@given(case=pools())
def test_the_length_of_runs_changes_nothing(case):
    simulate = case.simulation().run
    assert_rows_do_not_show(simulate)


@pytest.mark.deep
def test_each_feature_is_reached():
    wanted = (
        *(f"finished, {policy}" for policy in ROLES),
        *(f"hand-overs of several models, {transfer}" for transfer in ("pull", "push")),
        *(f"requests wait, {transfer}" for transfer in ("pull", "push")),
        "memory is scarce",
        "some are lost",
        "a client flips",
    )
    seen = features_seen(pools(), lambda case: seen_in(case, case.simulation().run()), wanted)
    assert not missing(seen, wanted), seen
