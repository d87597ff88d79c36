"""Client types: one config for engines, and types that others register."""

import inspect
from dataclasses import dataclass, fields
from typing import Any

import pytest

from mist_sim import ScenarioError, SequentialClient, llm_client, simulate
from mist_sim.clients import CLIENTS, Client, EngineConfig, LlmClient
from mist_sim.clients.kv_cache import EngineMemory
from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.scenario import Scenario
from mist_sim.scenario.build import build
from mist_sim.scenario.engines.llm_client import llm_clients
from mist_sim.scenario.format.docstrings import documented
from mist_sim.scenario.json_schema import json_schema
from mist_sim.scenario.sections.clients.family import CLIENT
from mist_sim.units import Seconds
from tests.reference.predictors import AffinePredictor
from tests.reference.scenarios import scenario
from tests.refusals import refused

NAMES = [item.name for item in fields(EngineConfig)]


@dataclass(eq=False)
class Kiosk(Client):
    """Answers at once, in constant time.

    pause: seconds before an answer.
    size: of the kiosk (>= 1).
    """

    name: str
    pause: Seconds = 0.5
    size: int = 1

    def __post_init__(self):
        super().__init__(self.name, ("rag", "preprocess"))
        if self.size < 1:
            raise ValueError(f"size must be >= 1, got {self.size}")

    def accept(self, visit):
        self.begin(visit)
        self.env.start(self.work(visit))

    def abort(self, visit):
        pass

    def work(self, visit):
        yield self.env.timeout(self.pause)
        self.finish(visit)


@pytest.fixture
def kiosk():
    CLIENTS.register("kiosk")(Kiosk)
    yield
    del CLIENTS._classes["kiosk"]


def with_kiosk(**kiosk: Any) -> Scenario:
    """A scenario whose second client is a kiosk."""
    data = Scenario.load("demo").model_dump(mode="json", by_alias=True)
    del data["workload"]["trace"]
    data["workload"]["lengths"]["num_requests"] = 5
    data["workload"]["pipeline"] = ["preprocess", "prefill", "decode"]
    data["clients"] = [{"name": "llm", "gpu": "h100-sxm"}, {"name": "k", "type": "kiosk"} | kiosk]
    return Scenario.from_dict(data)


# --- types of others ----------------------------------------------------------------------------


def test_a_registered_type_runs_from_a_file(kiosk):
    result = simulate(with_kiosk(count=2, pause="250 ms"))
    rows = result.stages[result.stages.stage == "preprocess"]
    assert set(rows.client) == {"k-0", "k-1"}
    assert (rows.finished_at - rows.started_at).tolist() == pytest.approx([0.25] * 5)


def test_its_resolved_scenario_says_all_parameters_and_loads_again(kiosk):
    given = with_kiosk()
    text = given.resolved()
    assert "pause: 0.5 s" in text
    assert "size: 1" in text
    assert (
        Scenario.from_dict(given.model_dump(mode="json", by_alias=True) | lengths(given)) == given
    )


def lengths(given: Scenario) -> dict[str, Any]:
    data = given.model_dump(mode="json", by_alias=True)["workload"]
    del data["trace"]
    return {"workload": data}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"type": "kiosc"}, "no client type 'kiosc'; did you mean 'kiosk'? Known: afd"),
        ({"pauze": "1 s"}, "clients.1.pauze: unknown key for type kiosk; did you mean 'pause'?"),
        ({"pause": 1}, "clients.1.pause: a duration needs a number and a unit"),
        ({"size": 0}, "clients.1.size: must be >= 1, got 0"),
        ({"count": 0}, "clients.1.count: must be >= 1, got 0"),
        ({"name": "llm"}, "clients.1.name: must be unique, got llm a second time"),
        ({"type": "llm"}, "clients.1.gpu: is required"),
    ],
)
def test_what_is_wrong_with_it_is_said_as_for_ours(kiosk, change, expected):
    with pytest.raises(ScenarioError) as error:
        with_kiosk(**change)
    assert expected in str(error.value)


def test_stages_that_nobody_serves_are_named_beside_its_own(kiosk):
    data = with_kiosk().model_dump(mode="json", by_alias=True)
    del data["workload"]["trace"]
    data["workload"]["pipeline"] = ["postprocess", "prefill", "decode"]
    with pytest.raises(ScenarioError, match="the clients serve llm: prefill, decode; k: preproc"):
        Scenario.from_dict(data)


def test_beside_it_everything_of_a_request_counts_as_read(kiosk):
    change = {"workload": lengths(with_kiosk())["workload"] | {"ttft_deadline": "1 s"}}
    data = with_kiosk().model_dump(mode="json", by_alias=True) | change
    assert build(Scenario.from_dict(data)).remarks == ()
    data["clients"] = [data["clients"][0], {"name": "c", "type": "sequential"} | SERVES]
    (remark,) = build(Scenario.from_dict(data)).remarks
    assert remark.text.startswith("workload.ttft_deadline has no effect")


SERVES = {"serves": ["preprocess"], "base_time": "1 ms"}


def test_the_json_schema_knows_it(kiosk):
    options = json_schema()["properties"]["clients"]["items"]["anyOf"]
    (found,) = [one for one in options if one["properties"]["type"]["const"] == "kiosk"]
    assert found["properties"]["pause"]["default"] == "0.5 s"
    assert found["properties"]["pause"]["description"] == "seconds before an answer"
    assert found["required"] == ["name", "type"]


@pytest.mark.parametrize("parameter", ["count", "type"])
def test_a_parameter_cannot_have_the_name_of_a_key_of_all_clients(parameter):
    odd = type("Odd", (), {"__annotations__": {"name": str, parameter: int}, parameter: 1})
    CLIENTS.register("odd")(dataclass(odd))
    try:
        with pytest.raises(ScenarioError, match=f"cannot be called {parameter!r}"):
            CLIENT.part_type("odd")
    finally:
        del CLIENTS._classes["odd"]


def test_a_type_without_a_name_is_refused():
    CLIENTS.register("plain")(type("Plain", (), {}))
    try:
        with pytest.raises(ScenarioError, match="plain: a client type is a dataclass with a field"):
            CLIENT.part_type("plain")
    finally:
        del CLIENTS._classes["plain"]


# --- one config for engines ---------------------------------------------------------------------


def test_the_schema_has_the_fields_of_the_config():
    keys = [info.alias for info in CLIENT.part_type("llm").model_fields.values() if info.alias]
    assert keys == ["type", *NAMES]


def test_llm_client_has_the_parameters_of_the_config():
    assert list(inspect.signature(llm_client).parameters) == ["name", "config", *NAMES]


def test_llm_client_takes_a_config_or_options():
    config = EngineConfig(tensor_parallel_size=2)
    assert llm_client("a", config).config == llm_client("a", tensor_parallel_size=2).config
    with pytest.raises(TypeError, match="a config or options, got gpu as well"):
        llm_client("a", config, gpu="l4")
    with pytest.raises(TypeError, match="tensor_paralel_size"):
        llm_client("a", tensor_paralel_size=2)


def test_every_field_has_a_meaning_in_the_docstring():
    _, meanings = documented(EngineConfig, NAMES)
    assert list(meanings) == NAMES


test_options_that_do_not_go_together_are_refused = refused(
    lambda options: EngineConfig(**options),
    ({"tensor_parallel_size": 0}, "tensor_parallel_size must be >= 1, got 0"),
    ({"pipeline_parallel_size": 0}, "pipeline_parallel_size must be >= 1, got 0"),
    ({"data_parallel_size": 0}, "data_parallel_size must be >= 1, got 0"),
    ({"data_parallel_size": 10_001}, "data_parallel_size must be <= 10000, got 10001"),
    ({"max_model_len": 0}, "max_model_len must be >= 1, got 0"),
    (
        {"async_scheduling": True, "pipeline_parallel_size": 2, "virtual_engines": True},
        "async_scheduling must be false with pipeline_parallel_size 2 and virtual_engines",
    ),
)


def test_options_that_do_not_go_together_are_found_when_a_file_is_read():
    change = {"clients__0__async_scheduling": True, "clients__0__pipeline_parallel_size": 2}
    with pytest.raises(ScenarioError, match="clients.0.async_scheduling: must be false with"):
        scenario(**change, clients__0__virtual_engines=True)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gpt-oss-20b"])
@pytest.mark.parametrize("engine", ["vllm-0.12", "vllm-0.14"])
def test_pipelines_of_versions_that_do_not_plan_them_ahead_are_refused(engine, model):
    change = {"clients__0__async_scheduling": True, "clients__0__pipeline_parallel_size": 2}
    there = {"clients__0__engine": engine, "clients__0__gpu": "h100-sxm", "model": model}
    with pytest.raises(ScenarioError, match=r"must be false with .* in vLLM 0\.1"):
        build(scenario(**change, **there))
    del change["clients__0__async_scheduling"]
    assert not build(scenario(**change, **there)).clients[0].async_scheduling


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gpt-oss-20b", "qwen3.5-27b"])
def test_pipelines_plan_ahead_with_one_scheduler_whatever_the_layers_keep(model):
    change = {"clients__0__pipeline_parallel_size": 2, "clients__0__gpu": "h100-sxm"}
    client = build(scenario(**change, clients__0__tensor_parallel_size=4, model=model)).clients[0]
    assert client.async_scheduling
    assert client.form is not None


OF_PIPELINES = [
    ({}, True),
    ({"enable_expert_parallel": True, "tensor_parallel_size": 2}, True),
    ({"enable_expert_parallel": True, "data_parallel_size": 2}, False),
    ({"virtual_engines": True}, False),
    ({"scheduler": {"type": "chunked", "preemption": "swap"}}, False),
    ({"scheduler": "continuous"}, False),
    ({"kv_cache": {"tiers": [{"name": "cpu", "capacity": "8 GiB"}]}}, False),
    ({"engine": "vllm-0.14"}, False),
    ({"engine": "vllm-0.19"}, True),
]


@pytest.mark.parametrize(("options", "ahead"), OF_PIPELINES)
def test_a_pipeline_plans_ahead_by_default_where_saying_so_is_not_refused(options, ahead):
    options = options | {"pipeline_parallel_size": 2, "gpu": "h100-sxm"}
    change = {f"clients__0__{key}": value for key, value in options.items()}
    model = "qwen3-30b-a3b"
    assert build(scenario(**change, model=model)).clients[0].async_scheduling == ahead
    change["clients__0__async_scheduling"] = True
    if ahead:
        assert build(scenario(**change, model=model)).clients[0].async_scheduling
    else:
        with pytest.raises(ScenarioError, match=r"async_scheduling.* must be false with pipeline"):
            build(scenario(**change, model=model))


def test_a_config_makes_several_clients():
    one, two = llm_clients(["a", "b"], EngineConfig(gpu="h100-sxm", max_model_len=100))
    assert (one.name, two.name) == ("a", "b")
    assert one.scheduler == two.scheduler
    assert one.predictor is two.predictor
    assert one.config.max_model_len == two.max_model_len == 100


def test_a_predictor_may_be_what_makes_one():
    seen = []

    def make(*, model, cluster):
        seen.append((model.name, cluster.pipeline_parallel_size))
        return RooflinePredictor(model, cluster)

    made = llm_client("a", predictor=make, pipeline_parallel_size=2)
    plain = llm_client("a", pipeline_parallel_size=2)
    assert len(seen) == 2  # one for each rank
    assert made.num_gpu_blocks == plain.num_gpu_blocks


def test_ways_to_sum_work_in_python_as_in_a_file():
    with pytest.raises(ScenarioError, match="all_reduce must be null with tensor_parallel_size 1"):
        llm_client("a", gpu="l40s", all_reduce="ring")
    assert llm_client("a", gpu="l40s", tensor_parallel_size=2, all_reduce="ring")


def test_an_engine_needs_a_scheduler_and_as_many_ranks_as_are_timed():
    memory, predictor = EngineMemory(num_gpu_blocks=10), AffinePredictor()
    with pytest.raises(ScenarioError, match="scheduler must be given"):
        LlmClient("a", EngineConfig(), predictor=predictor, memory=memory)
    config = EngineConfig(scheduler=ChunkedScheduler(), pipeline_parallel_size=2)
    with pytest.raises(ScenarioError, match="pipeline_parallel_size must be 1, the ranks"):
        LlmClient("a", config, predictor=predictor, memory=memory)


# --- workers ------------------------------------------------------------------------------------


test_workers_say_how_long_a_stage_takes = refused(
    lambda options: SequentialClient("w", serves=["preprocess"], **options),
    ({}, "base_time or service_time is required"),
    ({"base_time": -1.0}, "base_time must be finite and >= 0 s, got -1.0"),
    ({"time_per_token": float("inf")}, "time_per_token must be finite and >= 0 s, got inf"),
    ({"base_time": 1.0, "service_time": float}, "service_time must be left out with base_time"),
    ({"base_time": 1.0, "num_workers": 0}, "num_workers must be >= 1, got 0"),
    error=ValueError,
)
