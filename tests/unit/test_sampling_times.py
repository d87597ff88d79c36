"""What top-p and top-k cost, by sampler: beside published figures, and in a step."""

from __future__ import annotations

import csv
import json
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim import Scenario, llm_client, simulate
from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.errors import ScenarioError
from mist_sim.hardware.predictors.explained import explained
from mist_sim.hardware.sampling import SAMPLERS, Sampling, SamplingTimes
from mist_sim.scenario.from_vllm.commands import from_vllm
from tests.effort import examples

ASKS = {
    "top_k": Sampling(top_k=20),
    "top_p": Sampling(top_p=0.9),
    "both": Sampling(top_k=20, top_p=0.9),
}
TEXT = files("mist_sim.hardware").joinpath("sampler_times.csv").read_text("utf-8")
CELLS = list(csv.DictReader(line for line in TEXT.splitlines() if line[0] != "#"))


def milliseconds(sampler, masked_by, rows, words):
    return 1e3 * SamplingTimes(ASKS[masked_by], words, sampler).seconds(rows)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: " ".join(cell.values()))
def test_measured_cells_are_met(cell):
    """A sort's cells of equal rows x words are of two GPUs; of few rows triton leaves it to it."""
    rows, words = int(cell["rows"]), int(cell["vocabulary"])
    if cell["sampler"] == "triton" and rows < 8:
        return
    found = milliseconds(cell["sampler"], cell["filter"], rows, words)
    assert found == pytest.approx(float(cell["ms"]), rel=1e-9)


@pytest.mark.parametrize(
    ("sampler", "masked_by", "rows", "words", "published"),
    [
        ("pytorch", "top_k", 256, 131_072, 3.812),  # pull request 32558
        ("pytorch", "top_k", 1, 32_768, 0.094),  # 51507, as the next two
        ("pytorch", "top_p", 1, 32_768, 0.104),
        ("pytorch", "both", 1, 32_768, 0.130),
        ("pytorch", "top_p", 512, 32_768, 2.252),  # 33538, as the next one
        ("pytorch", "both", 512, 32_768, 2.572),
        ("pytorch", "both", 48, 32_768, 0.481),
        ("pytorch", "both", 64, 131_072, 1.074),  # 40376, its second GPU, as those below
        ("pytorch", "both", 128, 131_072, 2.399),
        ("triton", "both", 128, 131_072, 0.359),
        ("flashinfer", "top_k", 128, 131_072, 0.198),
        ("flashinfer", "top_p", 128, 131_072, 0.139),
        ("flashinfer", "both", 128, 131_072, 0.267),
    ],
)
def test_figures_that_are_no_cells_are_met_within_a_quarter(
    sampler, masked_by, rows, words, published
):
    assert milliseconds(sampler, masked_by, rows, words) == pytest.approx(published, rel=0.25)


@given(
    sampler=st.sampled_from(SAMPLERS),
    masked_by=st.sampled_from(sorted(ASKS)),
    rows=st.integers(8, 900),
    more=st.integers(1, 200),
    words=st.integers(20_000, 260_000),
)
@examples(200)
def test_more_rows_never_take_less_time(sampler, masked_by, rows, more, words):
    less = milliseconds(sampler, masked_by, rows, words)
    assert milliseconds(sampler, masked_by, rows + more, words) >= less * (1 - 1e-12)
    assert less > 0


def test_few_rows_are_sorted_where_the_version_has_triton():
    assert milliseconds("triton", "top_p", 7, 131_072) == milliseconds(
        "pytorch", "top_p", 7, 131_072
    )
    assert milliseconds("triton", "top_p", 200, 131_072) < milliseconds(
        "pytorch", "top_p", 200, 131_072
    )


@pytest.mark.parametrize(
    ("engine", "sampler"),
    [("vllm-0.12", "pytorch"), ("vllm-0.19", "triton"), ("vllm-0.33", "flashinfer")],
)
def test_sampling_is_an_operator_of_the_step(engine, sampler):
    """On top of the kernels, in single steps and in runs alike, with the bits of one another."""
    options = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "engine": engine}
    plain = llm_client("a", **options, async_scheduling=False).predictor.ranks[0]
    asked = llm_client(
        "a", **options, async_scheduling=False, sampling=ASKS["both"]
    ).predictor.ranks[0]
    batch = StepBatch(((300, 0),), 40, 40_000)
    more = milliseconds(sampler, "both", 41, 128_256) / 1e3
    assert asked.step_time(batch) - plain.step_time(batch) == pytest.approx(more)
    steps = asked.run(StepBatch((), 40, 40_000), StepGrowth(40), 3)
    single = [asked.step_time(StepBatch((), 40, 40_000 + 40 * k)) for k in range(3)]
    assert steps.tolist() == single
    parts = explained(asked, batch)
    assert [each.seconds for each in parts if each.name == "sampling"] == pytest.approx([more])
    assert sum(each.seconds for each in parts) == pytest.approx(asked.step_time(batch))


def test_greedy_requests_take_what_they_took():
    options = {"model": "llama-3.1-8b", "gpu": "h100-sxm"}
    batch = StepBatch((), 9, 900)
    plain = llm_client("a", **options).predictor.ranks[0].step_time(batch)
    greedy = Sampling(temperature=0, top_p=0.9, top_k=20)
    for sampling in (greedy, Sampling(temperature=0.7)):
        found = llm_client("a", **options, sampling=sampling).predictor.ranks[0]
        assert found.step_time(batch) == plain


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"top_p": 0}, "top_p: must be > 0"),
        ({"top_k": -1}, "top_k: must be >= 0"),
        ({"temperature": -0.1}, "temperature: must be finite and >= 0"),
        ({"sampler": "triton"}, "sampler has no effect"),
        ({"top_p": 0.9, "sampler": "sorted"}, "sampler"),
    ],
)
def test_samplings_that_are_none_are_refused(options, rule):
    client = {"name": "a", "gpu": "h100-sxm", "sampling": options}
    said = {
        "model": "llama-3.1-8b",
        "workload": {"lengths": {"type": "profile", "num_requests": 3}, "arrivals": "all_at_once"},
    }
    with pytest.raises(ScenarioError, match=f"sampling.*{rule}"):
        Scenario.from_dict(said | {"clients": [client]})


def test_a_server_may_say_how_to_sample():
    asked = {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
    flag = f"--override-generation-config '{json.dumps(asked)}'"
    found = from_vllm([f"vllm serve Qwen/Qwen3-32B {flag}"], gpu="h100-sxm")
    assert found.keys["clients"][0]["sampling"] == asked
    lengths = {"type": "profile", "num_requests": 9}
    workload = {"lengths": lengths, "arrivals": {"type": "all_at_once"}}
    clients = [found.keys["clients"][0] | {"tensor_parallel_size": 2}]
    said = Scenario.from_dict({"model": "qwen3-32b", "workload": workload, "clients": clients})
    assert simulate(said).summary["completed"] == 9
