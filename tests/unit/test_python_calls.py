"""Calls from Python: what is natural is taken; what is not is refused at the call, in words."""

import re
from pathlib import Path

import pytest

import mist_sim as mist
from mist_sim.core.result_warnings import LIMIT_IN_SECONDS
from mist_sim.core.views import COUNTS, ClientState
from mist_sim.errors import ScenarioError
from mist_sim.lifecycle import Autoscaling, Drain, Failures, StartUp
from mist_sim.network import Link
from mist_sim.traces.retries import Retries
from tests.reference.scenarios import of_profile
from tests.refusals import refused

DATA = {
    "model": "llama-3.1-8b",
    "workload": of_profile(5, "5 /s"),
    "clients": [{"name": "llm", "gpu": "h100-sxm"}],
}


def client(name="llm"):
    return mist.llm_client(name, gpu="h100-sxm")


def jobs(number=6):
    return mist.Workload.from_lists([100] * number, [10] * number, [0.1 * k for k in range(number)])


def run(**said):
    return mist.Simulation(**{"clients": [client()], "workload": jobs(), **said}).run()


def test_simulate_takes_what_is_a_scenario(tmp_path):
    scenario = mist.Scenario.from_dict(DATA)
    file = tmp_path / "mine.yaml"
    file.write_text(scenario.resolved(), encoding="utf-8")
    expected = mist.simulate(scenario).summary
    for said in (DATA, file, str(file)):
        assert mist.simulate(said).summary == expected
    assert mist.simulate("demo").summary["completed"] == 2_000
    with pytest.raises(ScenarioError, match="no file or preset|demmo"):
        mist.simulate("demmo")
    for wrong in (5, None, [DATA]):
        with pytest.raises(
            ScenarioError, match="scenario must be a Scenario, the name of a preset"
        ):
            mist.simulate(wrong)


@pytest.mark.parametrize("call", [mist.replicate, lambda said: mist.study(said, vary={})])
@pytest.mark.parametrize("said", ["demo", Path("demo.yaml")])
def test_studies_say_how_a_name_is_read(call, said):
    with pytest.raises(ScenarioError, match=re.escape("Scenario.load(...) reads one")):
        call(said)


def test_one_client_is_a_list_of_one():
    assert run(clients=client()).summary == run().summary


@pytest.mark.parametrize("name", ["least_outstanding", "power_of_two", "random"])
def test_a_router_may_be_named(name):
    two = lambda: [client("a"), client("b")]  # noqa: E731
    named = run(clients=two(), router=name)
    made = run(clients=two(), router=mist.ROUTERS[name]())
    assert named.summary == made.summary


test_a_simulation_says_what_it_expects = refused(
    lambda said: run(**said),
    ({"router": "least_oustanding"}, "no router named .* did you mean 'least_outstanding'"),
    ({"router": "length_aware"}, r"give the router itself, LengthAwareRouter\(...\)"),
    ({"router": mist.LeastOutstandingRouter}, "router must be a router, with choose"),
    ({"router": 3}, "router must be a router, with choose"),
    ({"routers": {"decode": 3}}, r"routers\['decode'\] must be a router"),
    ({"workload": [1]}, "workload must be a Workload"),
    ({"slo": {"ttft": 0.5}}, r"slo must be of type Slo, such as Slo\(ttft=0.5\)"),
)


test_units_are_for_files = refused(
    lambda make: make(),
    (lambda: mist.PoissonArrivals(rate="5 /s"), "rate must be a number, got '5 /s', write 5:"),
    (lambda: mist.ConstantArrivals(rate="6 /min"), "got '6 /min', write 0.1: units are"),
    (lambda: mist.Slo(ttft="500 ms"), "slo.ttft must be a number, got '500 ms', write 0.5:"),
    (lambda: mist.Slo(tpot="soon"), "slo.tpot must be a number, got 'soon': units are"),
    (lambda: Link(bandwidth="100 GB/s"), "bandwidth must be a number, got '100 GB/s'"),
    (lambda: Link(bandwidth=1e9, latency="1 us"), "latency must be a number, got '1 us'"),
    (lambda: Failures(clients="a", at=(1.0,)), r"clients must be a tuple, got 'a'; write \("),
    (lambda: Failures(clients=("a",), at=1.0), r"at must be a tuple, got 1.0; write \(1.0,\)"),
    (lambda: Failures(clients=("a",), at=("1 s",)), "at must be a number, got '1 s', write 1:"),
    (lambda: Failures(clients=("a",), mtbf="1 h", mttr=1), "mtbf must be .* write 3600:"),
    (lambda: Failures(link="ab", at=(1.0,)), "link must be a tuple, got 'ab'"),
    (lambda: Drain(clients="abc", at=1.0), "clients must be a tuple, got 'abc'"),
    (lambda: StartUp(storage="1 GB/s"), "storage must be a number"),
    (lambda: Autoscaling(clients="a", policy=None), "clients must be a tuple"),
    (lambda: Retries(max_backoff="1 s"), "max_backoff must be a number"),
    (lambda: mist.PolledRouter(router=None, view_interval="1 s"), "view_interval must be a"),
    error=ValueError,
)


def test_engines_take_parts_by_name():
    made = mist.llm_client("a", gpu="h100-sxm", scheduler="continuous", predictor="roofline")
    assert type(made.scheduler).__name__ == "ContinuousScheduler"
    assert made.predictor.traits.compared_as == "roofline"


def test_limits_in_milliseconds_are_noticed():
    def told(**limits):
        found = run(slo=mist.Slo(**limits)).warnings
        return [each.text for each in found if each.kind == LIMIT_IN_SECONDS]

    both = told(ttft=500, tpot=50)
    assert len(both) == 2
    assert "The limit on TTFT is 500 s, more than 10 times" in both[0]
    assert "0.5 means 500 ms" in both[0]
    assert "The limit on TPOT is 50 s" in both[1]
    assert not told(ttft=0.5, tpot=0.05)
    assert not told(ttft=50.0, tpot=1.5)  # long, but people ask for such


@pytest.mark.parametrize(
    "figure", ["client_id", "name", "role", "pool", "num_gpu_blocks", "num_kv_tokens", *COUNTS]
)
@pytest.mark.parametrize("interval", [None, 0.05])
def test_writing_to_a_view_fails_there(figure, interval):
    class Writes:
        def choose(self, request, stage, candidates):
            setattr(candidates[0], figure, 3)
            return candidates[0].client_id

    router = (
        Writes() if interval is None else mist.PolledRouter(router=Writes(), view_interval=interval)
    )
    with pytest.raises(AttributeError, match=figure):
        run(router=router)


def test_a_new_figure_of_a_view_fails_too():
    with pytest.raises(AttributeError):
        ClientState(0, "a").my_figure = 3


def test_options_of_the_cache_are_no_mapping():
    with pytest.raises(TypeError, match=r"kv_cache must be a KvCacheConfig"):
        mist.llm_client("llm", model="llama-3.1-8b", gpu="h100-sxm", kv_cache={"block_size": 16})
