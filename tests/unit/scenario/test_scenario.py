"""What scenario files say and how they are read, checked, overridden and written out."""

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from mist_sim.errors import ScenarioError
from mist_sim.hardware import load_gpu
from mist_sim.registry import Registry
from mist_sim.routers import ROUTERS
from mist_sim.scenario import Scenario, build, simulate
from mist_sim.scenario.format.families import Family
from mist_sim.scenario.format.parts import part_type
from mist_sim.scenario.format.yaml_text import parse
from mist_sim.scenario.json_schema import json_schema
from mist_sim.scenario.plugins import FAMILIES
from mist_sim.scenario.presets import preset_names
from mist_sim.units import Seconds
from tests.reference.scenarios import changed, synthetic
from tests.refusals import refused

EXAMPLES = sorted((Path(__file__).parents[3] / "examples" / "scenarios").glob("*.yaml"))
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
BASE: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "workload": synthetic(20, (50, 200), 10, "5 /s"),
    "clients": [{"name": "llm", "gpu": "l40s"}],
}


@pytest.fixture(autouse=True)
def working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(**overrides: object) -> str:
    with pytest.raises(ScenarioError) as caught:
        changed(BASE, **overrides)
    return str(caught.value)


# --- round trips ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*preset_names(), *EXAMPLES], ids=lambda name: Path(name).stem)
def test_a_shipped_scenario_resolves_to_an_equal_one(name, working_directory):
    (working_directory / "AzureLLMInferenceTrace_conv.csv").write_text(TRACE)
    first = Scenario.load(name)
    resolved = working_directory / "results" / "scenario.resolved.yaml"
    resolved.parent.mkdir()
    resolved.write_text(first.resolved(), encoding="utf-8")
    second = Scenario.load(resolved)
    assert second == first
    assert second.resolved() == first.resolved()


def test_the_resolved_scenario_runs_to_identical_bytes(working_directory):
    first = simulate(changed(BASE, router="random", warmup="0.5 s", slo__ttft="123.4 ms", seed=5))
    first.save("first")
    second = simulate(Scenario.load("first/scenario.resolved.yaml"))
    second.save("second")
    names = sorted(path.name for path in Path("first").iterdir())
    assert "scenario.resolved.yaml" in names
    for name in names:
        assert Path("first", name).read_bytes() == Path("second", name).read_bytes(), name


def test_the_resolved_scenario_writes_out_defaults_and_units():
    data = YAML(typ="safe", pure=True).load(changed(BASE, slo__ttft="250 ms").resolved())
    assert data["clients"][0]["scheduler"] == {
        "type": "chunked",
        "max_num_seqs": 256,
        "order": "fcfs",
        "preemption": "recompute",
        "max_num_batched_tokens": 2048,
        "long_prefill_token_threshold": None,
        "max_num_partial_prefills": None,
        "scheduler_reserve_full_isl": True,
        "prefill_schedule_interval": 1,
    }
    none = {"tpot": None, "e2el": None, "attainment": None, "classes": {}, "each": False}
    none |= {"itl": None, "at": {}}
    assert data["slo"] == {"ttft": "0.25 s", "percentiles": None} | none
    assert data["router"] == {"type": "round_robin"}
    assert data["workload"]["pipeline"] == ["prefill", "decode"]
    arrivals = {"type": "poisson", "rate": "5.0 /s", "stretched": False}
    assert data["workload"]["arrivals"] == arrivals
    assert "trace" not in data["workload"]


def test_quantities_keep_every_bit():
    rate = "0.1234567890123456789 /min"
    first = changed(BASE, workload__arrivals__rate=rate)
    again = Scenario.from_dict(YAML(typ="safe", pure=True).load(first.resolved()))
    assert again.workload.arrivals.make() == first.workload.arrivals.make()


def test_scenarios_are_equal_when_they_say_the_same():
    assert changed(BASE) == changed(BASE, router={"type": "round_robin"}, seed=0)
    assert hash(changed(BASE)) == hash(changed(BASE, seed=0))
    assert changed(BASE) != changed(BASE, seed=1)


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (
            "clients__0__cuont",
            3,
            "clients.0.cuont: unknown key for type llm; did you mean 'count'?",
        ),
        (
            "clients__0__gpu_memory_utilization",
            0.8,
            "clients.0.gpu_memory_utilization: unknown key for type llm; it belongs in kv_cache.",
        ),
        (
            "clients__0__max_num_seqs",
            8,
            "clients.0.max_num_seqs: unknown key for type llm; it belongs in scheduler.",
        ),
        (
            "clients__0__kv_cache",
            {"num_gpu_blocks_override": 100, "gpu_memory_utilization": 0.8},
            "clients.0.kv_cache.gpu_memory_utilization: must be left out where num_gpu_blocks_over",
        ),
        (
            "workload__retries",
            {"max_attempts": 2},
            "workload.retries: has no effect: there is no timeout and no ttft_timeout, and no cl",
        ),
        ("clients__0__count", 10_001, "clients.0.count: must be <= 10000, got 10001"),
        ("clients__0__count", -1, "clients.0.count: must be >= 1, got -1"),
        ("clients__0__count", "3", "must be a whole number, got '3'; write it without quotes"),
        ("clients__0__count", 1.5, "must be a whole number, got 1.5"),
        ("clients__0__count", True, "must be a whole number, got true"),
        ("clients__0__name", 3, "clients.0.name: must be text, got 3; write it in quotes"),
        ("clients__0__name", "", "clients.0.name: must not be empty"),
        ("clients__0__type", "lm", "no client type 'lm'; did you mean 'llm'?"),
        ("clients__0__gpu", "h100-smx", "did you mean 'h100-sxm'?"),
        ("model", "lama-3.1-8b", "did you mean 'llama-3.1-8b'?"),
        ("clients__0__scheduler__max_num_seq", 3, "did you mean 'max_num_seqs'?"),
        ("clients__0__scheduler__max_num_seqs", 0, "scheduler.max_num_seqs: must be >= 1, got 0"),
        ("clients__0__scheduler", "chunky", "no scheduler named 'chunky'; did you mean 'chunked'"),
        ("clients__0__scheduler", None, "must be a name or a mapping with a type, got null"),
        (
            "clients__0__kv_cache__block_size",
            0,
            "kv_cache.block_size: must be in [1, 1048576], got 0",
        ),
        ("clients", [], "clients: must have at least one entry"),
        ("clients", {"llm": {}}, "clients: must be a list"),
        ("workload", None, "workload: must be a mapping"),
        ("workload__lengths", None, "must have either trace or lengths, got neither"),
        ("workload__arrivals", "trace", "lengths have no times of their own; choose one of"),
        ("workload__arrivals", "poisson", "workload.arrivals.rate: is required"),
        ("workload__arrivals__rate", 5, "a rate needs a number and a unit, such as '1 /s', got 5"),
        ("workload__arrivals__rate", "5 s", "'s' is not a unit of rate"),
        ("workload__arrivals__rate", "-5 /s", "arrivals.rate: must be finite and > 0 /s, got -5.0"),
        (
            "workload__lengths__prompt__low",
            0,
            "workload.lengths.prompt.low: must be in [1, 1000000000], got 0",
        ),
        ("workload__pipeline", [], "at least one stage"),
        ("workload__pipeline", ["decode"], "needs a prefill before it"),
        ("workload__pipeline", ["prefil"], "did you mean 'prefill'?"),
        ("workload__pipeline", "prefill", "must be a list, got 'prefill'; write [prefill]"),
        ("slo__ttft", 2, "slo.ttft: a duration needs a number and a unit, such as '1 s', got 2"),
        ("slo__ttft", "0 s", "slo.ttft: must be finite and > 0 s, got 0.0"),
        ("warmup", "-1 s", "warmup: must be >= 0 s, got -1.0"),
        ("seed", -1, "seed: must be >= 0, got -1"),
    ],
)
def test_a_bad_value_is_refused_with_its_place_and_rule(path, value, expected):
    message = refusal(**{path: value})
    assert expected in message
    assert message.startswith(("override ", "with overrides: "))
    assert len(message.splitlines()) == 1


def test_all_problems_of_file_come_in_one_message():
    Path("s.yaml").write_text(
        "modle: x\n"
        "workload: {lengths: {type: profile, num_request: 4}, arrivals: poisson}\n"
        "clients: [{name: a, gpu: h10, scheduler: {max_num_seqs: 0}}, {gpu: l4, count: 0}]\n"
    )
    with pytest.raises(ScenarioError) as caught:
        Scenario.load("s.yaml")
    lines = str(caught.value).splitlines()
    assert all(line.startswith("s.yaml: ") for line in lines)
    places = {line.split(": ")[1] for line in lines}
    assert places == {
        "modle",
        "workload.lengths.num_request",
        "workload.lengths.num_requests",
        "workload.arrivals.rate",
        "clients.0.gpu",
        "clients.0.scheduler.max_num_seqs",
        "clients.1.name",
        "clients.1.count",
    }


def test_a_client_needs_a_model_from_somewhere():
    assert "clients.0.model: is required" in refusal(model=None)
    assert changed(BASE, model=None, clients__0__model="qwen3-4b").clients[0].model == "qwen3-4b"


def test_names_are_unique_after_counting():
    clients = [{"name": "a", "gpu": "l4", "count": 2}, {"name": "a-1", "gpu": "l4"}]
    assert "clients.1.name: must be unique, got a-1" in refusal(clients=clients)


def test_a_pipeline_needs_clients_for_all_its_stages():
    pipeline = [{"type": "preprocess", "num_tokens": 5}, "prefill", "decode"]
    message = refusal(workload__pipeline=pipeline)
    assert "no client serves 'preprocess'" in message
    assert "llm: prefill, decode" in message


def test_a_decode_follows_prefill_that_left_its_entries():
    cpu = {"name": "cpu", "type": "sequential", "serves": ["postprocess"], "base_time": "1 ms"}
    message = refusal(
        workload__pipeline=["prefill", "postprocess", "decode"], clients=[*BASE["clients"], cpu]
    )
    assert "workload.pipeline.2: decode must follow prefill or decode" in message


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"serves": ["prefill"]}, "is what a client of type llm serves"),
        ({"serves": ["preproces"]}, "did you mean 'preprocess'?"),
        ({"serves": []}, "must have at least one entry"),
        ({"base_time": None}, "base_time: is required, since rag has no other time"),
        ({"time_per_token": "1 us"}, "time_per_token: has no effect"),
        ({"base_time": "-1 s"}, "base_time: must be >= 0 s"),
        ({"num_workers": 0}, "num_workers: must be >= 1"),
    ],
)
def test_sequential_client_says_how_long_its_stages_take(change, expected):
    client = {"name": "x", "type": "sequential", "serves": ["rag"], "base_time": "1 s"} | change
    assert expected in refusal(clients=[client])


@pytest.mark.parametrize(
    ("stage", "has_effect"),
    [
        ({"type": "preprocess"}, False),
        ({"type": "preprocess", "num_tokens": 8}, True),
        ({"type": "preprocess", "task": "tokenize"}, True),
    ],
)
def test_a_time_for_each_token_needs_tokens(stage, has_effect):
    cpu = {"name": "cpu", "type": "sequential", "serves": ["preprocess"], "time_per_token": "1 us"}
    workload = BASE["workload"] | {"pipeline": [stage, "prefill", "decode"]}
    said = {"workload": workload, "clients": [*BASE["clients"], cpu]}
    if has_effect:
        changed(BASE, **said)
    else:
        assert "clients.1.time_per_token: has no effect: num_tokens of" in refusal(**said)


# --- files ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a: 1\na: 2\n", "s.yaml:2:1: the key 'a' is given twice"),
        (b"a: {b: 1, b: 2}\n", "s.yaml:1:11: the key 'b' is given twice"),
        (b"a: [1\nb: 2\n", "s.yaml:2:2: not valid YAML"),
        (b"a: b\n\tc: d\n", "s.yaml:2:1: not valid YAML"),
        (b"a: 1\nb: \x07\n", "s.yaml:2:4: not valid YAML: the character '\\x07' is not allowed"),
        (b"a: !!python/name:os.system\n", "s.yaml:1:4: not valid YAML"),
        (b"--- 1\n--- 2\n", "s.yaml:2:1: not valid YAML"),
        (b"[" * 5000, "s.yaml:1:51: must have <= 50 levels of lists and mappings"),
        (b"a: 1\nb: \xff\n", "s.yaml:2: not UTF-8 text (byte 0xff)"),
        (b"", "s.yaml: is empty"),
        (b"# only a comment\n", "s.yaml: is empty"),
        (b"- a\n", "s.yaml: must hold a mapping of keys to values, got a list"),
    ],
)
def test_a_file_that_cannot_be_read_says_where(content, expected):
    Path("s.yaml").write_bytes(content)
    with pytest.raises(ScenarioError) as caught:
        Scenario.load("s.yaml")
    assert expected in str(caught.value)


def test_yaml_is_version_1_2():
    message = refusal(clients__0__name="x", seed="no")
    assert "got 'no'" in message
    Path("s.yaml").write_text("seed: no\n")
    with pytest.raises(ScenarioError, match="seed: must be a whole number, got 'no'"):
        Scenario.load("s.yaml")


def test_an_unknown_scenario_name_helps():
    Path("azure.yaml").touch()
    with pytest.raises(ScenarioError, match=r"did you mean 'azure\.yaml'\? Presets: bestserve"):
        Scenario.load("azur.yaml")
    with pytest.raises(ScenarioError, match="did you mean 'demo'"):
        Scenario.load("demmo")
    with pytest.raises(ScenarioError, match="is a folder"):
        Scenario.load(".")


# --- paths ------------------------------------------------------------------------------------


def save_with_trace(folder: str, path: str) -> Path:
    """Write a scenario that names a trace into a folder."""
    file = Path(folder) / "s.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    data = {**BASE, "workload": {"trace": {"type": "azure", "path": path}}}
    with file.open("w") as out:
        YAML(typ="safe").dump(data, out)
    return file


def test_a_trace_is_found_beside_the_scenario_first():
    file = save_with_trace("there", "t.csv")
    for folder in ("there", "."):
        Path(folder, "t.csv").write_text(TRACE)
    found = Scenario.load(file)
    assert found.workload.trace.path == "there/t.csv"
    Path("elsewhere").mkdir()
    Path("elsewhere/r.yaml").write_text(found.resolved())
    assert Scenario.load("elsewhere/r.yaml") == found


def test_a_trace_is_found_in_working_directory_second():
    file = save_with_trace("there", "t.csv")
    Path("t.csv").write_text(TRACE)
    assert Scenario.load(file).workload.trace.path == "t.csv"


def test_an_absolute_path_stays(working_directory):
    trace = working_directory / "t.csv"
    trace.write_text(TRACE)
    assert Scenario.load(save_with_trace("there", str(trace))).workload.trace.path == str(trace)


def test_a_missing_trace_names_both_places():
    file = save_with_trace("there", "t.csv")
    Path("tt.csv").write_text(TRACE)
    with pytest.raises(ScenarioError) as caught:
        Scenario.load(file)
    message = str(caught.value)
    assert message.startswith("there/s.yaml: workload.trace.path: no file there/t.csv")
    assert "no file t.csv (in the working directory); did you mean 'tt.csv'?" in message


def test_a_gpu_spec_lies_beside_the_scenario():
    file = save_with_trace("there", "t.csv")
    Path("there/t.csv").write_text(TRACE)
    Path("there/mine.toml").write_text('based_on = "l40s"\nmemory = "96 GiB"\n')
    found = Scenario.load(file, {"clients.0.gpu": "mine.toml"})
    assert found.clients[0].gpu == "there/mine.toml"
    Path("mine.toml").write_text('based_on = "l40s"\n')
    assert Scenario.from_dict(BASE, {"clients.0.gpu": "mine.toml"}).clients[0].gpu == "./mine.toml"


def test_a_trace_brings_its_own_times():
    Path("t.csv").write_text(TRACE)
    data = {**BASE, "workload": {"trace": {"type": "azure", "path": "t.csv"}}}
    assert Scenario.from_dict(data).workload.arrivals.speedup == 1.0


# --- overrides --------------------------------------------------------------------------------


def test_overrides_reach_lists_defaults_and_bare_names():
    found = changed(BASE, clients__0__scheduler__max_num_seqs=64, router__type="random")
    assert found.clients[0].scheduler.max_num_seqs == 64
    assert found.router.make() == ROUTERS["random"]()
    found = changed(BASE, clients__0__scheduler="continuous", clients__0__scheduler__max_num_seqs=4)
    assert type(found.clients[0].scheduler.make()).__name__ == "ContinuousScheduler"
    assert found.clients[0].scheduler.max_num_seqs == 4


@pytest.mark.parametrize("said", [{"clients.0.gpu": "h200"}, {}])
def test_a_gpu_is_changed_in_place(said, tmp_path):
    """As a file with the same keys would do; from a bare name, too, so that `--vary` can."""
    base = said.get("clients.0.gpu", BASE["clients"][0]["gpu"])
    rates = {"clients.0.gpu.memory_bandwidth": "9 TB/s", "clients.0.gpu.flops.fp8": "7 PFLOP/s"}
    found = Scenario.from_dict(BASE, {**said, **rates})
    file = tmp_path / "mine.toml"
    file.write_text(f"based_on = '{base}'\nmemory_bandwidth = '9 TB/s'\nflops.fp8 = '7 PFLOP/s'\n")
    expected = load_gpu(str(file))
    made = build(found).clients[0].traits.machine.cluster.gpu
    assert made.name == f"{base} with other memory_bandwidth and flops"
    assert replace(made, name="", sources={}) == replace(expected, name="", sources={})
    assert Scenario.from_yaml(found.resolved()) == found


test_a_gpu_in_place_says_what_is_wrong = refused(
    lambda said: changed(BASE, clients__0__gpu=said),
    ({"based_on": "b20"}, "clients.0.gpu: based_on: no accelerator and no file is named 'b20'"),
    ({"based_on": "b200", "memory": 3}, "clients.0.gpu: its mapping: memory"),
    ({"based_on": "b200", "ram": "1 GB"}, "clients.0.gpu: its mapping: unknown key 'ram'"),
    ({"based_on": "b200", "price": "5 $/h"}, "price must not stand here"),
    ({"memory": "80 GB"}, "clients.0.gpu: its mapping: missing memory_bandwidth"),
    (7, "clients.0.gpu: must be a name, a path or a mapping, got 7"),
)


def test_overrides_leave_the_data_alone():
    data = copy.deepcopy(BASE)
    Scenario.from_dict(data, {"clients.0.count": 3})
    assert data == BASE


test_an_override_that_leads_nowhere_is_refused = refused(
    lambda path: Scenario.from_dict(BASE, {path: 1}),
    ("clients.1.count", "there is no entry 1; the list has 1"),
    ("clients.count", "'count' is no position in a list"),
    ("clients..count", "must be keys joined by dots"),
    ("clients.0.count.x.y", "must be a whole number"),
    ("workload.lengths.num_requests.x", "20 has no key 'x'"),
)


test_an_override_of_clients_that_are_not_there_begins_their_list = refused(
    lambda path: Scenario.from_dict(
        {key: BASE[key] for key in BASE if key != "clients"}, {path: "h100-sxm"}
    ),
    ("clients.0.gpu", "clients.0.name: is required"),
    ("clients.1.gpu", "there is no entry 1; the list has 0"),
)


# --- plugins ----------------------------------------------------------------------------------


@pytest.fixture
def own_router(monkeypatch):
    """A router that was registered a moment ago, with parameters called like pydantic's methods."""

    @dataclass(kw_only=True)
    class Own:
        """A router of one's own."""

        json: int = 1
        patience: Seconds | None = None
        weights: tuple[float, ...] = (1.0,)

        def choose(self, request, stage, candidates):
            return candidates[0].client_id

    Own.__annotations__["patience"] = Seconds | None
    Own.__annotations__["weights"] = tuple[float, ...]
    Own.__annotations__["json"] = int
    monkeypatch.setitem(ROUTERS._classes, "own", Own)
    return Own


def test_a_plugin_needs_only_a_dataclass(own_router):
    found = changed(
        BASE, router={"type": "own", "json": 3, "patience": "5 ms", "weights": [1, 2.5]}
    )
    made = found.router.make()
    assert (made.json, made.patience, made.weights) == (3, 0.005, (1.0, 2.5))
    assert "patience: 0.005 s" in found.resolved()
    assert simulate(found).summary["completed"] == 20
    assert "must be a number" in refusal(router={"type": "own", "weights": ["x"]})


def test_a_plugin_that_file_cannot_express_is_named():
    @dataclass
    class Odd:
        callback: object

    Odd.__annotations__["callback"] = object
    with pytest.raises(ScenarioError, match="odd: parameter callback: .* no form"):
        part_type(Odd, "odd")


def test_a_plugin_without_parameters_needs_no_dataclass():
    registry = Registry("things")

    @registry.register("plain")
    class Plain:
        """Plain."""

    assert isinstance(Family(registry).part_type("plain")(type="plain").make(), Plain)


# --- schema -----------------------------------------------------------------------------------


def test_the_json_schema_writes_defaults_as_files_do():
    schema = json_schema()
    kinds = schema["properties"]["clients"]["items"]["anyOf"]
    llm = next(kind for kind in kinds if "kv_cache" in kind["properties"])
    cache = llm["properties"]["kv_cache"]["properties"]
    assert cache["context_memory"]["default"] is None
    assert cache["block_size"]["default"] == 16
    assert schema["properties"]["warmup"]["default"] == "0.0 s"


def test_the_json_schema_accepts_its_own_defaults():
    schema = json_schema()
    for inner in mappings(schema):
        if "default" in inner and inner["default"] != {}:
            assert fits(inner["default"], inner, schema["$defs"]), inner


def mappings(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield all mappings of a schema that describe a value."""
    if isinstance(schema, dict):
        if "title" in schema or "type" in schema:
            yield schema
        for inner in schema.values():
            yield from mappings(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from mappings(inner)


def test_the_json_schema_knows_every_plugin():
    text = str(json_schema())
    for family in FAMILIES.values():
        for name in family.registry:
            assert f"'const': '{name}'" in text


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_json_schema_accepts_the_examples(path):
    schema = json_schema()
    data = YAML(typ="safe", pure=True).load(path)
    assert fits(data, schema, schema["$defs"])
    assert not fits({**data, "modle": "x"}, schema, schema["$defs"])
    assert not fits({**data, "slo": {"ttft": "2 sec"}}, schema, schema["$defs"])
    del data["clients"]
    assert not fits(data, schema, schema["$defs"])


TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def fits(value: Any, schema: dict[str, Any], defs: dict[str, Any]) -> bool:
    """Tell whether a value keeps a JSON Schema, for the keywords that ours uses."""
    if "$ref" in schema:
        schema = {**defs[schema["$ref"].rpartition("/")[2]], **schema}
    if "anyOf" in schema and not any(fits(value, choice, defs) for choice in schema["anyOf"]):
        return False
    checks = [
        "type" not in schema or isinstance(value, TYPES[schema["type"]]),
        "const" not in schema or value == schema["const"],
        "enum" not in schema or value in schema["enum"],
        "pattern" not in schema or (isinstance(value, str) and re.search(schema["pattern"], value)),
        "minimum" not in schema
        or not isinstance(value, (int, float))
        or value >= schema["minimum"],
        "minItems" not in schema or len(value) >= schema["minItems"],
    ]
    if isinstance(value, list) and "items" in schema:
        checks += [fits(item, schema["items"], defs) for item in value]
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        checks += [set(schema.get("required", ())) <= set(value)]
        checks += [fits(value[key], properties[key], defs) for key in set(value) & set(properties)]
        checks += [schema.get("additionalProperties", True) or set(value) <= set(properties)]
    return all(checks)


def test_deadlines_of_priorities_that_nobody_has_are_refused():
    deadlines = {
        "clients__0__admission__drop_expired": True,
        "workload__ttft_deadline": {0: "1 s", 5: "2 s"},
    }
    with pytest.raises(ScenarioError, match=r"ttft_deadline.5: no request has this priority; .*0$"):
        changed(BASE, **deadlines)
    with pytest.raises(ScenarioError, match=r"workload.priorities has 0, 10$"):
        changed(BASE, workload__priorities={0: 0.2, 10: 0.8}, **deadlines)
    assert changed(BASE, workload__priorities={0: 0.2, 5: 0.8}, **deadlines)


def test_priorities_survive_the_resolved_scenario():
    by_priority = {"type": "chunked", "order": "priority"}
    first = changed(BASE, workload__priorities={0: 0.2, 10: 0.8}, clients__0__scheduler=by_priority)
    again = Scenario.from_dict(YAML(typ="safe", pure=True).load(first.resolved()))
    assert again.workload.priorities == {0: 0.2, 10: 0.8}


@pytest.mark.parametrize("model", ["~nosuchuser/config.json", "x" * 300 + ".json"])
def test_impossible_paths_are_refused(model):
    with pytest.raises(ScenarioError):
        changed(BASE, model=model)


def test_a_value_that_grows_beyond_memory_is_refused_at_once():
    """Nine lists of nine, nine deep: 400 million values in a file of ten lines."""
    value = ["x"] * 9
    for _ in range(8):
        value = [value] * 9
    with pytest.raises(ScenarioError, match=r"workload: must be a mapping .*, got \[\[\[.*\.\.\."):
        changed(BASE, workload=value)


def test_name_that_yaml_gives_again_is_no_warning(recwarn):
    """The last one before an alias counts (YAML 1.2, 3.2.2.2)."""
    assert parse("{a: &x 1, b: &x 2, c: *x}", "here") == {"a": 1, "b": 2, "c": 2}
    assert not recwarn.list
