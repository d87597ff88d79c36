"""Routers of stages, polls and models that requests name, as scenario files say them."""

import json

import pytest

from mist_sim import (
    LeastOutstandingRouter,
    PolledRouter,
    RandomRouter,
    RoundRobinRouter,
    Rows,
    Scenario,
    ScenarioError,
    Simulation,
    TraceArrivals,
    TraceRow,
    Workload,
    llm_client,
    simulate,
)
from mist_sim.scenario.build import build
from tests.commands import exit_code
from tests.refusals import refused
from tests.warned import texts

SMALL, OTHER = "llama-3.1-8b", "qwen3-8b"
CHAT = {"name": "chat", "gpu": "h100-sxm", "model": SMALL, "count": 2}
ALSO = {"name": "also", "gpu": "h100-sxm", "model": OTHER}
TEXT = {"name": "text", "type": "sequential", "serves": ["preprocess"], "base_time": "1 ms"}
PREFILL = CHAT | {"name": "p", "role": "prefill"}
DECODE = CHAT | {"name": "d", "role": "decode"}
LENGTHS = {
    "type": "synthetic",
    "num_requests": 40,
    "prompt": {"type": "fixed", "tokens": 50},
    "output": {"type": "fixed", "tokens": 5},
}


def said(clients, workload=None, **more):
    arrivals = {"type": "constant", "rate": "50 /s"}
    return {"workload": {"lengths": LENGTHS, "arrivals": arrivals} | (workload or {})} | {
        "clients": clients,
        **more,
    }


def clients_of(result, stage="prefill"):
    return set(result.stages[result.stages.stage == stage].client)


# --- models -----------------------------------------------------------------------------------


def test_requests_go_to_clients_that_serve_their_model():
    shares = {SMALL: 0.25, OTHER: 0.75}
    result = simulate(Scenario.from_dict(said([CHAT, ALSO], {"models": shares})))
    visits = result.clients.set_index("client").num_visits
    assert visits.sum() == 40
    assert 20 <= visits["also"] < 40  # 30 on average
    assert simulate(Scenario.from_dict(said([CHAT, ALSO]))).clients.num_visits.tolist() == [
        14,
        13,
        13,
    ]


def test_in_turn_among_those_of_a_model():
    """Models that alternate do not share a turn, of which each would have every other one."""
    clients = [llm_client(f"{model}-{k}", model=model) for model in (SMALL, OTHER) for k in (0, 1)]
    rows = [TraceRow(9, 2, float(k), model=(SMALL, OTHER)[k % 2]) for k in range(8)]
    workload = Workload(Rows(rows), TraceArrivals())
    result = Simulation(clients=clients, workload=workload, router=RoundRobinRouter()).run()
    assert result.clients.num_visits.tolist() == [2, 2, 2, 2]


def test_who_serves_no_model_serves_all():
    pipeline = [{"type": "preprocess", "num_tokens": 9}, "prefill", "decode"]
    workload = {"models": {OTHER: 1.0}, "pipeline": pipeline}
    result = simulate(Scenario.from_dict(said([CHAT, ALSO, TEXT], workload)))
    assert clients_of(result, "preprocess") == {"text"}
    assert clients_of(result) == clients_of(result, "decode") == {"also"}


def test_each_model_has_its_own_pair_of_prefill_and_decode():
    others = [PREFILL | {"name": "q", "model": OTHER}, DECODE | {"name": "e", "model": OTHER}]
    network = {"network": {"bandwidth": "400 Gb/s"}}
    both = said([PREFILL, DECODE, *others], {"models": {SMALL: 0.5, OTHER: 0.5}}, **network)
    result = simulate(Scenario.from_dict(both))
    for request in result.stages.groupby("request_id"):
        first, then = request[1].client
        assert (first[0], then[0]) in (("p", "d"), ("q", "e"))
    del both["workload"]["models"]
    with pytest.raises(ScenarioError, match="clients.2.model: must be llama-3.1-8b"):
        Scenario.from_dict(both)


def test_rows_of_files_name_models(tmp_path):
    lengths = tmp_path / "lengths.csv"
    header = "num_prefill_tokens,num_decode_tokens,model\n"
    lengths.write_text(f"{header}10,2,{SMALL}\n20,3,{OTHER}\n30,4,{OTHER}\n")
    trace = {"type": "lengths_csv", "path": str(lengths), "model_column": "model"}
    workload = {"lengths": None, "trace": trace}
    result = simulate(Scenario.from_dict(said([CHAT, ALSO], workload)))
    assert list(result.stages[result.stages.stage == "prefill"].client) == [
        "chat-0",
        "also",
        "also",
    ]

    mooncake = tmp_path / "trace.jsonl"
    row = {"timestamp": 0, "input_length": 9, "output_length": 2, "hash_ids": []}
    mooncake.write_text("\n".join(json.dumps(row | {"llm": name}) for name in (OTHER, SMALL)))
    workload["trace"] = {"type": "mooncake", "path": str(mooncake), "model_key": "llm"}
    result = simulate(Scenario.from_dict(said([CHAT, ALSO], workload)))
    assert list(result.stages[result.stages.stage == "prefill"].client) == ["also", "chat-0"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("qwen3-88b", "names the model 'qwen3-88b': no client serves it; did you mean 'qwen3-8b'?"),
        ("", "model must name a model, got ''; correct the row"),
    ],
)
def test_model_that_nobody_serves_is_found_before_run(name, problem, tmp_path, capsys):
    header = "num_prefill_tokens,num_decode_tokens,model"
    (tmp_path / "rows.csv").write_text(f"{header}\n10,2,{SMALL}\n\n20,3,{name}\n20,3,x\n")
    trace = {"type": "lengths_csv", "path": str(tmp_path / "rows.csv"), "model_column": "model"}
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(json.dumps(said([CHAT, ALSO], {"lengths": None, "trace": trace})))
    assert exit_code("run", str(scenario), "--quiet", "--out", str(tmp_path / "out")) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert f"rows.csv:4: {problem}" in err
    assert not (tmp_path / "out").exists()


def test_a_row_made_in_python_that_names_a_model_of_nobody():
    rows = [TraceRow(9, 2, 0.0), TraceRow(9, 2, 1.0, model="gpt")]
    client = llm_client("a", model=SMALL)
    simulation = Simulation(clients=[client], workload=Workload(Rows(rows), TraceArrivals()))
    with pytest.raises(ScenarioError, match="request 1 names the model 'gpt', which no client"):
        simulation.run()


# --- routers of stages ------------------------------------------------------------------------


class Notes:
    def __init__(self):
        self.kinds = []

    def choose(self, request, stage, candidates):
        self.kinds.append(stage.kind)
        return candidates[0].client_id


def test_each_stage_asks_its_own_router():
    scenario = Scenario.from_dict(said([PREFILL, DECODE], network={"bandwidth": "400 Gb/s"}))
    default, of_decode = Notes(), Notes()
    simulation = build(scenario)
    simulation.router, simulation.routers = default, {"decode": of_decode}
    simulation.run()
    assert set(default.kinds) == {"prefill"}
    assert set(of_decode.kinds) == {"decode"}
    assert len(default.kinds) == len(of_decode.kinds) == 40


def test_router_of_stage_shifts_no_draws_of_others():
    def prefills(**more):
        data = said([PREFILL, DECODE], network={"bandwidth": "400 Gb/s"}, router="random")
        result = simulate(Scenario.from_dict(data | more))
        return list(result.stages[result.stages.stage == "prefill"].client)

    assert prefills(routers={"decode": "round_robin"}) == prefills(routers={"decode": "random"})


def test_routers_of_scenario_poll_where_it_says_so():
    data = said([PREFILL, DECODE], network={"bandwidth": "400 Gb/s"}, router="least_outstanding")
    data |= {"routers": {"decode": "random"}, "view_interval": "50 ms", "counts_sent": False}
    scenario = Scenario.from_dict(data)
    assert "router least_outstanding, random for decode;" in scenario.headline
    assert Scenario.from_yaml(scenario.resolved()) == scenario
    simulation = build(scenario)
    polls = {"view_interval": 0.05, "counts_sent": False}
    assert simulation.router == PolledRouter(router=LeastOutstandingRouter(), **polls)
    assert simulation.routers == {"decode": PolledRouter(router=RandomRouter(), **polls)}
    exact = build(Scenario.from_dict(data | {"view_interval": "0 s"}))
    assert exact.router == LeastOutstandingRouter()


def test_router_of_stage_that_nobody_serves_in_python():
    with pytest.raises(
        ScenarioError, match="routers.decod: no client serves 'decod'; did you mean"
    ):
        Simulation(
            clients=[llm_client("a", model=SMALL)],
            workload=Workload(Rows([TraceRow(9, 2, 0.0)]), TraceArrivals()),
            routers={"decod": RandomRouter()},
        )


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"routers": {"decod": "random"}}, "routers.decod: there is no stage 'decod'; did you"),
        ({"routers": {"rag": "random"}}, "routers.rag: no client serves 'rag'; the clients serve"),
        ({"routers": {"decode": "random"}}, "routers.decode: has no effect: no client has a role"),
        (
            {"routers": {"preprocess": "random"}, "clients": [CHAT, TEXT]},
            "routers.preprocess: has no effect: no request walks it",
        ),
        ({"routers": {"prefill": "randon"}}, "no router named 'randon'; did you mean 'random'?"),
        ({"view_interval": "-1 s"}, "view_interval: must be >= 0 s, got -1.0"),
        ({"view_interval": "1 s", "router": "random"}, "view_interval: has no effect: random and"),
        ({"counts_sent": False}, "counts_sent: has no effect without view_interval"),
        ({"router": {"type": "load", "by": "answer"}}, "router.by: must be 'input_length'"),
        ({"router": {"type": "heavy_light", "threshold": 0}}, "router.threshold: must be finite"),
        (
            {"router": {"type": "heavy_light", "heavy_share": 1}},
            "router.heavy_share: must be in (0, 1), got 1",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(more, problem):
    data = said([CHAT], router="least_outstanding") | more
    with pytest.raises(ScenarioError) as refused:
        Scenario.from_dict(data)
    assert problem in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


test_models_that_make_no_sense_are_refused = refused(
    lambda models: Scenario.from_dict(said([CHAT], {"models": models})),
    ({OTHER: 1}, "workload.models.qwen3-8b: no client serves it. The clients serve llama"),
    ({SMALL: 0}, "workload.models.llama-3.1-8b: must be > 0, got 0"),
    ({"llama-3.1-8": 1}, "workload.models: no model and no file is named 'llama-3.1-8'"),
    ({}, "workload.models: must have at least one entry"),
)


def test_models_are_named_once(tmp_path):
    (tmp_path / "a.csv").write_text(f"num_prefill_tokens,num_decode_tokens,m\n9,2,{SMALL}\n")
    trace = {"type": "lengths_csv", "path": str(tmp_path / "a.csv"), "model_column": "m"}
    workload = {"lengths": None, "trace": trace, "models": {SMALL: 1}}
    with pytest.raises(ScenarioError, match="models: must be left out where the rows of the trace"):
        Scenario.from_dict(said([CHAT], workload))
    trace["model_column"] = "num_decode_tokens"
    with pytest.raises(ScenarioError, match="model_column: must differ from those of the lengths"):
        Scenario.from_dict(said([CHAT], {"lengths": None, "trace": trace}))


# --- routers that have nothing to go by ----------------------------------------------------------

SHARED = {
    "type": "prefix_repetition",
    "num_requests": 20,
    "num_prefixes": 3,
    "prefix_len": 64,
    "suffix": {"type": "fixed", "tokens": 9},
    "output": {"type": "fixed", "tokens": 2},
}
UNCACHED = {**CHAT, "kv_cache": {"enable_prefix_caching": False}}


@pytest.mark.parametrize(
    ("router", "clients", "lengths", "why"),
    [
        ("session_affinity", [CHAT], LENGTHS, "no request is of a session"),
        ("prefix_affinity", [CHAT], LENGTHS, "no prompt begins as an earlier one"),
        ("prefix_affinity", [UNCACHED], SHARED, "no client caches prefixes"),
        ("prefix_affinity", [CHAT], SHARED, ""),
        ("prefix_affinity", [{**CHAT, "count": 1}], LENGTHS, ""),
        ("least_outstanding", [CHAT], LENGTHS, ""),
        ("placement_aware", [CHAT], LENGTHS, "no request brings KV entries"),
    ],
)
def test_router_without_anything_to_go_by_is_told(router, clients, lengths, why):
    found = simulate(Scenario.from_dict(said(clients, {"lengths": lengths}, router=router)))
    told = texts(found.summary, "blind router")
    assert len(told) == bool(why)
    assert all(why in text for text in told)


def test_a_router_by_kv_entries_has_those_that_are_handed_over():
    apart = said([PREFILL, DECODE], routers={"decode": "placement_aware"})
    apart["network"] = {"bandwidth": "100 Gb/s", "latency": "10 us"}
    assert texts(simulate(Scenario.from_dict(apart)).summary, "blind router") == []


def test_sessions_are_enough_for_a_router_by_session(tmp_path):
    path = tmp_path / "log.csv"
    rows = "".join(f"{time},9,2,{time % 3}\n" for time in range(9))
    path.write_text(f"timestamp,prompt_tokens,output_tokens,chat\n{rows}")
    trace = {"type": "csv", "path": str(path), "session_column": "chat"}
    data = {"workload": {"trace": trace}, "clients": [CHAT], "router": "session_affinity"}
    assert texts(simulate(Scenario.from_dict(data)).summary, "blind router") == []


def test_the_router_of_one_stage_is_told_if_it_has_nothing_to_go_by():
    apart = said([PREFILL, DECODE], routers={"prefill": "prefix_affinity"})
    apart["network"] = {"bandwidth": "100 Gb/s", "latency": "10 us"}
    for polls in ({}, {"view_interval": "50 ms"}):
        (told,) = texts(simulate(Scenario.from_dict(apart | polls)).summary, "blind router")
        assert told.startswith("The router prefix_affinity has nothing to go by: ")
