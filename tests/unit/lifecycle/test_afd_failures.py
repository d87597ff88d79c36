"""Bundles that fail, start, drain and are scaled: by hand, and from scenario files."""

import pytest

import mist_sim as mist
from mist_sim.clients import AfdClient
from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.lifecycle import Drain, Failures, Lifecycle, OnFailure, StartUp
from mist_sim.network import Fabric
from tests.reference.engines import llm_engine
from tests.reference.predictors import ConstantPredictor

PIPELINE = mist.template([mist.Prefill, mist.Decode])
# a step: attention 1 s, two legs of 0.25 s, FFN 0.5 s, whatever slots hold
STEP = {
    "alpha_a": 1e-300,
    "beta_a": 1,
    "alpha_f": 1e-300,
    "beta_f": 0.5,
    "alpha_c": 0,
    "beta_c": 0.5,
}


def bundle(name="bundle", **options):
    plain = {"model": "llama-3.1-8b", "attention_workers": 2, "slots": 2, "cycle_s": 1.0}
    return AfdClient(name, **(plain | STEP | {"placement": "least_load"} | options))


def run(lifecycle, clients, rows=((0.0, 10, 6),), network=None, **workload):
    """Serve rows (arrival, prompt, answer); a prompt takes 1 s, its entries come at once."""
    prefill = llm_engine(
        "prefill",
        scheduler=ChunkedScheduler(),
        predictor=ConstantPredictor(1.0),
        role="prefill",
        kv_block_bytes=1.0,
        num_gpu_blocks=1000,
    )
    items = [mist.TraceRow(p, o, arrival_time=t) for t, p, o in rows]
    return mist.Simulation(
        clients=[prefill, *clients],
        workload=mist.Workload(mist.Rows(items), mist.TraceArrivals(), PIPELINE, **workload),
        network=network or mist.Link(bandwidth=1e300),
        lifecycle=lifecycle,
    ).run()


def fails(at, *, policy="retry", start=None, clients=("bundle",), **more):
    return Lifecycle(
        failures=(Failures(clients=clients, at=(at,), **more),),
        on_failure=OnFailure(policy=policy),
        start_up=start,
    )


def states(result, name="bundle"):
    mine = result.client_states.query("client == @name")
    return list(mine[["state", "start", "end"]].itertuples(index=False, name=None))


def near(*times):
    return pytest.approx(times, abs=1e-6)


# --- a failing worker takes the bundle down -------------------------------------------------------


def test_the_step_in_flight_is_lost_and_the_rest_is_served_again():
    """Tokens at 1 (prompt), 3, 5; the failure at 6.5 loses the step that would end at 7. The prompt
    is computed again, with the tokens so far, which gives the one of 7.5; the bundle is up at 8."""
    client = bundle()
    result = run(fails(6.5, repair=1.5), [client])
    assert result.token_times(0) == near(1, 3, 5, 7.5, 10, 12)
    assert states(result) == [("up", 0.0, 6.5), ("failed", 6.5, 8.0), ("up", 8.0, 12.0)]
    assert result.summary["num_lost_visits"] == result.summary["num_retried_visits"] == 1
    assert result.summary["lost_kv_tokens"] == 10 + 2
    steps = result.steps.query("client == 'bundle'")
    assert steps["num_steps"].sum() == 4
    assert steps["end"].tolist() == near(5, 12)
    assert client.bundle.attention_work == pytest.approx(4 * 2)  # seconds of both workers
    assert client.idle_shares == near(1 - 4 / 12, 1 - 4 * 0.5 / 12)


def test_energy_counts_no_lost_step():
    """Busy are four steps, as if there had been no failure; away, workers draw nothing."""
    clients = [bundle(gpu="h100-sxm")]
    result = run(fails(6.5, repair=1.5), clients)
    busy = 4 * (2 * 1.0 + 0.5)
    assert result.clients.set_index("client").loc["bundle", "busy"] == pytest.approx(busy / 3)
    machine = clients[0].traits.machine
    ledger = mist.metrics.spending.Ledger(
        result.recorder, [None, machine], mist.metrics.spending.PowerOptions()
    )
    assert ledger.energy(1).idle == pytest.approx((3 * (ledger.end - 1.5) - busy) * 126.0)


def test_who_waits_and_who_comes_is_lost_with_those_in_slots():
    """Eight slots; two wait. The entries of the last to come are on their way when it fails."""
    rows = [(0.0, 10, 9)] * 10
    result = run(fails(3.5, repair=20.0), [bundle(), bundle("spare")], rows)
    assert result.summary["completed"] == 10
    assert result.summary["num_lost_visits"] > 0
    slow = run(fails(1.5, repair=0.25), [bundle()], network=mist.Link(bandwidth=10 * 131072.0))
    assert slow.token_times(0) == near(1, 2.5, 5.6, 7.6, 9.6, 11.6)  # 11 tokens come in 1.1 s
    assert slow.summary["lost_kv_tokens"] == 10
    assert slow.transfers["end"].tolist() == near(2, 3.6)  # the first came to nobody


@pytest.mark.parametrize(("policy", "status"), [("fail", "lost"), ("resume", "finished")])
def test_what_becomes_of_requests_is_as_on_failure_says(policy, status):
    """One that waits for a slot has its entries at the prefill client, and resumes from them."""
    client = bundle(attention_workers=1, slots=1, batches=1)
    rows = [(0.0, 10, 4), (0.0, 10, 4)]
    result = run(fails(3.5, repair=0.5, policy=policy), [client], rows)
    assert result.requests["status"].tolist() == [status] * 2
    if policy == "resume":
        prompts = result.stages.query("stage == 'prefill'")["request_id"]
        assert prompts.value_counts().to_dict() == {0: 2, 1: 1}


def test_halting_twice_is_halting_once():
    clients = [bundle()]
    twice = Lifecycle(
        failures=(
            Failures(clients=("bundle",), at=(6.5,), repair=1.5),
            Failures(clients=("bundle",), at=(7.0,), repair=0.5),
            Failures(clients=("bundle",), at=(8.5,), repair=1.0),
        ),
        start_up=StartUp(time=1.0),
    )
    result = run(twice, clients)  # it fails while it starts, too
    assert result.token_times(0) == near(1, 3, 5, 7.5, 12.5, 14.5)


def test_a_failure_for_good_leaves_a_reason():
    result = run(fails(6.5), [bundle()])
    (row,) = result.requests.itertuples()
    assert row.status == "rejected"
    assert "all that do have failed or left for good: bundle" in row.reason


# --- nodes ----------------------------------------------------------------------------------------

NODES = """
model: llama-3.1-8b
workload:
  lengths: {type: profile, name: azure-conv-2023, num_requests: 60}
  arrivals: {type: poisson, rate: 10 /s}
clients:
  - {name: prefill, role: prefill, gpu: h100-sxm, place: node2}
  - name: bundle
    type: afd
    gpu: h100-sxm
    attention_workers: 4
    ffn_gpus: 2
    slots: 8
    place: node0
    ffn_place: node1
    coefficients: deepseek-v3-ascend-910c
    cycle_s: 50 us
network: {topology: hgx-h100, nodes: 3}
lifecycle:
  failures: [{node: node1, at: [2 s, 6 s], repair: 1 s}]
  start_up: {compilation: 0 s, graph_capture: 0 s, other: 500 ms}
cost: {}
"""


def from_yaml(tmp_path, text=NODES, **changes):
    path = tmp_path / "bundles.yaml"
    path.write_text(text)
    overrides = {key.replace("__", "."): value for key, value in changes.items()}
    return mist.simulate(mist.Scenario.load(path, overrides=overrides))


@pytest.mark.parametrize("node", ["node0", "node1"])
def test_a_node_of_either_kind_of_worker_takes_the_bundle_down(tmp_path, node):
    """From a file: nothing is lost, and watts, joules and dollars are there."""
    result = from_yaml(tmp_path, lifecycle__failures__0__node=node)
    assert result.summary["completed"] == 60
    assert result.summary["num_client_failures"] == 2
    assert result.summary["num_retried_visits"] == result.summary["num_lost_visits"] > 0
    for row in result.requests.itertuples():
        assert len(result.token_times(row.request_id)) == row.num_output_tokens
    row = result.clients.set_index("client").loc["bundle"]
    up = result.ledger.end - 2.0
    assert row["idle_energy"] < 6 * up * 126.0 < row["energy"]
    assert row["cost"] == pytest.approx(6 * result.ledger.end * row["gpu_price"] / 3600)
    assert result.summary["energy_per_output_token_j"] > 0


def test_a_node_without_its_workers_does_not(tmp_path):
    result = from_yaml(tmp_path, lifecycle__failures__0__node="node2")
    failed = result.client_states.query("state == 'failed'")["client"]
    assert set(failed) == {"prefill"}


def test_weights_of_both_kinds_come_over_the_links(tmp_path):
    """The FFN worker's 11.27 GB come to two GPUs; with eight, attention's 4.8 GB take longer."""
    result = from_yaml(tmp_path)
    starts = result.client_states.query("state == 'starting'")
    seconds = (starts["end"] - starts["start"]).tolist()
    assert len(seconds) == 2
    ffn = 32 * 3 * 4096 * 14336 * 2
    assert seconds[0] == pytest.approx(0.5 + ffn / 2 / 3.62e9, rel=0.01)
    wide = from_yaml(tmp_path, clients__1__ffn_gpus=8).client_states.query("state == 'starting'")
    attention = 32 * 4096 * 128 * (32 + 16 + 32) * 2 + 2 * 128256 * 4096 * 2  # of each worker
    assert (wide["end"] - wide["start"]).tolist()[0] == pytest.approx(
        0.5 + attention / 3.62e9, rel=0.01
    )


# --- starts, drains and autoscaling ---------------------------------------------------------------


def test_a_drained_bundle_finishes_what_it_has_and_comes_back():
    drain = Lifecycle(
        drains=(Drain(clients=("bundle",), at=4.0, back=6.0),), start_up=StartUp(time=1.0)
    )
    result = run(drain, [bundle()], [(0.0, 10, 3), (4.5, 10, 3)])
    assert result.token_times(0) == near(1, 3, 5)
    assert result.token_times(1) == near(5.5, 13, 15)
    assert [state for state, _, _ in states(result)] == ["up", "draining", "off", "starting", "up"]


SCALED = """
model: llama-3.1-8b
workload:
  lengths: {type: profile, name: azure-conv-2023, num_requests: 120}
  arrivals: {type: poisson, rate: 12 /s}
clients:
  - {name: prefill, role: prefill, gpu: h100-sxm}
  - name: bundle
    type: afd
    count: 3
    gpu: h100-sxm
    attention_workers: 2
    slots: 4
    coefficients: deepseek-v3-ascend-910c
    cycle_s: 50 us
network: {bandwidth: 400 Gb/s}
router: least_outstanding
lifecycle:
  start_up: {compilation: 0 s, graph_capture: 0 s, other: 500 ms}
  autoscaling: [{clients: [bundle], min: 1, policy: {type: queue_length, target: 4}, interval: 1 s}]
cost: {}
"""


def test_bundles_are_scaled_from_a_file(tmp_path):
    """Starts take as long as weights and engine do; those that are off cost nothing."""
    result = from_yaml(tmp_path, SCALED)
    assert result.summary["completed"] == 120
    starts = result.client_states.query("state == 'starting'")
    assert len(starts) > 0
    ffn = 32 * 3 * 4096 * 14336 * 2
    assert (starts["end"] - starts["start"]).tolist() == pytest.approx(
        [0.5 + ffn / 3.62e9] * len(starts), rel=1e-3
    )
    on = result.client_states.query("state != 'off'")
    for row in result.clients.itertuples():
        if row.client != "prefill":
            mine = on.query("client == @row.client")
            seconds = (mine["end"] - mine["start"]).sum()
            assert row.cost == pytest.approx(3 * seconds * row.gpu_price / 3600)
    visits = result.clients.set_index("client")["num_visits"]
    assert visits["bundle-1"] > 0


def test_communication_over_links_is_the_same_in_every_life_and_every_run():
    client = bundle(communication="topology", alpha_c=None)
    network = Fabric(topology="hgx-h100", nodes=2)
    again = fails(3.5, repair=0.5)
    found = []
    for lifecycle in (None, again, again):
        run(lifecycle, [client], network=network)
        found.append(client.config.coefficients)
    assert found[0] == found[1] == found[2]
    assert found[0].beta_c == pytest.approx(0.5, abs=1e-3)
