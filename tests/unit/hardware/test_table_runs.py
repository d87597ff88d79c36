"""Whole runs on measured tables of every form, also of the smallest ones."""

import re

import pytest

import mist_sim as mist
from mist_sim.core.batch import StepBatch, StepGrowth
from tests.conftest import ROOT
from tests.reference import measured

SCENARIO = """
model: llama-3.1-8b
workload:
  lengths:
    type: synthetic
    num_requests: 6
    prompt: {{type: fixed, tokens: {prompt}}}
    output: {{type: fixed, tokens: 20}}
  arrivals: {{type: poisson, rate: 20 /s}}
clients:
  - name: llm
    gpu: h100-sxm
    tensor_parallel_size: {ranks}
    predictor: {predictor}
"""


def run(folder, predictor, *, prompt=300, ranks=1):
    file = folder / "scenario.yaml"
    file.write_text(SCENARIO.format(predictor=predictor, prompt=prompt, ranks=ranks))
    return mist.simulate(mist.Scenario.load(file))


def one_context(folder):
    """Write steps that were measured at a single context and a single mean context."""
    lines = ["num_new_tokens,num_context_tokens,num_decodes,context_sum,seconds"]
    lines += [f"{new},0,0,0,{measured.step_s(new, 0, 0, 0)!r}" for new in measured.SIZES]
    lines += [f"0,0,{n},{n * 512},{measured.step_s(0, 0, n, 512)!r}" for n in measured.COUNTS]
    (folder / "one.csv").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("form", ["layer_profile", "vidur", "splitwise", "steps", "one context"])
def test_every_form_carries_a_whole_run(tmp_path, form):
    layers = mist.load_model("llama-3.1-8b").num_layers
    if form == "one context":
        one_context(tmp_path)
        table = "{type: table, format: steps, path: one.csv}"
    elif form == "steps":
        measured.write_steps(tmp_path)
        table = "{type: table, format: steps, path: steps.csv}"
    elif form == "splitwise":
        measured.write_splitwise(tmp_path)
        table = "{type: table, format: splitwise, path: splitwise.csv, subset: m/a}"
    else:
        write = measured.write_vidur if form == "vidur" else measured.write_layer_profile
        write(tmp_path, layers)
        table = f"{{type: table, format: {form}, path: .}}"
    result = run(tmp_path, table)
    assert len(result.requests) == 6
    assert result.summary["estimates"] == {"llm": "measured"}
    assert result.summary["extrapolated_step_fraction"] == 0


def test_the_rows_of_the_page_carry_whole_run(tmp_path):
    page = (ROOT / "docs/background/calibration.md").read_text("utf-8")
    (rows,) = re.findall(r"```\w*\n(# gpu:.*?)```", page, re.DOTALL)
    (tmp_path / "steps.csv").write_text(rows)
    table = "{type: table, format: steps, path: steps.csv}"
    result = run(tmp_path, table, ranks=4, prompt=512)
    assert len(result.requests) == 6
    assert result.requests["tpot"].min() == pytest.approx(0.0142)


def test_where_one_context_was_measured_all_contexts_are_inside(tmp_path):
    measured.write_splitwise(tmp_path)
    predictor = mist.TablePredictor(
        mist.load_model("llama-3.1-8b"),
        mist.Cluster(mist.load_gpu("h100-sxm")),
        str(tmp_path / "splitwise.csv"),
        "splitwise",
        "m/a",
    )
    for batch in (StepBatch((), 8, 8 * 100_000), StepBatch(((512, 90_000),), 1, 90_000)):
        assert predictor.steps_inside(batch, StepGrowth(batch.num_decodes)) > 1_000_000
    assert predictor.steps_inside(StepBatch((), 9, 9), StepGrowth(9)) == 0
