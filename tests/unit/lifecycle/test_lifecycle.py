"""Clients that fail, start, drain and are scaled: by hand, and what is refused."""

import json
from dataclasses import replace
from math import nan

import pytest

from mist_sim import (
    CostOptions,
    Decode,
    Fabric,
    Link,
    Prefill,
    Scenario,
    ScenarioError,
    SequentialClient,
    Simulation,
    Slo,
    Workload,
    llm_client,
    load_model,
    simulate,
)
from mist_sim.cli import main
from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.core.result_warnings import NEVER_CAME
from mist_sim.core.visit import HeldKv
from mist_sim.lifecycle import (
    Autoscaling,
    Drain,
    Failures,
    GroupView,
    Lifecycle,
    OnFailure,
    QueueLength,
    Schedule,
    SloAttainment,
    StartUp,
    Utilisation,
)
from mist_sim.lifecycle.assembly import rest
from mist_sim.lifecycle.start_up import SAFETENSORS_RATE, SLLM_EFFICIENCY
from mist_sim.rng import Streams
from mist_sim.stages import Preprocess, Recomputation
from mist_sim.traces import DailyArrivals, Retries, ScheduledArrivals, template
from tests.reference.engines import llm_engine
from tests.reference.predictors import ConstantPredictor
from tests.reference.scenarios import of_profile
from tests.refusals import refused


def engine(name: str, **options: object):
    more = {"scheduler": ChunkedScheduler(), "num_gpu_blocks": 100}
    return llm_engine(name, predictor=ConstantPredictor(1.0), **(more | options))


def run(lifecycle: Lifecycle, lengths=((10, 5, 0.0), (20, 6, 0.5), (30, 7, 1.0)), **more):
    """Serve (prompt, output, arrival) on two engines whose steps take 1 s."""
    clients = more.pop("clients", None) or [engine("a"), engine("b")]
    workload = more.pop("workload", None) or Workload.from_lists(*zip(*lengths, strict=True))
    return Simulation(clients=clients, workload=workload, lifecycle=lifecycle, **more).run()


def times(result) -> list[list[float]]:
    return [result.token_times(k).tolist() for k in result.requests["request_id"]]


def fails(*names: str, at: float = 3.5, **more: object) -> Lifecycle:
    return Lifecycle(failures=(Failures(clients=names, at=(at,), **more),))


def states(result) -> list[tuple[str, str, float, float]]:
    return list(result.client_states.itertuples(index=False, name=None))


# --- failures ---------------------------------------------------------------------------------


def test_requests_inside_go_on_elsewhere_with_the_tokens_that_they_have():
    """a has the first and the third, whose step from 3 s to 4 s is lost; b computes them again."""
    result = run(fails("a", repair=4.0))
    first, second, third = times(result)
    assert first == [1.0, 2.0, 3.0, 4.5, 5.5]
    assert second == [1.5, 2.5, 3.5, 4.5, 5.5, 6.5]
    assert third == [2.0, 3.0, 4.5, 5.5, 6.5, 7.5, 8.5]
    assert result.requests["tpot"].tolist() == [4.5 / 4, 1.0, 6.5 / 6]
    assert result.requests["num_output_tokens"].tolist() == [5, 6, 7]
    assert states(result)[:3] == [
        ("a", "up", 0.0, 3.5),
        ("a", "failed", 3.5, 7.5),
        ("a", "up", 7.5, 8.5),
    ]
    summary = result.summary
    assert summary["num_lost_visits"] == summary["num_retried_visits"] == 2
    assert summary["lost_kv_tokens"] == (10 + 3 - 1) + (30 + 2 - 1)
    assert (summary["num_client_failures"], summary["num_lost"]) == (1, 0)
    assert summary["mean_clients_up"] == pytest.approx((3.5 + 1.0 + 8.5) / 8.5)


def test_without_a_spare_they_wait_until_it_is_repaired_and_started():
    lifecycle = Lifecycle(
        failures=(Failures(clients=("a",), at=(3.5,), repair=4.0),), start_up=StartUp(time=2.0)
    )
    result = run(lifecycle, lengths=((10, 5, 0.0),), clients=[engine("a")])
    assert times(result) == [[1.0, 2.0, 3.0, 10.5, 11.5]]
    assert [state for _, state, _, _ in states(result)] == ["up", "failed", "starting", "up"]


def test_who_waits_at_the_gateway_gives_up_at_its_limit():
    scenario = small(
        workload={"timeout": "2 s"},
        lifecycle={"failures": [{"clients": "llm", "at": "0 s", "repair": "60 s"}]},
    )
    result = simulate(scenario)
    assert set(result.requests["status"]) == {"timed_out"}
    assert result.requests["e2el"].tolist() == pytest.approx([2.0] * 60)


@pytest.mark.parametrize(
    ("at", "on_failure", "statuses", "reason"),
    [
        ((3.5,), OnFailure(policy="fail"), ["lost", "finished", "lost"], "a: failed while it had"),
        (
            (1.5, 3.5, 4.5),
            OnFailure(max_retries=1),
            ["lost", "lost", "lost"],
            "after 1 retries else",
        ),
    ],
)
def test_a_request_is_lost_where_nobody_tries_again(at, on_failure, statuses, reason):
    clients = ("a",) if on_failure.policy == "fail" else ("a", "b")
    failures = (Failures(clients=clients, at=at, repair=0.5),)
    result = run(Lifecycle(failures=failures, on_failure=on_failure))
    assert result.requests["status"].tolist() == statuses
    assert reason in result.requests["reason"].tolist()[0]
    assert result.summary["num_lost"] == result.summary["failed"] == statuses.count("lost")


def test_users_may_send_again_what_was_lost():
    workload = Workload.from_lists([10], [5], [0.0])
    lifecycle = Lifecycle(
        failures=(Failures(clients=("a",), at=(2.5,), repair=1.0),),
        on_failure=OnFailure(policy="fail"),
    )
    again = replace(workload, retries=Retries(backoff=0.5, jitter=0.0, on=("lost",)))
    result = run(lifecycle, workload=again)
    assert result.requests["num_attempts"].tolist() == [2]
    assert times(result) == [[4.0, 5.0, 6.0, 7.0, 8.0]]


def test_failures_for_good_leave_a_reason():
    result = run(fails("a", "b"))
    assert set(result.requests["status"]) == {"rejected"}
    assert all(
        "have failed or left for good: a, b" in reason for reason in result.requests["reason"]
    )


def test_workers_fail_at_once_and_their_visits_go_to_others():
    workers = [SequentialClient(f"w{k}", serves=["preprocess"], base_time=2.0) for k in range(2)]
    workload = Workload.from_lists([10, 10], [1, 1], [0.0, 0.0])
    workload = replace(workload, pipeline=template([Preprocess(num_tokens=1), Prefill, Decode]))
    result = run(
        fails("w0", at=1.0, repair=9.0), clients=[*workers, engine("a")], workload=workload
    )
    assert sorted(result.requests["finished_at"]) == [3.0, 5.0]


def test_a_prefill_client_takes_the_entries_with_it_that_it_kept():
    """The link needs 10 s for them; at 3.5 s they are lost, and the prompt is computed again."""
    clients = [
        engine("p0", role="prefill", kv_block_bytes=1.0),
        engine("p1", role="prefill", kv_block_bytes=1.0),
        engine("d", role="decode", kv_block_bytes=1.0),
    ]
    network = Link(bandwidth=0.1)
    result = run(
        fails("p0", repair=50.0), lengths=((10, 3, 0.0),), clients=clients, network=network
    )
    first, second, third = times(result)[0]
    assert first == 1.0
    assert second == 4.5  # the first token is not emitted again: this is the next one
    assert third > 14.5
    assert result.summary["lost_kv_tokens"] == 10
    assert result.transfers["source"].tolist() == ["p1"]


@pytest.mark.parametrize("policy", ["retry", "resume"])
def test_entries_that_a_prefill_client_still_keeps_are_there_for_another(policy):
    """d0 has memory for one; the second one waits there, its entries at p, when d0 fails."""
    clients = [
        engine("p", role="prefill", kv_block_bytes=1.0),
        engine("d0", role="decode", kv_block_bytes=1.0, num_gpu_blocks=2),
        engine("d1", role="decode", kv_block_bytes=1.0),
    ]
    lifecycle = Lifecycle(
        failures=(Failures(clients=("d0",), at=(3.5,), repair=50.0),),
        on_failure=OnFailure(policy=policy),
    )
    result = run(
        lifecycle,
        lengths=((10, 9, 0.0), (20, 3, 0.0)),
        clients=clients,
        network=Link(bandwidth=1e9),
        router=FirstCandidate(),
    )
    first, second = times(result)
    assert first[:4] == pytest.approx([1.0, 2.0, 3.0, 4.5])
    assert second == pytest.approx([1.0, 4.5, 5.5 if policy == "resume" else 6.5])
    num_again = 13 if policy == "resume" else 13 + 21
    assert result.clients["num_prefill_tokens"][0] == 10 + 20 + num_again
    assert result.summary["lost_kv_tokens"] == (12 if policy == "resume" else 12 + 20)


class FirstCandidate:
    """Sends all to the first client that is up."""

    def choose(self, request, stage, candidates):
        return candidates[0].client_id


def test_a_node_takes_all_its_clients_with_it():
    network = Fabric(topology="hgx-h100", nodes=2)
    clients = [engine(f"c{k}", tensor_parallel_size=1) for k in range(3)]
    for client, place in zip(clients, ("node0", "node0", "node1"), strict=True):
        client.place = place
    lifecycle = Lifecycle(failures=(Failures(node="node0", at=(2.5,), repair=3.0),))
    lengths = [(10, 4, 0.0)] * 3
    result = run(lifecycle, lengths=lengths, clients=clients, network=network)
    failed = {name for name, state, _, _ in states(result) if state == "failed"}
    assert failed == {"c0", "c1"}
    assert set(result.stages["client"][result.stages["queued_at"] == 2.5]) <= {"c2"}


def over_a_cable(*failures: Failures, topology: str = "pcie-l4") -> float:
    """One prompt goes from node0 to node1, 5e9 bytes from 1 s on. Return when it is there."""
    clients = [
        engine("p", role="prefill", kv_block_bytes=5e9, block_size=16),
        engine("d", role="decode", kv_block_bytes=5e9, block_size=16),
    ]
    clients[0].place, clients[1].place = "node0/gpu0", "node1/gpu0"
    network = Fabric(topology=topology, nodes=4, nodes_per_rack=2, nic=5e9, uplink=1e10)
    result = run(
        Lifecycle(failures=failures), lengths=((10, 3, 0.0),), clients=clients, network=network
    )
    (row,) = result.transfers.to_dict("records")
    assert result.requests["status"].tolist() == ["finished"]
    assert (row["start"], row["num_bytes"]) == (1.0, 5e9)
    return row["end"]


NIC = ("node0/nic0", "rack0/leaf")


def test_transfer_waits_while_its_only_link_is_down():
    """It needs 1 s, of which it has 0.5 when the link is down for 3 s; both ways are down."""
    undisturbed = over_a_cable()
    assert undisturbed == pytest.approx(2.0, abs=1e-4)
    late = Failures(link=NIC, at=(1.5,), repair=3.0)
    for failures, more in (
        ([late], 3.0),
        ([replace(late, link=NIC[::-1])], 3.0),
        ([replace(late, at=(0.5,))], 2.5),
        ([late, Failures(link=NIC[::-1], at=(2.0,), repair=4.0)], 4.5),  # down already
    ):
        assert over_a_cable(*failures) == pytest.approx(undisturbed + more, rel=1e-12)


def test_a_transfer_goes_round_link_that_is_down():
    """The second NIC is reached through the host: more hops, the same bytes a second."""
    undisturbed = over_a_cable(topology="hgx-h100")
    for repair in (None, 3.0):
        failure = Failures(link=NIC, at=(1.5,), repair=repair)
        assert undisturbed < over_a_cable(failure, topology="hgx-h100") < undisturbed + 1e-4


def test_links_fail_at_random_and_bytes_go_while_they_are_up():
    failure = Failures(link=NIC, mtbf=0.1, mttr=0.4)
    changes = failure.changes(Streams(0).generator("failures 0: link"))
    now, left = 1.0, over_a_cable() - 1.0
    up = 0.0
    while left > 0.0:
        fails, repaired = next(changes).time, next(changes).time
        can_send = max(fails - max(up, now), 0.0)
        end = max(up, now) + left
        left, up = left - can_send, repaired
    assert over_a_cable(failure) == pytest.approx(end, rel=1e-9)


test_links_that_are_not_there_or_cut_clients_off_for_good_are_refused = refused(
    lambda link: over_a_cable(Failures(link=link, at=(1.5,))),
    (("node0/nic0", "leaf"), "failures.0.link must be the ends of a link: .* no place 'leaf'"),
    (("node0/nic0", "node1/nic0"), "no link between node0/nic0 and node1/nic0; node0/nic0 is"),
    (NIC, "must leave a route from node0/gpu0 to node1/gpu0, .* for good; give the time"),
)


def test_links_that_together_cut_clients_off_for_good_are_refused():
    nics = [(f"node0/nic{k}", "rack0/leaf") for k in range(8)]
    failures = [Failures(link=nic, at=(1.5,)) for nic in nics]
    assert over_a_cable(*failures[:7], topology="hgx-h100") < 2.1
    with pytest.raises(ScenarioError, match=r"failures\.0\.link must leave a route"):
        over_a_cable(*failures, topology="hgx-h100")


@pytest.mark.parametrize(
    ("prompt", "decode", "num_new", "expected"),
    [(10, 4, 0, None), (10, 4, 1, (11, 1, 3)), (10, 4, 4, (14, 4, 0))],
)
def test_what_is_left_of_an_answer(prompt, decode, num_new, expected):
    stages = (Prefill(num_prompt_tokens=prompt), Decode(num_tokens=decode))
    found = rest(stages, None, num_new, 7.0)
    if expected is None:
        assert found == stages
        return
    num_prompt, num_before, num_left = expected
    again = Recomputation(num_prompt_tokens=num_prompt, num_before=num_before, last_token_at=7.0)
    assert found == (again, *([Decode(num_tokens=num_left)] if num_left else []))
    assert rest(found, None, 0) == found
    if num_left:
        twice = rest(found, None, 1, 9.0)[0]
        assert (twice.num_prompt_tokens, twice.num_before) == (num_prompt + 1, num_before + 1)


def test_what_is_left_of_decode_after_hand_over():
    kv = HeldKv(
        "p",
        lambda: None,
        num_tokens=10,
        num_prompt_tokens=10,
        num_output_tokens=1,
        last_token_at=3.0,
    )
    again, left = rest((Decode(num_tokens=4),), kv)
    assert (again.num_prompt_tokens, again.num_before, again.last_token_at) == (11, 1, 3.0)
    assert left == Decode(num_tokens=3)


# --- energy and cost --------------------------------------------------------------------------


def test_who_is_away_draws_nothing_and_is_paid_for_only_while_reserved():
    """One GPU at 3.6 $/h: 10 s up and then away; the run takes 100 s on the other one."""
    clients = [llm_client(name, model="llama-3.1-8b", gpu="h100-sxm") for name in ("a", "b")]
    for client in clients:
        machine = replace(client.traits.machine, price=3.6)
        client.traits = replace(client.traits, machine=machine)
    workload = Workload.from_lists([10, 10], [2, 2], [20.0, 100.0])
    options = {"clients": clients, "workload": workload, "cost": CostOptions()}
    failed = run(fails("a", at=10.0), **options)
    drained = run(Lifecycle(drains=(Drain(clients=("a",), at=10.0),)), **options)
    end = failed.requests["finished_at"].max()
    idle = clients[0].traits.machine.idle_watts
    for result in (failed, drained):
        assert result.clients["energy"][0] == pytest.approx(10.0 * idle)
    assert failed.clients["cost"].tolist() == pytest.approx([end * 1e-3, end * 1e-3])
    assert drained.clients["cost"].tolist() == pytest.approx([10.0 * 1e-3, end * 1e-3])
    assert failed.summary["cost_usd"] == pytest.approx(2 * end * 1e-3)
    assert drained.summary["cost_usd"] == pytest.approx((end + 10.0) * 1e-3)


# --- start-up ---------------------------------------------------------------------------------

FOLDER = "measurements/model-loading/serverlessllm"
LLAMA, QWEN, R1 = (
    "meta-llama_Llama-3.1-8B-Instruct",
    "Qwen_Qwen3-32B",
    "deepseek-ai_DeepSeek-R1-Distill-Qwen-32B",
)
NVME, PCIE = 29.4e9, 64e9


# mean seconds of thirty loads
MEASURED = {
    LLAMA: {"safetensors": 4.4365, "sllm": 0.6784},
    QWEN: {"safetensors": 20.5918, "sllm": 3.2159},
    R1: {"safetensors": 19.0898, "sllm": 3.2204},
}


@pytest.mark.parametrize("form", ["safetensors", "sllm"])
@pytest.mark.parametrize("model", MEASURED)
def test_these_are_the_load_times_that_were_measured(shared, model, form):
    path = shared(f"{FOLDER}/h100_2025_random_{model}_{form}_30_random.json")
    rows = [row["loading_time"] for row in json.loads(path.read_text())]
    assert sum(rows) / len(rows) == pytest.approx(MEASURED[model][form], abs=1e-4)


def test_load_times_are_fitted_on_the_8b_model():
    num_bytes = load_model("llama-3.1-8b").weight_bytes_per_rank(1)
    assert num_bytes / MEASURED[LLAMA]["safetensors"] == pytest.approx(SAFETENSORS_RATE, rel=0.005)
    of_storage = num_bytes / MEASURED[LLAMA]["sllm"] / NVME
    assert of_storage == pytest.approx(SLLM_EFFICIENCY, rel=0.005)


@pytest.mark.parametrize("form", ["safetensors", "sllm"])
@pytest.mark.parametrize(("model", "name"), [(QWEN, "qwen3-32b"), (R1, "qwen2.5-32b")])
def test_load_times_of_32b_models_are_within_25_percent(form, model, name):
    """Nothing of these was fitted."""
    num_bytes = load_model(name).weight_bytes_per_rank(1)
    seconds = StartUp(storage=NVME, format=form).load_seconds(num_bytes, 1, PCIE)
    assert seconds == pytest.approx(MEASURED[model][form], rel=0.25)


def test_the_slowest_part_of_the_way_counts():
    slow_disk = StartUp(storage=1e9)
    assert slow_disk.load_seconds(16e9, 1, PCIE) == 16.0
    assert slow_disk.load_seconds(16e9, 8, PCIE) == 16.0
    readers = StartUp(storage=NVME)
    assert readers.load_seconds(16e9, 4, PCIE) == pytest.approx(16 / (4 * 3.62))
    assert StartUp(format="sllm").load_seconds(16e9, 1, PCIE) == pytest.approx(16 / 64 / 0.806)


def test_an_engine_starts_with_its_own_weights():
    client = llm_client("a", model="llama-3.1-8b", gpu="h100-sxm")
    start = StartUp(storage=NVME, compilation=10.0, graph_capture=5.0, other=1.0)
    assert start.seconds(client.traits.machine, "a") == pytest.approx(16.06 / 3.62 + 16.0, rel=1e-3)


# --- drains and autoscaling ---------------------------------------------------------------------


SCALED = Autoscaling(
    clients=("a", "b"), policy=Schedule(at=(0.0, 11.0), clients=(1, 2)), interval=4.0
)


@pytest.mark.parametrize(
    ("lifecycle", "told"),
    [
        (fails("a", at=1000.0), "lifecycle.failures.0 at 1000 s: the run ended at 8 s"),
        (
            Lifecycle(failures=(Failures(clients=("a",), at=(1.0, 20.0, 30.0), repair=1.0),)),
            "lifecycle.failures.0 at 20 s and 1 later: the run ended at",
        ),
        (
            Lifecycle(failures=(Failures(clients=("a",), mtbf=1e9, mttr=1.0),)),
            "lifecycle.failures.0 at random, after 1e+09 s on average: the run",
        ),
        (Lifecycle(drains=(Drain(clients=("a",), at=50.0),)), "lifecycle.drains.0 at 50 s: the"),
        (Lifecycle(autoscaling=(SCALED,)), "lifecycle.autoscaling.0.policy at 11 s: the run"),
        (
            Lifecycle(autoscaling=(replace(SCALED, interval=60.0),)),
            "lifecycle.autoscaling.0 at its first look, at 60 s: the run",
        ),
        (fails("a", at=3.5), None),
        (Lifecycle(failures=(Failures(clients=("a",), mtbf=1.0, mttr=1.0),)), None),
    ],
)
def test_what_never_came_is_told(lifecycle, told):
    found = [each for each in run(lifecycle).warnings if each.kind is NEVER_CAME]
    assert [str(each)[: len(told or "")] for each in found] == ([told] if told else [])


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (ScheduledArrivals(at=(0.0, 3600.0), rates=(1.0, 2.0)), "workload.arrivals at 3600 s"),
        (
            DailyArrivals(peak=2.0, low=1.0, peak_at=7200.0, starts_at=3600.0),
            "the peak of workload.arrivals at 3600 s",
        ),
    ],
)
def test_rates_that_never_came_are_told(plan, said):
    workload = Workload.from_lists([10], [5])
    found = run(Lifecycle(), workload=replace(workload, arrivals=plan)).warnings
    (told,) = (str(each) for each in found if each.kind is NEVER_CAME)
    assert told.startswith(f"{said}: the run ended at ")


@pytest.mark.parametrize(("length", "end"), [(6, 8.0), (20, 20.5)])
def test_a_drained_client_finishes_what_it_has(length, end):
    """`a` ends its two requests at 8 s; a router in turn watches no client."""
    lengths = ((10, 5, 0.0), (20, length, 0.5), (30, 7, 1.0))
    result = run(Lifecycle(drains=(Drain(clients=("a",), at=3.5, back=26.5),)), lengths=lengths)
    assert times(result) == times(run(Lifecycle(), lengths=lengths))
    off = [("a", "off", 8.0, end)] if end > 8.0 else []
    assert states(result) == [
        ("a", "up", 0.0, 3.5),
        ("a", "draining", 3.5, 8.0),
        *off,
        ("b", "up", 0.0, end),
    ]


def test_prefill_client_drains_until_its_entries_are_fetched():
    clients = [
        engine("p", role="prefill", kv_block_bytes=1.0),
        engine("d", role="decode", kv_block_bytes=1.0),
    ]
    lifecycle = Lifecycle(drains=(Drain(clients=("p",), at=0.5),))
    result = run(lifecycle, lengths=((10, 3, 0.0),), clients=clients, network=Link(bandwidth=1.0))
    assert states(result)[1] == ("p", "draining", 0.5, 2.0)
    assert result.requests["status"].tolist() == ["finished"]


def test_the_time_of_clients_counts_whoever_else_looks_at_them():
    """One of two is up, and busy from 1.5 s on; at 4 s it was for more than half of the time."""
    policy = Utilisation(target=0.5)
    options = {"min": 1, "interval": 4.0, "cool_down": 0.0}
    lifecycle = Lifecycle(autoscaling=(Autoscaling(clients=("a", "b"), policy=policy, **options),))
    result = run(lifecycle, lengths=((10, 12, 1.5),))
    assert ("b", "up", 4.0, 13.5) in states(result)


def scaled(policy, **more: object) -> Lifecycle:
    options = {"min": 0, "interval": 1.0, "cool_down": 0.0} | more
    return Lifecycle(
        autoscaling=(Autoscaling(clients=("a", "b"), policy=policy, **options),),
        start_up=StartUp(time=1.5),
    )


def test_the_first_request_starts_client_where_nobody_is():
    result = run(scaled(QueueLength(target=10)), lengths=((10, 2, 0.25), (10, 2, 30.25)))
    assert times(result) == [[2.75, 3.75], [32.75, 33.75]]
    assert [(name, state) for name, state, _, _ in states(result) if state == "starting"] == [
        ("a", "starting"),
        ("a", "starting"),
    ]


def test_a_cool_down_keeps_clients():
    lengths = ((10, 2, 0.25), (10, 2, 30.25))
    result = run(scaled(QueueLength(target=10), cool_down=60.0), lengths=lengths)
    assert times(result) == [[2.75, 3.75], [31.25, 32.25]]


def test_a_failed_client_is_replaced_by_one_that_is_off():
    policy = QueueLength(target=100)
    lifecycle = Lifecycle(
        failures=(Failures(clients=("a",), at=(2.5,), repair=60.0),),
        autoscaling=(Autoscaling(clients=("a", "b"), policy=policy, min=1),),
        start_up=StartUp(time=2.0),
    )
    result = run(lifecycle, lengths=((10, 5, 0.0),))
    assert times(result) == [[1.0, 2.0, 5.5, 6.5, 7.5]]


def view(**known: object) -> GroupView:
    given = {
        "now": 0.0,
        "num_up": 2,
        "num_starting": 0,
        "num_waiting": 0,
        "num_running": 0,
        "busy": nan,
        "kv_usage": nan,
        "attainment": nan,
    }
    return GroupView(**(given | known))


@pytest.mark.parametrize(
    ("policy", "known", "wanted"),
    [
        (QueueLength(target=4), {"num_waiting": 5, "num_running": 4}, 3),
        (QueueLength(target=4), {"num_running": 8}, 2),
        (QueueLength(target=4, counts="waiting"), {"num_waiting": 5, "num_running": 40}, 2),
        (Utilisation(target=0.5), {"busy": 1.0}, 4),
        (Utilisation(target=0.5), {"busy": 0.54}, 2),
        (Utilisation(target=0.5), {"busy": 0.1}, 1),
        (Utilisation(target=0.5), {}, 2),
        (Utilisation(target=0.5, of="kv_cache"), {"busy": 1.0, "kv_usage": 0.25}, 1),
        (SloAttainment(), {"attainment": 0.9}, 3),
        (SloAttainment(step=2), {"attainment": 0.9}, 4),
        (SloAttainment(), {"attainment": 0.9, "num_starting": 1}, 3),
        (SloAttainment(), {"attainment": 0.97}, 2),
        (SloAttainment(), {"attainment": 1.0}, 1),
        (SloAttainment(), {"attainment": 1.0, "num_waiting": 1}, 2),
        (SloAttainment(), {}, 2),
        (Schedule(at=(0, 60), clients=(1, 5)), {"now": 59.9}, 1),
        (Schedule(at=(0, 60), clients=(1, 5)), {"now": 60.0}, 5),
        (Schedule(at=(0, 60), clients=(1, 5), period=100), {"now": 110.0}, 1),
    ],
)
def test_what_policies_want(policy, known, wanted):
    assert policy.wanted(view(**known)) == wanted


@pytest.mark.parametrize(
    "policy",
    [
        {"type": "queue_length", "target": 2},
        {"type": "utilisation", "target": 0.4},
        {"type": "slo_attainment"},
        {"type": "schedule", "at": ["0 s", "3 s"], "clients": [1, 3]},
    ],
    ids=lambda policy: policy["type"],
)
def test_every_policy_starts_clients_under_load(policy):
    group = {"clients": "llm", "policy": policy, "interval": "1 s"}
    scenario = small(
        workload={"arrivals": {"type": "poisson", "rate": "30 /s"}},
        clients=[{"name": "llm", "gpu": "l40s", "count": 3}],
        slo={"ttft": "200 ms"},
        lifecycle={"autoscaling": group, "start_up": {"time": "1 s"}},
    )
    result = simulate(scenario)
    assert result.summary["num_client_starts"] >= 2
    assert result.summary["completed"] == 60


@pytest.mark.parametrize("start_up", [None, StartUp(time=0.0), StartUp(time=0.5)])
def test_starts_are_counted_however_short_they_are(start_up):
    result = run(replace(fails("a", repair=1.0), start_up=start_up))
    assert result.summary["num_client_failures"] == 1
    assert result.summary["num_client_starts"] == 1


# --- what is refused --------------------------------------------------------------------------


def small(**said: object) -> Scenario:
    data = {
        "model": "llama-3.1-8b",
        "workload": of_profile(60, "10 /s", name="azure-conv-2023"),
        "clients": [{"name": "llm", "gpu": "l40s", "count": 2}],
    }
    for key, value in said.items():
        data[key] = data[key] | value if isinstance(data.get(key), dict) else value
    return Scenario.from_dict(data)


QUEUE = {"type": "queue_length", "target": 4}


test_nonsense_is_refused = refused(
    lambda lifecycle: small(lifecycle=lifecycle),
    ({"failures": [{"at": "1 s"}]}, "the failure would affect no client"),
    ({"failures": [{"clients": [], "at": "1 s"}]}, "the failure would affect no client"),
    ({"failures": [{"clients": "lm", "at": "1 s"}]}, "failures.0.clients: no client .* 'llm'"),
    ({"failures": [{"clients": "llm"}]}, "failures.0.at: must be given, or mtbf, got neither"),
    ({"failures": [{"clients": "llm", "mtbf": "1 s"}]}, "mttr: must be given with mtbf"),
    ({"failures": [{"clients": "llm", "at": "1 s", "repair": "0 s"}]}, "repair: must be .* > 0"),
    ({"failures": [{"clients": "llm", "at": "-1 s"}]}, "at: must be finite and >= 0 s"),
    ({"failures": [{"node": "node0", "at": "1 s"}]}, "without network.topology"),
    ({"failures": [{"link": ["a", "b"], "at": "1 s"}]}, "without network.topology"),
    ({"failures": [{"link": ["a"], "at": "1 s"}]}, "link: must be the two ends of a cable"),
    ({"failures": [{"link": [], "at": "1 s"}]}, "the failure would affect no client"),
    (
        {"failures": [{"link": ["a", "b"], "clients": "llm", "at": "1 s"}]},
        "clients: must be given, or node, or link, got clients and link",
    ),
    ({"drains": [{"clients": [], "at": "1 s"}]}, "drains.0.clients: must have at least one"),
    (
        {"autoscaling": {"clients": "llm", "policy": QUEUE, "min": 2, "max": 1}},
        "min: must be <= max \\(1\\), got 2",
    ),
    (
        {"autoscaling": {"clients": "llm", "policy": QUEUE, "min": 3}},
        "min: must be <= 2, the clients of the group",
    ),
    ({"autoscaling": {"clients": "llm", "policy": QUEUE, "interval": "0 s"}}, "interval: must be"),
    (
        {"autoscaling": {"clients": "llm", "policy": {"type": "queue_length", "target": 0}}},
        "target: must be",
    ),
    ({"autoscaling": {"clients": "llm", "policy": "queue"}}, "no autoscaler named 'queue'"),
    ({"autoscaling": {"clients": "llm", "policy": "slo_attainment"}}, "slo: must have a limit"),
    ({"start_up": {"time": "1 s"}}, "start_up: has no effect"),
    ({"on_failure": {"policy": "fail"}}, "on_failure: has no effect"),
    ({}, "lifecycle: has no effect"),
)


test_nonsense_that_shows_with_the_clients_is_refused = refused(
    lambda lifecycle: simulate(small(lifecycle=lifecycle)),
    (
        {
            "failures": [{"clients": "llm", "mtbf": "10 s", "mttr": "1 s"}],
            "start_up": {"time": "20 s"},
        },
        "mtbf must be >= the 20 s that llm-0 takes to start, got 10.0 s",
    ),
    (
        {
            "autoscaling": [
                {"clients": "llm", "policy": QUEUE},
                {"clients": "llm-0", "policy": QUEUE},
            ]
        },
        "llm-0 must be in one group, got 2",
    ),
)


def test_one_message_and_exit_code_2(tmp_path, capsys, monkeypatch):
    path = tmp_path / "s.yaml"
    path.write_text(
        "model: llama-3.1-8b\n"
        "workload:\n"
        "  lengths: {type: profile, num_requests: 5}\n"
        "  arrivals: {type: poisson, rate: 1 /s}\n"
        "clients: [{name: llm, gpu: l40s}]\n"
        "lifecycle: {failures: [{clients: [], at: 1 s}]}\n"
    )
    monkeypatch.setattr("sys.argv", ["mist", "run", str(path)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err.count("the failure would affect no client") == 1


def test_a_group_must_serve_the_same_stages():
    clients = [
        engine("p", role="prefill", kv_block_bytes=1.0),
        engine("d", role="decode", kv_block_bytes=1.0),
    ]
    group = Autoscaling(clients=("p", "d"), policy=QueueLength(target=1))
    with pytest.raises(
        ScenarioError, match="must serve the same stages and model, got p: prefill; d: decode"
    ):
        run(Lifecycle(autoscaling=(group,)), clients=clients, network=Link(bandwidth=1.0))


def test_the_resolved_scenario_is_the_same_again():
    scenario = small(
        lifecycle={
            "failures": [{"clients": "llm-0", "at": ["1 s", "3 s"], "repair": "1 s"}],
            "autoscaling": [{"clients": "llm", "policy": QUEUE}],
            "start_up": {"time": {"type": "exponential", "mean": "2 s"}},
        }
    )
    again = Scenario.from_yaml(scenario.resolved())
    assert again == scenario
    assert simulate(again).requests.equals(simulate(scenario).requests)


def test_results_have_states_and_nothing_changes_without_any(tmp_path):
    result = run(fails("a", repair=4.0), slo=Slo(ttft=1.0))
    assert (result.save(tmp_path / "out") / "client_states.parquet").exists()
    plain = run(None)
    assert not (plain.save(tmp_path / "plain") / "client_states.parquet").exists()
    assert "num_lost" not in plain.summary
    assert "mean_clients_up" not in plain.summary
    assert times(plain) == times(run(Lifecycle()))
