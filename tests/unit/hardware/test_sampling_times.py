"""What top-p and top-k cost, by sampler: beside published figures, and in a step."""

import csv
import json
import re
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim import Scenario, llm_client, simulate
from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.errors import ScenarioError
from mist_sim.hardware.predictors.explained import explained
from mist_sim.hardware.sampling import SAMPLERS, Sampling, SamplingTimes
from mist_sim.models.generation import asked_by_model
from mist_sim.models.model_loading import repository_of
from mist_sim.scenario.from_vllm.commands import from_vllm
from tests.effort import examples
from tests.reference.predictors import EVEN

ASKS = {
    "top_k": Sampling(top_k=20),
    "top_p": Sampling(top_p=0.9),
    "both": Sampling(top_k=20, top_p=0.9),
}
TEXT = files("mist_sim.hardware").joinpath("sampler_times.csv").read_text("utf-8")
CELLS = list(csv.DictReader(line for line in TEXT.splitlines() if line[0] != "#"))


H100 = 0.88 * 3.35e12  # bytes/s that its memory sustains


def milliseconds(sampler, asked, rows, words):
    asked = ASKS[asked] if isinstance(asked, str) else asked
    return 1e3 * SamplingTimes(asked, words, sampler, H100)[rows]


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
@examples(400)
def test_more_rows_never_take_less_time(sampler, masked_by, rows, more, words):
    less = milliseconds(sampler, masked_by, rows, words)
    assert milliseconds(sampler, masked_by, rows + more, words) >= less * (1 - 1e-12)
    assert less > 0


def test_few_rows_are_sorted_where_version_has_triton():
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
    greedy = Sampling(temperature=0)
    plain = llm_client("a", **options, async_scheduling=False, sampling=greedy).predictor.ranks[0]
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


def step_of(model="llama-3.1-8b", **options):
    client = llm_client("a", model=model, gpu="h100-sxm", **options)
    return client.predictor.ranks[0].step_time(StepBatch((), 100, 90_000))


def test_without_a_mask_sampling_takes_no_time():
    least = step_of(sampling=Sampling(generation_config="vllm"))
    assert step_of(sampling=Sampling(temperature=0, top_p=0.9, top_k=20)) == least
    assert step_of(sampling=Sampling(temperature=0.7, top_p=1)) == least
    assert step_of() > least  # its generation_config.json asks for top-p


@pytest.mark.parametrize(
    ("rows", "published"),
    [
        (1, 0.0206),
        (4, 0.0207),
        (8, 0.0206),
        (16, 0.0214),
        (32, 0.0251),
        (64, 0.0356),
        (128, 0.0681),
    ],
)
def test_penalties_are_met_within_a_quarter(rows, published):
    """Of pull request 40657, taken to be of 128,256 words on an H100."""
    found = milliseconds(
        "flashinfer", Sampling(temperature=0, repetition_penalty=1.1), rows, 128_256
    )
    assert found == pytest.approx(published, rel=0.25)


@pytest.mark.parametrize("name", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
def test_penalties_are_applied_to_greedy_requests_too(name):
    more = step_of(sampling=Sampling(temperature=0, **{name: 1.5}))
    assert more > step_of(sampling=Sampling(temperature=0))


def test_of_older_versions_the_host_time_of_penalties_is_not_known():
    asked = Sampling(temperature=0, repetition_penalty=1.1)

    def assumed(engine, **options):
        return llm_client("a", engine=engine, **options).traits.times.assumed

    assert "sampling.repetition_penalty" in assumed("vllm-0.19", sampling=asked)
    assert "sampling.repetition_penalty" not in assumed("vllm-0.24", sampling=asked)


# --- what a model asks for -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("llama-3.1-8b", {"temperature": 0.6, "top_p": 0.9}),
        ("Meta-Llama/Llama-3.1-8B-Instruct", {"temperature": 0.6, "top_p": 0.9}),
        ("deepseek-r1-distill-llama-8b", {"temperature": 0.6, "top_p": 0.95}),
        ("qwen3-30b-a3b", {"temperature": 0.6, "top_p": 0.95, "top_k": 20}),
        (
            "qwen3-coder-30b-a3b",
            {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05},
        ),
        ("gpt-oss-20b", {}),
        ("phi-4", None),
    ],
)
def test_what_a_model_asks_for_goes_by_repository(name, asked):
    """An alias has the file of its own repository; None: nobody looked it up."""
    assert asked_by_model(name) == asked


def test_every_file_that_was_looked_up_is_of_a_known_model():
    text = files("mist_sim.models").joinpath("generation_configs.csv").read_text("utf-8")
    rows = list(csv.DictReader(line for line in text.splitlines() if line[0] != "#"))
    assert [repository_of(row["hf_id"]) for row in rows] == [row["hf_id"] for row in rows]
    for row in rows:
        said = {key: float(row[key]) for key in list(row)[1:] if row[key]}
        assert Sampling(**said).filter or not said


def test_what_is_said_goes_before_what_a_model_asks_for():
    """And what is not said stays as the model has it, as vLLM's server does."""
    asked = Sampling(top_k=20).or_else({"temperature": 0.6, "top_p": 0.9, "top_k": 50})
    assert asked == Sampling(temperature=0.6, top_p=0.9, top_k=20)
    only_top_p = step_of(sampling=Sampling(top_k=0))
    assert only_top_p == step_of()
    assert step_of(sampling=Sampling(top_k=20)) != only_top_p


def test_a_checkpoint_here_has_its_file_beside_it(tmp_path):
    config = {"vocab_size": 100_000, "hidden_size": 64, "intermediate_size": 128}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    more = {"model_type": "llama", "max_position_embeddings": 4_096}
    (tmp_path / "config.json").write_text(json.dumps(config | heads | more), "utf-8")
    in_turn = {"model": str(tmp_path), "async_scheduling": False}
    plain = step_of(**in_turn)
    (tmp_path / "generation_config.json").write_text('{"top_k": 20}', "utf-8")
    assert step_of(**in_turn) > plain
    (tmp_path / "generation_config.json").write_text('{"top_k": "many"', "utf-8")
    with pytest.raises(ScenarioError, match=r"generation_config.json: not valid JSON"):
        step_of(**in_turn)


def test_that_nobody_looked_a_file_up_is_listed():
    assert "sampling" in llm_client("a", model="phi-4").traits.times.assumed
    for options in ({"model": "gpt-oss-20b"}, {"model": "phi-4", "sampling": Sampling()}):
        assert "sampling" not in llm_client("a", **options).traits.times.assumed


def test_steps_that_were_measured_whole_have_a_sampler_in_them():
    """They get one more only where a scenario says so."""
    batch = StepBatch((), 9, 900)

    def seconds(**options):
        client = llm_client("a", predictor=EVEN, **options)
        return client.predictor.ranks[0].step_time(batch)

    assert seconds() == EVEN.seconds
    assert seconds(sampling=Sampling(top_p=0.9)) > EVEN.seconds


def test_a_sampler_without_mask_of_model_is_refused():
    with pytest.raises(ScenarioError, match="sampling: sampler has no effect"):
        llm_client("a", model="gpt-oss-20b", sampling=Sampling(sampler="triton"))


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"top_p": 0}, "top_p: must be in (0, 1], got 0"),
        ({"top_k": -1}, "top_k: must be >= 0"),
        ({"temperature": -0.1}, "temperature: must be finite and >= 0"),
        ({"sampler": "triton", "temperature": 0}, "sampler has no effect"),
        ({"repetition_penalty": 0}, "repetition_penalty: must be finite and > 0"),
        ({"presence_penalty": 3}, "presence_penalty: must be in [-2, 2], got 3"),
        ({"generation_config": "none"}, "generation_config"),
        ({"top_p": 0.9, "sampler": "sorted"}, "sampler"),
    ],
)
def test_samplings_that_are_none_are_refused(options, rule):
    client = {"name": "a", "gpu": "h100-sxm", "sampling": options}
    said = {
        "model": "llama-3.1-8b",
        "workload": {"lengths": {"type": "profile", "num_requests": 3}, "arrivals": "all_at_once"},
    }
    with pytest.raises(ScenarioError, match=f"sampling.*{re.escape(rule)}"):
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


def test_few_rows_of_many_words_are_sorted_faster_than_searched():
    """Pull request 54502, 160,000 words: the sort wins on 8 to 32 rows; here on 8 and 16."""
    sort, triton = (
        {rows: milliseconds(sampler, "top_p", rows, 160_000) for rows in (8, 16, 40, 64)}
        for sampler in ("pytorch", "triton")
    )
    assert all(sort[rows] < triton[rows] for rows in (8, 16))
    assert all(sort[rows] > triton[rows] for rows in (40, 64))
