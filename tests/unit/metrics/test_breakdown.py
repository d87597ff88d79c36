"""Where latencies go: parts by hand, in the table, in the summary, as printed."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

import mist_sim as mist
from mist_sim import Decode, Prefill, SequentialClient, Workload, simulate
from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.lifecycle import Failures, Lifecycle
from mist_sim.report.run import results_table
from mist_sim.stages import Preprocess
from mist_sim.traces import Retries, TimeLimits, template
from tests.reference.engines import llm_engine
from tests.reference.predictors import ConstantPredictor
from tests.reference.scenarios import PRESSED, scenario

APART = {
    "clients": [
        {"name": "p", "gpu": "h100-sxm", "role": "prefill"},
        {"name": "d", "gpu": "h100-sxm", "role": "decode"},
    ],
    "network": {"bandwidth": "1 GB/s", "latency": "2 ms"},
}


def engine():
    """One request at a time, in steps of 1 s."""
    predictor, scheduler = ConstantPredictor(1.0), ChunkedScheduler(max_num_seqs=1)
    return llm_engine("llm", predictor=predictor, scheduler=scheduler, num_gpu_blocks=100)


def run(lengths, clients=(), **options):
    workload = options.pop("workload", None) or Workload.from_lists(*zip(*lengths, strict=True))
    clients = list(clients) or [engine()]
    return mist.Simulation(clients=clients, workload=workload, **options).run()


def parts(result: mist.Result) -> list[dict[str, float]]:
    """Return the parts of each request's latency that are not 0."""
    table = result.breakdown.drop(columns=["request_id", "e2el"])
    return [{name: x for name, x in row.items() if x} for row in table.to_dict("records")]


def test_queue_prompt_and_answer():
    """One at a time, steps of 1 s: the second waits for the five steps of the first."""
    result = run([(10, 5, 0.0), (10, 3, 0.0)])
    assert parts(result) == [{"prefill": 1, "decode": 4}, {"queue": 5, "prefill": 1, "decode": 2}]


def test_stages_that_workers_serve_in_one_visit_share_a_name():
    worker = SequentialClient("worker", serves=["preprocess", "tool_call"], base_time=2.0)
    pipeline = template([Preprocess(num_tokens=1), mist.ToolCall(duration=3.0), Prefill, Decode])
    workload = Workload.from_lists([10, 10], [2, 2], pipeline=pipeline)
    result = run((), [worker, engine()], workload=workload)
    work = sum(result.stages.query("request_id == 0 and stage == 'preprocess'")["finished_at"])
    name = "preprocess + tool_call"
    assert parts(result)[0] == {name: work, "prefill": 1, "decode": 1}
    assert parts(result)[1] == {"queue": work, name: work, "prefill": 1, "decode": 1}


@pytest.mark.parametrize("transfer", ["pull", "push"])
def test_a_transfer_takes_its_bytes_over_the_link(transfer):
    """Alone on the link: bytes over 1 GB/s and 2 ms. What is reserved ahead changes no part."""
    slow = {"workload__arrivals": {"type": "constant", "rate": "0.05 /s"}}
    result = simulate(scenario(**APART, **slow, hand_over={"transfer": transfer}))
    moved = result.transfers["num_bytes"] / 1e9 + 2e-3
    found = result.breakdown
    assert found["transfer"].tolist() == pytest.approx(moved.tolist())
    prompts = result.stages.query("stage == 'prefill'")
    seconds = prompts["finished_at"] - prompts["started_at"]
    assert found["prefill"].tolist() == pytest.approx(seconds.tolist())
    assert (found["queue"] == 0).all()
    communication = result.summary["communication"]["hand_over"]
    assert communication == {
        "transfers": 50,
        "tokens": result.transfers["num_tokens"].sum(),
        "bytes": result.transfers["num_bytes"].sum(),
        "seconds": pytest.approx(moved.sum()),
    }


def test_attempts_in_vain_are_told_apart():
    """The second gives up 4.5 s after sending, with a token; 1 s later it is sent again."""
    workload = replace(
        Workload.from_lists([10, 10], [4, 2]),
        time_limits=TimeLimits(timeout=4.5),
        retries=Retries(max_attempts=2, backoff=1.0, jitter=0.0),
    )
    result = run((), workload=workload)
    assert parts(result)[0] == {"prefill": 1, "decode": 3}
    assert parts(result)[1] == {"retries": 5.5, "prefill": 1, "decode": 1}


def test_nobody_has_request_while_all_clients_are_away():
    """The client fails at 1.5 s with a token emitted, and is back at 4.5 s."""
    life = Lifecycle(failures=(Failures(clients=("llm",), at=(1.5,), repair=3.0),))
    result = run([(10, 3, 0.0)], lifecycle=life)
    assert parts(result) == [{"prefill": 2, "decode": 1.5, "gateway": 3.0}]


def test_children_count_in_the_stage_that_sent_them():
    """A safety pass of 1 s before the answer of 2 s, twice; the second waits behind the first."""
    options = {"predictor": ConstantPredictor(1.0), "scheduler": ChunkedScheduler()}
    filters = llm_engine("f", num_gpu_blocks=100, **options)
    filters.traits = replace(filters.traits, model="small")
    llm = engine()
    llm.traits = replace(llm.traits, model="big")
    workload = Workload.from_lists(
        [8, 8],
        [2, 2],
        pipeline=template([mist.ModelPass(model="small", text="prompt"), Prefill, Decode]),
    )
    workload = replace(workload, models={"big": 1.0})
    result = run((), [mist.ApplicationClient("app"), filters, llm], workload=workload)
    assert parts(result) == [
        {"model_pass": 1, "prefill": 1, "decode": 1},
        {"model_pass": 1, "queue": 2, "prefill": 1, "decode": 1},
    ]
    assert result.breakdown["e2el"].mean() * 1e3 == result.summary["mean_e2el_ms"] == 4000
    own = result.stages.query("request_id >= 0 and stage == 'model_pass'")
    assert (own["finished_at"] - own["started_at"]).tolist() == [1, 1]
    by_stage = result.summary["stage_latency_ms"]
    assert by_stage["model_pass"] == {"count": 2, "mean": 1e3, "p50": 1e3, "p90": 1e3, "p99": 1e3}
    assert by_stage["prefill"]["mean"] == 2000  # 1 s, and 1 s behind a queue of 2 s
    assert set(by_stage) == {"model_pass", "prefill", "decode"}


def test_a_table_that_there_is_not():
    with pytest.raises(mist.ScenarioError, match="no 'banana'. Known: requests, stages, steps"):
        run([(10, 5)]).columns("banana")


def test_figures_of_the_summary():
    result = simulate(scenario(**PRESSED, warmup="0.3 s"))
    late = result.requests["arrival_time"] >= 0.3
    table = result.breakdown[late & (result.requests["status"] == "finished")]
    found = result.summary["latency_breakdown_ms"]
    for name, figures in found.items():
        assert figures["mean"] == pytest.approx(table[name].mean() * 1e3)
        assert figures["p90"] == pytest.approx(table[name].quantile(0.9) * 1e3)
        assert figures["share"] == pytest.approx(table[name].sum() / table["e2el"].sum())
    means = sum(figures["mean"] for figures in found.values())
    assert means == pytest.approx(result.summary["mean_e2el_ms"], rel=1e-12)


def test_what_is_printed():
    console = Console(width=80, record=True, file=io.StringIO())
    result = simulate(scenario(**APART))
    console.print(results_table(result))
    text = console.export_text()
    shown = result.summary["latency_breakdown_ms"]["transfer"]
    assert "Where the time goes, ms" in text
    assert f"transfer {shown['share']:.1%}".replace("%", " %") in " ".join(text.split())
    assert "hand over         50  61,923  8.17" in text
    console.print(results_table(simulate(scenario())))
    text = console.export_text()
    assert "Communication" not in text
    assert "Stages with their queues" not in text


def test_requests_that_were_rejected_spent_no_time():
    result = run([(10_000, 5, 0.0)])
    assert result.requests["status"].tolist() == ["rejected"]
    assert parts(result) == [{}]
    assert result.summary["latency_breakdown_ms"]["queue"]["share"] != 0
