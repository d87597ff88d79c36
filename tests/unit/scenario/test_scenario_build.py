"""From a scenario to a simulation: clients, their memory, and what only shows at this point."""

import ast
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mist_sim
from mist_sim import (
    ChunkedScheduler,
    KvCacheConfig,
    Preprocess,
    Rag,
    Scenario,
    ScenarioError,
    Simulation,
    ToolCall,
    TraceError,
    Workload,
    llm_client,
    simulate,
)
from mist_sim.clients.workers.base import linear
from mist_sim.core.batch import StepBatch
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.predictors import TablePredictor
from mist_sim.models import load_model
from mist_sim.rng import Streams
from mist_sim.scenario.build import build
from mist_sim.scenario.engines.links import with_all_reduce
from tests.reference import measured
from tests.reference.predictors import ConstantPredictor
from tests.reference.scenarios import BASE, PRESSED, scenario
from tests.refusals import refused
from tests.warned import texts

ROW = "2023-11-16 18:15:46.6805900,374,44\n"


def refusal(**overrides: object) -> str:
    with pytest.raises(ScenarioError) as caught:
        build(scenario(**overrides))
    return str(caught.value)


def test_copies_are_numbered_and_share_what_never_changes():
    clients = build(scenario(clients__0__count=3)).clients
    assert [client.name for client in clients] == ["llm-0", "llm-1", "llm-2"]
    assert len({id(client.predictor.ranks[0].predictor) for client in clients}) == 1
    assert len({id(client.scheduler) for client in clients}) == 1


def test_a_client_may_serve_another_model():
    simulation = build(
        scenario(
            clients=[
                {"name": "a", "gpu": "l40s"},
                {"name": "b", "gpu": "l40s", "model": "qwen3-4b"},
            ]
        )
    )
    models = [client.predictor.ranks[0].predictor.model.name for client in simulation.clients]
    assert models == ["llama-3.1-8b", "qwen3-4b"]


def test_requests_share_the_blocks_of_a_real_engine_but_the_null_block():
    kv_cache = {"num_gpu_blocks_override": 321, "block_size": 32}
    client = build(scenario(clients__0__kv_cache=kv_cache)).clients[0]
    assert (client.num_gpu_blocks, client.memory.block_size) == (320, 32)


def test_a_model_that_does_not_fit_is_refused_with_its_sizes():
    message = refusal(model="llama-3.1-70b")
    assert "clients.0: llama-3.1-70b does not fit on 1 x l40s" in message
    assert "weights take" in message


def test_whole_prompts_that_take_the_memory_are_told_with_the_context_that_fits():
    """Each step of a layout for prompts has room for the longest one, 131,072 tokens."""
    sizes = {"tensor_parallel_size": 2, "pipeline_parallel_size": 4}
    moving = {
        "scheduler": {"type": "continuous", "max_num_seqs": 256},
        "kv_cache": {"enable_prefix_caching": False},
        "resharding": {"pipeline_parallel_size": 8},
    }
    client = {"name": "llm", "gpu": "l40s", **sizes, **moving}
    message = refusal(model="llama-3.1-70b", clients=[client])
    assert "resharding, TP 1 x PP 8 for prompts: llama-3.1-70b does not fit" in message
    told = re.search(r"or max_model_len (\d+) \(KV cache of [\d,]+ tokens\)$", message)
    assert told, message
    build(scenario(model="llama-3.1-70b", clients=[client | {"max_model_len": int(told[1])}]))
    bounded = moving["scheduler"] | {"max_num_batched_tokens": 4096}
    build(scenario(model="llama-3.1-70b", clients=[client | {"scheduler": bounded}]))


def test_ranks_that_do_not_divide_heads_are_refused():
    message = refusal(clients__0__tensor_parallel_size=3)
    assert "clients.0.tensor_parallel_size: must divide the 32 attention heads" in message
    assert "these work: 1, 2, 4" in message


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"tensor_parallel_size": 1}, "with tensor_parallel_size 1, where nothing is summed"),
        ({"predictor": {"type": "silicon"}}, "with a predictor whose times have the collectives"),
    ],
)
def test_way_to_sum_that_changes_nothing_is_refused(options, expected):
    client = {"name": "llm", "gpu": "h100-sxm", "tensor_parallel_size": 2, "all_reduce": "ring"}
    assert f"clients.0.all_reduce: must be null {expected}" in refusal(clients=[client | options])


def test_measured_collectives_are_summed_as_they_were():
    gpu = load_gpu("l40s")
    link = replace(gpu.interconnect, bus_bandwidth={"1 MiB": 20e9})
    measured = replace(gpu, interconnect=link)
    with pytest.raises(ScenarioError, match=r"must be null with l40s, whose .*bus_bandwidth"):
        with_all_reduce(measured, "ring", 2)
    assert with_all_reduce(measured, None, 2) is measured
    assert with_all_reduce(measured, "bestserve", 2).interconnect.all_reduce == "bestserve"


def test_all_clients_that_do_not_fit_are_named():
    small = {"gpu": "l4", "model": "llama-3.1-70b"}
    message = refusal(clients=[{"name": "a", **small}, {"name": "b", **small}])
    places = [line.split(": ")[0] for line in message.splitlines()]
    assert places == ["override clients.0", "override clients.1"]


def test_a_bad_first_row_is_found_before_run(tmp_path):
    trace = tmp_path / "t.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + ROW.replace("374", "0"))
    with pytest.raises(TraceError, match=r"t\.csv:2: ContextTokens must be"):
        build(scenario(workload={"trace": {"type": "azure", "path": str(trace)}}))


def test_a_trace_without_times_needs_arrivals(tmp_path):
    trace = tmp_path / "t.csv"
    trace.write_text("num_prefill_tokens,num_decode_tokens\n30,5\n")
    workload: dict[str, Any] = {"trace": {"type": "lengths_csv", "path": str(trace)}}
    assert "workload.arrivals: must not be trace" in refusal(workload=workload)
    workload["arrivals"] = "all_at_once"
    assert simulate(scenario(workload=workload)).summary["completed"] == 1


@pytest.mark.parametrize(
    ("client", "assumed"),
    [
        ({}, None),
        ({"gpu": "h100-what-if.toml"}, None),
        ({"gpu": "a100-80gb-sxm"}, ["overhead.step", "overhead.sequence"]),
        ({"gpu": "h200", "overhead": {"step": "1 ms"}}, ["overhead.sequence"]),
        ({"gpu": "a100-80gb-sxm", "overhead": {"step": "1 ms", "sequence": "0 s"}}, None),
        ({"gpu": "measured.toml"}, None),
        ({"engine": "vllm-0.12", "async_scheduling": True}, None),
        ({"gpu": "measured.toml", "engine": "vllm-0.12", "async_scheduling": True}, None),
        ({"gpu": "measured.toml", "engine": "vllm-0.12"}, None),
    ],
)
def test_an_overhead_of_another_gpu_is_named(tmp_path, monkeypatch, client, assumed):
    monkeypatch.chdir(tmp_path)
    Path("h100-what-if.toml").write_text('based_on = "h100-sxm"\nmemory_bandwidth = "4 TB/s"\n')
    own = '[overhead]\nstep = "1 ms"\nsequence = "1 us"\n'
    Path("measured.toml").write_text(f'based_on = "l40s"\n{own}')
    overrides = {f"clients.0.{key}": value for key, value in client.items()}
    overrides |= {"clients.0.count": 1, "workload.lengths.num_requests": 5}
    result = simulate(Scenario.load("demo", overrides=overrides))
    named = [
        name
        for name in result.summary["assumed"]["llm"]
        if not name.startswith(("kernels: ", "release: "))
    ]
    assert named == [*(assumed or ()), "front_end"]
    shown = " ".join(texts(result.summary))
    note = f"own time a step ({', '.join(assumed or ())}) is an assumption here"
    assert (note in shown) == bool(assumed)


@pytest.mark.parametrize("form", ["layer_profile", "vidur", "steps"])
@pytest.mark.parametrize("said", [None, "0 ms", "1 ms"])
def test_steps_with_prompts_take_3_ms_more_around_profiles_of_layers(tmp_path, form, said):
    """An assumption, which results list; whole steps have it in them."""
    layers = load_model("llama-3.1-8b").num_layers
    if form == "steps":
        path = measured.write_steps(tmp_path)
    elif form == "vidur":
        path = measured.write_vidur(tmp_path, layers)
    else:
        path = measured.write_layer_profile(tmp_path, layers)
    predictor = {"type": "table", "format": form, "path": str(path)}
    client = {"name": "llm", "gpu": "h100-sxm", "predictor": predictor}
    if said:
        client["overhead"] = {"prefill_step": said}
    result = simulate(scenario(clients=[client]))
    is_assumed = said is None and form != "steps"
    options = ["overhead.prefill_step"] * is_assumed + ["front_end"] * (form != "steps")
    assert result.summary.get("assumed", {}).get("llm", []) == options
    shown = " ".join(texts(result.summary))
    assert ("3 ms that a step with prompts takes beyond" in shown) == is_assumed
    (engine,) = build(scenario(clients=[client])).clients
    bare = TablePredictor(
        load_model("llama-3.1-8b"), Cluster(load_gpu("h100-sxm")), str(path), form
    )
    prompt, decode = StepBatch(((100, 0),), 2, 600), StepBatch((), 2, 600)
    more = {"0 ms": 0.0, "1 ms": 1e-3, None: 3e-3 if is_assumed else 0.0}[said]
    timed = engine.predictor.ranks[0]
    assert timed.step_time(prompt) == bare.step_time(prompt) + more
    assert timed.step_time(decode) == bare.step_time(decode)


def test_a_predictor_of_whole_steps_assumes_no_overhead():
    client = llm_client("llm", gpu="l40s", predictor=ConstantPredictor(0.01))
    assert client.traits.times.assumed == ()


def test_the_result_carries_estimates_and_the_scenario():
    cpu = {"name": "cpu", "type": "sequential", "serves": ["preprocess"], "base_time": "1 ms"}
    found = scenario(clients=[{"name": "llm", "gpu": "h100-sxm"}, cpu])
    result = simulate(found)
    assert result.estimates == {"llm": "fitted"}
    assert result.scenario == found.resolved()


def test_a_context_of_no_tokens_is_refused():
    with pytest.raises(ScenarioError, match="max_model_len must be >= 1, got 0"):
        llm_client("llm", max_model_len=0)


def test_progress_hears_about_requests():
    calls = []
    simulate(
        scenario(workload__lengths__num_requests=1000),
        progress=lambda done, seconds: calls.append((done, seconds)),
    )
    assert calls
    assert calls == sorted(calls)


def test_stages_around_the_model_take_their_time():
    cpu = {
        "name": "cpu",
        "type": "sequential",
        "serves": ["preprocess", "postprocess"],
        "base_time": "10 ms",
        "time_per_token": "1 ms",
    }
    pipeline = [{"type": "preprocess", "num_tokens": 40}, "prefill", "decode", "postprocess"]
    result = simulate(
        scenario(
            workload__pipeline=pipeline,
            workload__lengths__num_requests=1,
            clients=[BASE["clients"][0], cpu],
        )
    )
    stages = result.stages.set_index("stage")
    served = stages["finished_at"] - stages["started_at"]
    assert served["preprocess"] == pytest.approx(0.050)
    assert served["postprocess"] == pytest.approx(0.010)


@pytest.mark.parametrize(
    ("base", "per_token", "stage", "expected"),
    [
        (0.5, 0.01, Preprocess(num_tokens=20), 0.7),
        (None, 0.01, Preprocess(num_tokens=20), 0.2),
        (0.5, 0.01, Rag(num_query_tokens=9, num_documents=2), 0.5),
        (None, 0.0, ToolCall(duration=3.0), 3.0),
        (0.5, 0.0, ToolCall(duration=3.0), 0.5),
    ],
)
def test_service_time(base, per_token, stage, expected):
    assert linear("cpu", Streams(0), base, per_token)(stage) == pytest.approx(expected)


def test_a_simulation_made_of_objects():
    class Last:
        def choose(self, request, stage, candidates):
            return candidates[-1].client_id

    clients = [
        llm_client("a", gpu="l40s"),
        llm_client(
            "b",
            model="qwen3-32b",
            tensor_parallel_size=2,
            scheduler=ChunkedScheduler(max_num_seqs=8),
            kv_cache=KvCacheConfig(num_gpu_blocks_override=5000),
        ),
    ]
    workload = Workload.from_lists([100, 200], [3, 4], [0.0, 0.5])
    result = Simulation(clients=clients, workload=workload, router=Last()).run()
    assert result.clients["num_visits"].tolist() == [0, 2]


test_llm_client_refuses_what_cannot_be = refused(
    lambda arguments: llm_client("a", **arguments),
    ({"model": "llama-3.1-70b"}, "does not fit"),
    ({"tensor_parallel_size": 3}, "tensor_parallel_size must divide"),
    ({"gpu": "h1000"}, "no accelerator"),
)


def test_public_names_are_those_that_type_checkers_see():
    tree = ast.parse(Path(mist_sim.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.name: node.module for node in imports for alias in node.names}
    assert seen == mist_sim._MODULES
    assert all(alias.asname == alias.name for node in imports for alias in node.names)
    assert set(mist_sim.__all__) == {*seen, "__version__"}
    with pytest.raises(AttributeError, match="no attribute 'Sceanrio'"):
        mist_sim.Sceanrio  # noqa: B018


PRIORITIES = {"workload__priorities": {0: 1.0, 5: 1.0}}


# --- speculation and priorities ---------------------------------------------------------------


def test_problems_of_speculation_are_located():
    drafting = {"method": "draft_model", "num_speculative_tokens": 3, "acceptance_rate": 0.7}
    place = "clients.0.speculative_config"
    with pytest.raises(ScenarioError, match=f"{place}.model: must be given with method"):
        scenario(clients__0__speculative_config=drafting)
    with pytest.raises(ScenarioError, match=f"{place}.acceptance_rate: must be in"):
        scenario(clients__0__speculative_config=drafting | {"acceptance_rate": 2})
    message = refusal(clients__0__speculative_config=drafting | {"model": "qwen3-0.6b"})
    assert f"{place}: must name a model with the vocabulary of llama-3.1-8b" in message
    message = refusal(
        clients__0__speculative_config=drafting | {"model": "llama-3.2-1b"},
        clients__0__scheduler__max_num_batched_tokens=900,
        clients__0__scheduler__max_num_seqs=256,
    )
    assert "clients.0.scheduler: must have max_num_batched_tokens >= max_num_seqs" in message


def test_priorities_have_their_shares_and_shift_no_other_draw():
    def requests(**priorities):
        order = {"clients__0__scheduler__order": "priority"}
        return list(build(scenario(**PRESSED, **order, **priorities)).workload.requests(Streams(3)))

    shares = {"workload__priorities": {0: 0.25, 7: 0.75}, "workload__lengths__num_requests": 4000}
    urgent = requests(**shares)
    assert abs(sum(r.priority == 0 for r in urgent) - 1000) < 5 * (4000 * 0.25 * 0.75) ** 0.5
    plain = requests(**shares | {"workload__priorities": None})
    assert {r.priority for r in plain} == {0}
    assert [r.arrival_time for r in plain] == [r.arrival_time for r in urgent]
    assert [r.stages for r in plain] == [r.stages for r in urgent]


# --- time limits, retries and refusals ----------------------------------------------------------

RETRIES = {"max_attempts": 4, "backoff": "100 ms"}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("timeout", "1 s"),
        ("ttft_timeout", "300 ms"),
        ("patience", {"type": "exponential", "mean": "1 s"}),
        ("patience", {"type": "lognormal", "mean": "1 s", "std": "1 s"}),
        ("patience", {"type": "uniform", "low": "0 s", "high": "2 s"}),
    ],
)
def test_every_time_limit_changes_a_result(option, value):
    plain = simulate(scenario(**PRESSED)).summary
    limited = simulate(scenario(**PRESSED, **{f"workload__{option}": value})).summary
    assert plain["failed"] == 0 < limited["failed"]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_attempts", 2),
        ("backoff", "500 ms"),
        ("factor", 1.0),
        ("max_backoff", "150 ms"),
        ("jitter", 0.0),
        ("on", ["rejected"]),
    ],
)
def test_every_option_of_retries_changes_a_result(option, value):
    """Time-outs alone are tried again, unless `on` leaves them out: no queue is ever full."""
    base = PRESSED | {"workload__ttft_timeout": "100 ms", "workload__retries": RETRIES}
    base |= {"clients__0__admission__max_num_waiting": 1_000}
    plain = simulate(scenario(**base)).requests
    changed = simulate(scenario(**base, **{f"workload__retries__{option}": value})).requests
    assert plain["num_attempts"].max() == 4
    assert changed["sent_at"].tolist() != plain["sent_at"].tolist()


@pytest.mark.parametrize(
    "using",
    [
        {"clients__0__admission__drop_expired": True},
        {"clients__0__admission__early_rejection": True},
        {"clients__0__scheduler__order": "earliest_deadline_first"},
    ],
)
@pytest.mark.parametrize("deadline", ["500 ms", {0: "200 ms", 5: "2 s"}])
def test_deadlines_change_result_where_engine_looks_at_them(using, deadline, tmp_path):
    needed = PRIORITIES if isinstance(deadline, dict) else {}
    found = scenario(**PRESSED, **needed, **using, workload__ttft_deadline=deadline)
    result = simulate(found).summary
    plain = simulate(scenario(**PRESSED)).summary
    if isinstance(deadline, dict) or "clients__0__scheduler__order" not in using:
        assert result["mean_ttft_ms"] != plain["mean_ttft_ms"]
    (tmp_path / "again.yaml").write_text(found.resolved(), encoding="utf-8")
    assert Scenario.load(tmp_path / "again.yaml") == found


test_what_is_wrong_with_time_limits_is_said_where_it_is = refused(
    lambda overrides: scenario(**overrides),
    ({"workload__timeout": "0 s"}, "workload.timeout: must be finite and > 0 s, got 0.0"),
    ({"workload__timeout": 30}, "workload.timeout: a duration needs a number and a unit"),
    ({"workload__ttft_deadline": "-1 s"}, "workload.ttft_deadline: must be finite and > 0 s"),
    ({"clients__0__admission__drop_expired": True}, "workload.ttft_deadline: is required for"),
    ({"clients__0__scheduler__order": "earliest_deadline_first"}, "workload.ttft_deadline: is"),
    ({"workload__patience": "exponential"}, "workload.patience.mean: is required"),
    ({"workload__patience": {"type": "weibull"}}, "no duration named 'weibull'"),
    ({"workload__retries": {"jitter": 2.0}}, "workload.retries.jitter: must be in [0, 1]"),
    ({"workload__retries": {"on": ["cancelled"]}}, "workload.retries.on.0"),
    ({"clients__0__admission": {"max_num_wait": 3}}, "did you mean 'max_num_waiting'?"),
)


def test_the_same_draws_with_and_without_patience():
    limits = {"workload__patience": {"type": "exponential", "mean": "9 s"}}
    plain = list(build(scenario(**PRESSED)).workload.requests(Streams(3)))
    limited = list(build(scenario(**PRESSED, **limits)).workload.requests(Streams(3)))
    assert [r.arrival_time for r in plain] == [r.arrival_time for r in limited]
    assert [r.stages for r in plain] == [r.stages for r in limited]
    assert {r.limits for r in plain} == {None}
    assert len({r.limits.patience for r in limited}) == len(limited)


PRIORITY = {"clients__0__scheduler__order": "priority"}
SHORTEST = {"clients__0__scheduler__order": "shortest_predicted_first"}


@pytest.mark.parametrize(
    ("said", "read_by", "name"),
    [
        ({"workload__priorities": {0: 0.2, 10: 0.8}}, PRIORITY, "Priorities of requests"),
        ({"workload__predictions": {"sigma": 0.5}}, SHORTEST, "workload.predictions"),
        (
            {"workload__ttft_deadline": "1 s"},
            {"clients__0__scheduler__order": "earliest_deadline_first"},
            "workload.ttft_deadline",
        ),
    ],
)
def test_what_requests_carry_and_nobody_reads_is_told(said, read_by, name):
    """An order may be compared with first come, first served on the same requests."""
    (told,) = texts(build(scenario(**said)).run().summary, "unread")
    assert told.startswith(f"{name} ha")
    assert " no effect: no client has " in told
    assert texts(build(scenario(**said, **read_by)).run().summary, "unread") == []
