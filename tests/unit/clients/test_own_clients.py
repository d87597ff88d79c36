"""Clients of one's own that hand over and take over KV entries, as engines do."""

import importlib.util
from dataclasses import replace
from types import SimpleNamespace

import pytest

from mist_sim import registry as registry_module
from mist_sim.clients import CLIENTS, Client
from mist_sim.clients.traits import ClientTraits, KvForm
from mist_sim.core.hand_over import HandOver
from mist_sim.core.request import Request
from mist_sim.environment import Environment
from mist_sim.errors import ScenarioError
from mist_sim.lifecycle import Failures, Lifecycle, OnFailure
from mist_sim.metrics import CostOptions
from mist_sim.network import Link
from mist_sim.simulation import Simulation
from mist_sim.stages import completion
from mist_sim.testing import check_client
from mist_sim.traces import Rows, TraceArrivals, TraceRow, Workload
from tests.conftest import ROOT
from tests.reference.apart import engine, link


def example(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / f"examples/{name}.py")
    module = importlib.util.module_from_spec(spec)
    known = dict(CLIENTS)
    spec.loader.exec_module(module)
    for added in set(CLIENTS) - set(known):
        del CLIENTS._classes[added]  # a test says what is registered
    return module


STREAMER = example("own_decode_client").Streamer
ONE_BY_ONE = example("own_powered_client").OneByOne
SMALL = KvForm(block_size=4, block_bytes=1000.0)


def streamer(name: str = "own", **options) -> Client:
    """Blocks of 4 tokens and 1,000 bytes, as the engines of these tests have; 1/32 s a token."""
    client = STREAMER(name, "llama-3.1-8b", seconds_per_token=1 / 32, **options)
    client.traits = replace(client.traits, entries=SMALL)
    return client


def run(rows: list[tuple[float, int, int]], *clients: Client, **parts):
    workload = Workload(Rows([TraceRow(p, o, t) for t, p, o in rows]), TraceArrivals())
    return Simulation(clients=clients, workload=workload, network=link(), **parts).run()


def test_entries_come_over_the_network_and_tokens_follow():
    """8 tokens are 2 blocks: 1/32 s on the link and 1/128 s of latency after a step of 1/8 s."""
    result = run([(0.0, 8, 3)], engine("prefill"), streamer())
    there = 1 / 8 + 2 / 64 + 1 / 128
    (move,) = result.transfers.to_dict("records")
    assert (move["source"], move["destination"], move["num_tokens"]) == ("prefill", "gpu", 8)
    assert (move["num_bytes"], move["start"], move["end"]) == (2000.0, 1 / 8, there)
    assert result.requests["ttft"].tolist() == [1 / 8]
    assert result.requests["finished_at"].tolist() == [there + 2 / 32]
    assert result.summary["total_output_tokens"] == 3


def test_who_waits_for_a_slot_leaves_its_entries_where_they_are():
    result = run([(0.0, 8, 3), (0.0, 8, 3)], engine("prefill"), streamer(slots=1))
    there = 1 / 8 + 2 / 64 + 1 / 128
    first_done = there + 2 / 32
    assert result.transfers["start"].tolist() == [1 / 8, first_done]


@pytest.mark.parametrize("prompts", [True, False])
def test_requests_of_client_that_fails_are_served_again(prompts):
    """The link takes 1/32 s: at 1/8 + 1/64 s the entries are on their way."""
    names = ("prefill",) if prompts else ("own",)
    lives = Lifecycle(
        failures=(Failures(clients=names, at=(1 / 8 + 1 / 64,), repair=1.0),),
        on_failure=OnFailure(),
    )
    result = run([(0.0, 8, 3)], engine("prefill"), streamer(), lifecycle=lives)
    assert result.summary["completed"] == 1
    assert result.summary["num_lost_visits"] == 1
    assert result.requests["num_output_tokens"].tolist() == [3]


def test_a_prefill_client_of_ones_own_keeps_entries_until_they_are_copied():
    machine = engine("decode").traits.machine
    assert machine is None
    own = ONE_BY_ONE("own", SimpleNamespace(model=SimpleNamespace(name="m", kv_cache_dtype="auto")))
    own.traits = replace(own.traits, machine=None, model="llama-3.1-8b", entries=SMALL)
    own.tokens_per_second = 64.0
    result = run([(0.0, 8, 3), (0.0, 8, 3)], own, engine("decode"))
    assert result.requests["ttft"].tolist() == [1 / 8, 2 / 8]
    assert result.transfers["start"].tolist() == [1 / 8, 2 / 8]
    assert result.steps.query("client == 'own'")["num_prefill_tokens"].tolist() == [8, 8]
    assert list(own.held_kv) == []


def test_entries_that_are_kept_are_released_once():
    class Keeper(Client):
        def accept(self, visit): ...

        def abort(self, visit): ...

    released = []
    keeper = Keeper("keeper", ClientTraits.serving(["prefill"]))
    keeper.start(Environment(), 0, SimpleNamespace(record_visit=lambda *_: None))
    stages = completion(8, 3)[:1]
    keeper.serve(Request(0, 0.0, stages), stages, None, True)
    (visit,) = keeper.stays
    keeper.begin(visit)
    keeper.emit_prompt(visit, lambda: released.append(visit))
    keeper.finish(visit)
    assert (visit.num_output_tokens, visit.held_kv.num_tokens) == (1, 8)
    assert not keeper.is_empty
    visit.held_kv.release()
    visit.held_kv.release()
    assert released == [visit]
    assert keeper.is_empty


def test_energy_and_cost_are_those_of_the_steps_and_the_machine():
    from mist_sim import llm_client

    answers = llm_client("answers", gpu="h100-sxm", role="decode")
    own = ONE_BY_ONE("own", answers.traits.machine, tokens_per_second=1000.0)
    workload = Workload(Rows([TraceRow(500, 2, 0.0)]), TraceArrivals())
    result = Simulation(
        clients=[own, answers], workload=workload, network=Link(bandwidth=1e10), cost=CostOptions()
    ).run()
    (row,) = result.clients.query("client == 'own'").to_dict("records")
    machine, end = own.machine, result.requests["finished_at"].iloc[0]
    assert row["busy"] == 0.5
    idle = (end - 0.5) * machine.idle_watts
    assert row["idle_energy"] == pytest.approx(idle, rel=1e-9)
    assert machine.idle_watts * 0.5 < row["energy"] - idle < 0.5 * machine.cluster.gpu.power
    assert row["cost"] == pytest.approx(row["gpu_price"] * end / 3600, rel=1e-9)


def test_the_examples_pass_the_checks_of_their_family():
    from mist_sim import llm_client

    machine = llm_client("llm").traits.machine
    check_client(lambda: STREAMER("own", "llama-3.1-8b"))
    check_client(lambda: ONE_BY_ONE("own", machine))


def test_decode_client_comes_by_entry_point_into_file(mist, tmp_path, monkeypatch):
    point = SimpleNamespace(name="streamer", value="plug:Streamer", load=lambda: STREAMER)
    monkeypatch.setattr(
        registry_module, "offered", lambda group: [point] * group.endswith(".clients")
    )
    monkeypatch.setattr(CLIENTS, "_offers", None)
    monkeypatch.setattr(CLIENTS, "_classes", dict(CLIENTS._classes))
    (tmp_path / "split.yaml").write_text(
        """
model: llama-3.1-8b
workload:
  lengths: {type: profile, num_requests: 50}
  arrivals: {type: poisson, rate: 20 /s}
clients:
  - {name: prompts, gpu: h100-sxm, role: prefill}
  - {name: answers, type: streamer, model: llama-3.1-8b, seconds_per_token: 5 ms, count: 2}
network: {bandwidth: 100 Gb/s}
"""
    )
    code, out, err = mist("run", "split.yaml", "--json", "-q")
    assert code == 0, err
    assert '"num_hand_overs": 50' in out


def test_role_without_network_is_refused_for_any_client():
    workload = Workload(Rows([TraceRow(8, 3, 0.0)]), TraceArrivals())
    with pytest.raises(ScenarioError, match=r"network must be given.*own \(decode\)"):
        Simulation(clients=[engine("prefill"), streamer()], workload=workload)


def test_client_that_reserves_nothing_is_not_pushed_to():
    with pytest.raises(ScenarioError, match="must be pull, since own reserves no memory"):
        run([(0.0, 8, 3)], engine("prefill"), streamer(), hand_over=HandOver(transfer="push"))


def test_parameter_is_not_called_like_what_run_sets():
    from dataclasses import dataclass

    @dataclass(eq=False)
    class Shadow(Client):
        name: str
        streams: int = 3

        def __post_init__(self):
            super().__init__(self.name, ["rag"])

        def accept(self, visit): ...

        def abort(self, visit): ...

    workload = Workload(Rows([TraceRow(8, 3, 0.0)]), TraceArrivals())
    with pytest.raises(ScenarioError, match="Shadow must not have a field 'streams'"):
        Simulation(clients=[Shadow("s")], workload=workload)
