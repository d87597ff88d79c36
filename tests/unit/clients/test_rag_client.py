"""Clients of type rag: four steps of a batch, longer prompts, tables of one's own, bad input."""

from typing import Any

import pytest

from mist_sim import (
    FlatIndex,
    LatencyTable,
    PassageStore,
    RagClient,
    Scenario,
    ScenarioError,
    Simulation,
    Workload,
    simulate,
)
from mist_sim.clients.rag import Query
from mist_sim.core.result_warnings import CUT_TEXTS
from mist_sim.hardware import load_gpu
from mist_sim.scenario.build import build
from mist_sim.scenario.json_schema import json_schema
from mist_sim.stages import Decode, Prefill, Rag
from mist_sim.testing import check_client
from tests.reference.apart import engine
from tests.reference.scenarios import BASE, scenario

INDEX = {"type": "ivf_pq", "num_vectors": 1_000_000, "dimensions": 768, "num_lists": 1024}
INDEX |= {"num_probes": 16, "pq_bytes": 64}
CORES = {"cores": 8, "memory": "64 GiB", "memory_bandwidth": "150 GB/s"}
DOCS: dict[str, Any] = {"name": "docs", "type": "rag", "passage_tokens": 100}
DOCS |= {"index": INDEX, "search": CORES}
EMBEDDER = {"model": "dpr", "gpu": "l4"}
RERANKER = {"model": "ms-marco-minilm-l6", "gpu": "l4"}
FULL = DOCS | {
    "embedder": EMBEDDER,
    "reranker": RERANKER,
    "num_candidates": 20,
    "store": {"latency": "1 ms", "bandwidth": "1 GB/s"},
}


def served(client: dict[str, Any], *, pipeline: Any = None, **more: object) -> Scenario:
    stages = pipeline or ["rag", "prefill", "decode"]
    return scenario(workload__pipeline=stages, clients=[*BASE["clients"], client], **more)


def refusal(**changes: object) -> str:
    with pytest.raises(ScenarioError) as caught:
        build(served(FULL | changes))
    return str(caught.value)


class Each:
    """A pass of one second a text and a tenth a token."""

    def seconds(self, lengths):
        return len(lengths) + sum(lengths) / 10


class Search:
    """A quarter of a second a query, and a sixteenth for each neighbour."""

    def check(self, index):
        """Fits."""

    def seconds(self, index, batch_size, num_results):
        return batch_size / 4 + num_results / 16


def by_hand(**changes: Any) -> RagClient:
    said: dict[str, Any] = {
        "passage_tokens": 10,
        "num_documents": 2,
        "num_candidates": 4,
        "embedder": Each(),
        "index": FlatIndex(num_vectors=10, dimensions=4),
        "search": Search(),
        "reranker": Each(),
        "store": PassageStore(latency=0.5, bandwidth=80.0),
    }
    return RagClient("docs", **said | changes)


def test_a_batch_takes_its_four_steps():
    """Two queries of 5 tokens: 2 + 1 s, 0.5 + 0.25 s, eight pairs of 15, 40 tokens of 4 bytes."""
    requests = Workload.from_lists(
        [5, 5, 5],
        [1, 1, 1],
        [0.0, 0.0, 1.0],
        pipeline=lambda _: (Rag(num_query_tokens=5), Prefill(num_prompt_tokens=5)),
    )
    clients = [by_hand(), engine(None, name="llm")]
    rows = Simulation(clients=clients, workload=requests).run().stages.sort_values("request_id")
    rows = rows[rows["stage"] == "rag"]
    embed, search, rerank, fetch = 2 + 1.0, 0.5 + 0.25, 8 + 12.0, 0.5 + 2.0
    first = embed + search + rerank + fetch
    assert rows.finished_at.tolist()[:2] == [first, first]
    assert rows.started_at.tolist() == [0, 0, first]
    assert rows.finished_at.tolist()[2] == first + (1.5 + 0.5 + 4 + 6 + 0.5 + 1.0)


def test_what_is_found_lengthens_the_prompt():
    """5 tokens, two passages of 10; a stage that asks for three gets three."""

    def pipeline(row):
        number = 3 if row.num_prompt_tokens == 7 else None
        prompt = Prefill(num_prompt_tokens=row.num_prompt_tokens)
        return Rag(num_documents=number), prompt, Decode(num_tokens=1)

    workload = Workload.from_lists([5, 7], [2, 2], [0.0, 0.0], pipeline=pipeline)
    result = Simulation(clients=[by_hand(), engine(None, name="llm")], workload=workload).run()
    assert result.requests["num_prompt_tokens"].tolist() == [25, 37]
    assert result.summary["total_input_tokens"] == 62


def test_each_step_may_be_left_out():
    query = Query(5, (10, 10, 10, 10), 2)
    assert list(by_hand().steps([query])) == ["embed", "search", "rerank", "fetch"]
    bare = by_hand(embedder=None, reranker=None, num_candidates=None, store=None)
    assert bare.steps([query]) == {"search": 0.25 + 0.25}
    assert simulate(served(DOCS)).requests["num_prompt_tokens"].min() > 400


def test_texts_longer_than_a_model_reads_are_told():
    """20 candidates of 480 or 600 tokens, and a question of 50, for models that read 512."""
    pipeline = [{"type": "rag", "num_query_tokens": 50}, "prefill", "decode"]

    def told(tokens, **more):
        result = simulate(served(FULL | {"passage_tokens": tokens} | more, pipeline=pipeline))
        number = 20 * len(result.requests)
        return number, [each.text for each in result.warnings if each.kind is CUT_TEXTS]

    assert not told(462)[1]
    number, (text,) = told(463)
    assert text.startswith(f"{number:,} of {number:,} texts were cut at 512 tokens, the longest")
    assert "ms-marco-minilm-l6 (rerank;" in text
    law = {"type": "uniform", "low": 400, "high": 600}
    number, (text,) = told(law, count=2)
    assert 0 < int(text.split()[0].replace(",", "")) < number
    assert f" of {number:,} texts" in text


def test_a_query_without_a_length_is_the_prompt():
    def seconds(stage):
        row = Workload.from_lists(
            [50], [1], [0.0], pipeline=lambda _: (stage, Prefill(num_prompt_tokens=50))
        )
        result = Simulation(clients=[by_hand(), engine(None, name="llm")], workload=row).run()
        return result.stages.set_index("stage").loc["rag", "finished_at"]

    assert seconds(Rag()) == seconds(Rag(num_query_tokens=50)) > seconds(Rag(num_query_tokens=5))


def test_passages_by_a_law_differ_by_client_and_not_by_other_clients():
    law = {"type": "normal", "mean": 100.0, "std": 30.0}
    one = simulate(served(DOCS | {"passage_tokens": law})).requests["num_prompt_tokens"]
    again = simulate(served(DOCS | {"passage_tokens": law})).requests["num_prompt_tokens"]
    cpu = {"name": "cpu", "type": "sequential", "serves": ["postprocess"], "base_time": "1 ms"}
    more = scenario(
        workload__pipeline=["rag", "prefill", "decode"],
        clients=[*BASE["clients"], DOCS | {"passage_tokens": law}, cpu],
    )
    assert one.tolist() == again.tolist() == simulate(more).requests["num_prompt_tokens"].tolist()
    assert one.nunique() > 10


@pytest.mark.parametrize(
    "changes",
    [
        {"passage_tokens": 60},
        {"passage_tokens": {"type": "fixed", "tokens": 120}},
        {"num_documents": 2},
        {"num_candidates": 60},
        {"embedder": EMBEDDER | {"model": "bge-reranker-v2-m3"}},
        {"embedder": EMBEDDER | {"enforce_eager": False}},
        {"reranker": RERANKER | {"max_num_texts": 4}},
        {"reranker": RERANKER | {"tensor_parallel_size": 2}},
        {"index": INDEX | {"num_probes": 512}},
        {"index": INDEX | {"num_lists": 4096}},
        {"index": INDEX | {"pq_bytes": 96}},
        {"index": {"type": "flat", "num_vectors": 1_000_000, "dimensions": 768}},
        {"index": {"type": "hnsw", "num_vectors": 1_000_000, "dimensions": 768}},
        {"search": CORES | {"cores": 1}},
        {"search": {"type": "gpu", "gpu": "l4"}},
        {"store": None},
        {"store": FULL["store"] | {"bytes_per_token": "100 kB"}},
        {"max_batch_size": 1},
        {"max_wait": "100 ms"},
        {"count": 2},
    ],
)
def test_every_option_changes_the_result(changes):
    def ends(client):
        fast = {"workload__arrivals__rate": "2000 /s"}
        return simulate(served(client, **fast)).stages["finished_at"].tolist()

    assert ends(FULL) != ends(FULL | changes)


# --- tables of one's own ------------------------------------------------------------------------


def table(tmp_path, text: str) -> str:
    path = tmp_path / "batches.csv"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_table_takes_the_place_of_the_model(tmp_path):
    path = table(tmp_path, "batch_size,seconds\n1,0.5\n4,2.0\n8,3.0\n")
    client = RagClient(
        "docs", passage_tokens=0, latency_table=LatencyTable(path=path), max_batch_size=8
    )
    arrivals = [0.0, 0.1, 0.2]
    rows = Simulation(
        clients=[client],
        workload=Workload.from_lists([1] * 3, [1] * 3, arrivals, pipeline=lambda _: (Rag(),)),
    ).run()
    assert rows.stages.sort_values("request_id").finished_at.tolist() == [0.5, 1.5, 1.5]


def test_a_table_by_probes(tmp_path):
    rows = [(n, b) for n in (8, 16) for b in (1, 32)]
    lines = ["num_probes,batch_size,seconds", *(f"{n},{b},{n * b / 8}" for n, b in rows)]
    path = table(tmp_path, "\n".join(lines) + "\n")
    assert LatencyTable(path=path, num_probes=8).seconds(32) == 32
    assert LatencyTable(path=path, num_probes=12).seconds(1) == 1.5
    assert LatencyTable(path=path, num_probes=10).seconds(4) == 10 * 4 / 8
    client = {"name": "docs", "type": "rag", "passage_tokens": 100}
    said = client | {"latency_table": {"path": path, "num_probes": 16}, "max_batch_size": 2}
    assert simulate(served(said)).summary["completed"] == 50


@pytest.mark.parametrize(
    ("text", "said", "rule"),
    [
        ("batch_size\n1\n", {}, "seconds"),
        ("batch_size,seconds\n", {}, "must have a row with batch_size 1, got no rows"),
        ("batch_size,seconds\n2,1\n", {}, "must have a row with batch_size 1, got 2 first"),
        ("batch_size,seconds\n1,1\n1,2\n", {}, ":3: batch_size must differ"),
        ("batch_size,seconds\n1,1\n1.5,2\n", {}, ":3: batch_size must be a whole number >= 1"),
        ("batch_size,seconds\n1,x\n", {}, ":2: seconds must be a number >= 0"),
        ("batch_size,seconds\n1,-1\n", {}, ":2: seconds must be a number >= 0"),
        ("batch_size,seconds\n1,1\n", {"num_probes": 4}, "num_probes must be left out"),
        ("batch_size,seconds,num_probes\n1,1,4\n", {}, "num_probes must be given"),
        ("batch_size,seconds,num_probes\n1,1,4\n", {"num_probes": 5}, "must be from 4 to 4"),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path, text, said, rule):
    path = table(tmp_path, text)
    with pytest.raises((ValueError, ScenarioError), match=rule):
        LatencyTable(path=path, **said)
    client = {"name": "docs", "type": "rag", "passage_tokens": 1, "max_batch_size": 1}
    with pytest.raises(ScenarioError, match="latency_table"):
        served(client | {"latency_table": {"path": path, **said}})


def test_a_batch_beyond_the_table_is_refused(tmp_path):
    path = table(tmp_path, "batch_size,seconds\n1,1\n8,2\n")
    with pytest.raises(ValueError, match="max_batch_size must be <= 8, the largest of latency_t"):
        RagClient("docs", passage_tokens=0, latency_table=LatencyTable(path=path))


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"index": None}, "index is required without latency_table"),
        ({"search": None}, "search is required without latency_table"),
        ({"num_candidates": None}, "num_candidates must be given with reranker"),
        ({"reranker": None}, "num_candidates must be left out without reranker"),
        ({"num_candidates": 3}, "num_candidates must be >= num_documents (4), got 3"),
        ({"num_documents": 0}, "num_documents must be >= 1, got 0"),
        ({"passage_tokens": -1}, "passage_tokens must be >= 0, got -1"),
        ({"passage_tokens": 0}, "passage_tokens must be > 0 with reranker"),
        (
            {"passage_tokens": 0, "reranker": None, "num_candidates": None},
            "passage_tokens must be > 0 with store",
        ),
        ({"passage_tokens": 1.5}, "passage_tokens: must be a whole number or a law of lengths"),
        ({"passage_tokens": "fixd"}, "no length named 'fixd'; did you mean 'fixed'"),
        ({"max_batch_size": 0}, "max_batch_size must be >= 1, got 0"),
        ({"max_wait": "-1 s"}, "max_wait must be finite and >= 0 s, got -1.0"),
        ({"index": INDEX | {"num_vectors": 10**10}}, "num_vectors: must be <= 1000000000"),
        ({"index": INDEX | {"num_vectors": 10**9}}, "index: must fit the memory of 8 cores"),
        ({"index": INDEX | {"num_vectors": 10}}, "num_lists must be <= 10, the vectors"),
        (
            {"index": INDEX | {"type": "ivfpq"}},
            "no vector index named 'ivfpq'; did you mean 'ivf_pq'",
        ),
        ({"search": {"type": "gpu"}}, "gpu"),
        ({"search": CORES | {"core": 1}}, "core"),
        ({"embedder": EMBEDDER | {"model": "brt"}}, "clients.1.embedder.model: no model"),
        ({"store": {"latency": "1 ms", "bandwidth": "0 B/s"}}, "bandwidth must be finite and > 0"),
        ({"serves": ["rag"]}, "serves"),
    ],
)
def test_bad_input_is_refused_with_field_rule_and_value(changes, rule):
    field, _, text = rule.partition(" ")
    message = refusal(**changes)
    assert "clients.1" in message
    assert (f"{field}: {text}" in message) or (rule in message)


def test_what_is_found_needs_a_prompt_ahead():
    with pytest.raises(
        ScenarioError, match="docs: .*no stage .*'prefill' .*is ahead, but nothing; put"
    ):
        simulate(served(DOCS, pipeline=["prefill", "decode", "rag"]))
    ours = DOCS | {"passage_tokens": 0}
    assert simulate(served(ours, pipeline=["prefill", "decode", "rag"])).summary["completed"]


def test_a_stage_wants_more_than_the_search_finds():
    many = [{"type": "rag", "num_documents": 21}, "prefill", "decode"]
    with pytest.raises(ScenarioError, match="docs: num_documents .* <= 20, .*got 21 .*; raise"):
        simulate(served(FULL, pipeline=many))


def test_numbers_of_a_stage_that_nothing_depends_on():
    with pytest.raises(ScenarioError, match="pipeline.0.num_query_tokens: has no effect"):
        build(served(DOCS, pipeline=[{"type": "rag", "num_query_tokens": 9}, "prefill", "decode"]))
    build(served(FULL, pipeline=[{"type": "rag", "num_query_tokens": 9}, "prefill", "decode"]))


def test_the_schema_has_the_type_and_its_options():
    text = str(json_schema())
    for word in ("passage_tokens", "num_probes", "ef_search", "enforce_eager", "latency_table"):
        assert word in text


# --- a full client ------------------------------------------------------------------------------


def test_it_passes_the_checks_of_clients():
    check_client(by_hand)
    check_client(lambda: by_hand(max_batch_size=3, max_wait=0.5))


def test_its_gpus_work_draw_and_cost():
    """GPU seconds are those of the passes, group by group; both cards are paid for all the time."""
    result = simulate(served(FULL, cost={}, slo={"ttft": "100 s"}))
    steps = result.steps[result.steps["client"] == "docs"]
    passes = steps["end"] - steps["start"]
    assert (passes > 0).all()
    assert steps["num_prefill_tokens"].sum() > 50 * 20 * 100
    docs = result.clients.set_index("client").loc["docs"]
    assert docs["num_gpus"] == 2
    assert docs["idle_energy"] < docs["energy"]
    seconds = result.summary["duration"]
    waiting = 2 * seconds - passes.sum()
    l4 = load_gpu("l4")
    idle_watts = l4.draw.idle * l4.power
    assert docs["idle_energy"] == pytest.approx(idle_watts * waiting, rel=1e-6)
    in_steps = docs["energy"] - docs["idle_energy"]
    assert idle_watts * passes.sum() < in_steps < l4.power * passes.sum()
    dear = FULL | {"reranker": RERANKER | {"gpu_price": "1000 $/h"}}
    more = simulate(served(dear, cost={}, slo={"ttft": "100 s"}))
    assert more.summary["cost_usd"] > 100 * result.summary["cost_usd"]


def test_a_price_asks_for_the_cost_and_a_cost_needs_a_gpu_that_is_known():
    dear = FULL | {"embedder": EMBEDDER | {"gpu_price": "1 $/h"}}
    assert served(dear) == served(dear, cost={})
    searches = DOCS | {"search": {"type": "gpu", "gpu": "l4"}}
    with pytest.raises(ScenarioError, match="the GPUs of docs are unknown"):
        simulate(served(searches, cost={}))


def test_passes_are_written_when_they_take_place():
    """Each re-ranking of a batch begins when its questions are embedded, and searched for."""
    result = simulate(served(FULL))
    steps = result.steps.query("client == 'docs'")
    embed, rerank = (steps[steps["track"] == track] for track in sorted(steps["track"].unique()))
    batches = result.stages.query("stage == 'rag'").drop_duplicates("started_at")
    assert embed["start"].tolist() == batches["started_at"].tolist()
    assert len(rerank) == len(batches)
    searching = rerank["start"].to_numpy() - embed["end"].to_numpy()
    fetching = batches["finished_at"].to_numpy() - rerank["end"].to_numpy()
    assert searching.min() > 1e-4
    assert fetching.min() > 1e-3  # its latency


def test_its_gpus_are_counted_through_a_failure():
    """The tracks that it opens when it comes back are those of its models again."""
    fails = {"failures": [{"clients": ["docs"], "at": ["5 s"], "repair": "200 ms"}]}
    result = simulate(served(FULL, cost={}, slo={"ttft": "100 s"}, lifecycle=fails))
    assert result.summary["completed"] == 50
    steps = result.steps[result.steps["client"] == "docs"]
    assert steps["track"].nunique() == 4
    docs = result.clients.set_index("client").loc["docs"]
    assert 0 < docs["idle_energy"] < docs["energy"]
