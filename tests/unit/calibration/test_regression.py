"""Learning step times from measured ones, and reading what was learned."""

import itertools
import json
from dataclasses import replace
from math import inf, nan

import numpy as np
import pandas as pd
import pytest

import mist_sim as mist
from mist_sim.calibration import fit_file, fit_regression, read_splitwise, read_steps
from mist_sim.calibration import regression as ensemble
from mist_sim.calibration.regression import Setting
from mist_sim.core.batch import StepBatch, StepGrowth, grown
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.predictors.measured.regression import RegressionPredictor
from mist_sim.hardware.tables.steps import COLUMNS as STEP_COLUMNS
from mist_sim.models import load_model
from tests.reference.regression_files import regression_content, written

MODEL, CLUSTER = load_model("llama-3.1-8b"), Cluster(load_gpu("h100-sxm"))


@pytest.fixture
def predictor(tmp_path):
    return RegressionPredictor(MODEL, CLUSTER, written(tmp_path / "r.json"))


# --- reading ----------------------------------------------------------------------------------


def test_a_step_is_looked_up_by_its_tokens_and_mean_contexts(predictor):
    assert predictor.step_time(StepBatch((), 64, 64 * 100)) == pytest.approx(0.00664 + 0.000192)
    # 2,047 tokens and a decode beside them; a prompt token attends to 1,024 tokens in the mean
    prefill = 0.007 + 2048 * (2e-5 + 1024e-9)
    decode = 100 * 3e-8
    mixed = StepBatch(((2047, 0),), 1, 100)
    assert predictor.step_time(mixed) == pytest.approx(prefill + decode)


def test_several_prompts_count_all_their_tokens_and_pairs(predictor):
    two = predictor.step_time(StepBatch(((512, 0), (512, 0))))
    assert two < predictor.step_time(StepBatch(((1024, 0),)))


def test_steps_outside_the_measurements_are_told(predictor):
    inside = predictor.steps_inside
    assert inside(StepBatch((), 64, 64 * 19_990), StepGrowth(64)) == 11
    assert inside(StepBatch((), 400, 400), StepGrowth(400)) == 0
    assert inside(StepBatch(((8192, 0),)), StepGrowth()) == 0
    assert inside(StepBatch(((256, 0),)), StepGrowth()) == 35
    batch, growth = StepBatch(((256, 0),)), StepGrowth()
    assert inside(grown(batch, growth, 34), growth) == 1
    assert inside(grown(batch, growth, 35), growth) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "x"}, "not a regression that mist fit wrote"),
        ({"version": 2}, "not a regression that mist fit wrote"),
        ({"model": "qwen3-32b"}, "was measured with model qwen3-32b, the client has llama-3.1-8b"),
        ({"tensor_parallel_size": 4}, "tensor_parallel_size 4, the client has 1"),
        ({"stages": {}}, "stages must be prefill and decode"),
        ({"stages": {"prefill": {}, "decode": {}}}, "stages.prefill: tokens is missing"),
        ({"stages": {"prefill": 3, "decode": {}}}, "stages.prefill must be a table"),
    ],
)
def test_other_files_are_refused(tmp_path, changes, message):
    with pytest.raises(ScenarioError, match=message):
        RegressionPredictor(MODEL, CLUSTER, written(tmp_path / "r.json", **changes))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("seconds", [-1] * 4, "seconds must be finite and > 0"),
        ("seconds", [1e300] * 4, "seconds must be 0 or from 1e-12 to 1e.12 in size, got 1e.300"),
        ("measured_contexts", nan, "measured_contexts must be 0 or from 1e-12 to .*, got nan"),
        ("contexts", -inf, "contexts must be 0 or from 1e-12 to 1e.12 in size, got -inf"),
        ("tokens", 10**400, "int too large to convert to float"),
        ("tokens", 0.5, "fixed must have points that increase, got "),
    ],
)
def test_wrong_numbers_are_refused(tmp_path, key, value, message):
    stages = regression_content()["stages"]
    stages["decode"][key][1] = value
    with pytest.raises(ScenarioError, match=f"stages.decode: {message}"):
        RegressionPredictor(MODEL, CLUSTER, written(tmp_path / "r.json", stages=stages))


def test_no_file_and_no_json(tmp_path):
    with pytest.raises(ScenarioError, match="no such file"):
        RegressionPredictor(MODEL, CLUSTER, str(tmp_path / "none.json"))
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ScenarioError, match="not valid JSON"):
        RegressionPredictor(MODEL, CLUSTER, str(tmp_path / "bad.json"))


def test_a_scenario_names_the_file_beside_it(tmp_path):
    written(tmp_path / "r.json")
    scenario = tmp_path / "s.yaml"
    scenario.write_text(
        "seed: 1\nmodel: llama-3.1-8b\n"
        "clients: [{name: a, gpu: h100-sxm, predictor: {type: regression, path: r.json}}]\n"
        "workload:\n"
        "  lengths: {type: synthetic, num_requests: 5, prompt: {type: fixed, tokens: 9},"
        " output: {type: fixed, tokens: 4}}\n"
        "  arrivals: {type: poisson, rate: 1 /s}\n"
    )
    result = mist.simulate(mist.Scenario.load(scenario))
    assert result.summary["estimates"] == {"a": "measured"}


# --- learning ---------------------------------------------------------------------------------


def linear_steps():
    """Steps whose times follow a formula, with every third point measured twice."""
    rows = []
    for new in (16, 64, 256, 1024, 4096):
        for context in (0, 512, 4096):
            pairs = new * (context + (new + 1) / 2)
            rows.append((new, context, 0, 0, 0.006 + 4e-5 * new + 2e-9 * pairs))
    rows += [
        (0, 0, n, n * mean, 0.006 + 2e-5 * n + 2e-8 * n * mean)
        for n in (1, 4, 16, 64, 256)
        for mean in (128, 1024, 4096)
    ]
    rows.append((256, 0, 16, 16 * 1024, 0.006 + 4e-5 * 272 + 2e-9 * 32896 + 2e-8 * 16 * 1024))
    rows += rows[::3]
    return pd.DataFrame(rows, columns=list(STEP_COLUMNS))


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "steps.csv"
    head = "# model: llama-3.1-8b\n# gpu: h100-sxm\n# tensor_parallel_size: 1\n"
    path.write_text(head + linear_steps().to_csv(index=False))
    return path


def test_what_was_learned_is_close_to_what_was_measured(table, tmp_path):
    pytest.importorskip("sklearn", reason="needs the extra fit (scikit-learn)")
    found = fit_file(table)
    found.save(tmp_path / "r.json")
    predictor = RegressionPredictor(MODEL, CLUSTER, str(tmp_path / "r.json"))
    for row in linear_steps().itertuples():
        chunks = ((row.num_new_tokens, row.num_context_tokens),) if row.num_new_tokens else ()
        batch = StepBatch(chunks, row.num_decodes, row.context_sum)
        assert predictor.step_time(batch) == pytest.approx(row.seconds, rel=0.05)
    held_out = found.content["stages"]["decode"]["held_out"]["inside"]
    assert held_out["points"] > 5
    assert held_out["mean"] < 0.05


def test_the_file_is_the_same_at_every_learning(table):
    pytest.importorskip("sklearn", reason="needs the extra fit (scikit-learn)")
    assert json.dumps(fit_file(table).content) == json.dumps(fit_file(table).content)


@pytest.mark.deep
def test_many_points_are_learned_by_trees(table, monkeypatch):
    pytest.importorskip("sklearn", reason="needs the extra fit (scikit-learn)")
    monkeypatch.setattr(ensemble, "_FEW", 50)
    steps, _ = read_steps(table)
    n = np.repeat(np.arange(1.0, 16.0), 5)
    mean = np.tile(np.arange(5.0) * 900 + 100, 15)
    steps = replace(
        steps,
        num_new_tokens=np.append(0 * n, steps.num_new_tokens),
        num_pairs=np.append(0 * n, steps.num_pairs),
        num_decodes=np.append(n, steps.num_decodes),
        context_sum=np.append(n * mean, steps.context_sum),
        seconds=np.append(0.006 + 2e-5 * n + 2e-8 * n * mean, steps.seconds),
    )
    found = fit_regression(
        steps, Setting(model="m", gpu="g", tensor_parallel_size=1, source="test")
    )
    assert found.content["stages"]["decode"]["held_out"]["inside"]["mean"] < 0.02


def splitwise_errors(path, model, gpu, ranks):
    """Return the errors of a setting's points that lie between others, each held out."""
    pytest.importorskip("sklearn", reason="needs the extra fit (scikit-learn)")
    steps, _ = read_splitwise(path, f"{model}/{gpu}-80gb", ranks)
    setting = Setting(model="m", gpu="g", tensor_parallel_size=ranks, source="splitwise")
    stages = fit_regression(steps, setting).errors.values()
    return np.concatenate([np.abs(stage.errors[stage.inside]) for stage in stages])


def test_a_setting_of_splitwise_held_out(shared):
    """Mean error between measured points: 2.3 %."""
    path = shared("measurements/splitwise_perf_model.csv")
    assert splitwise_errors(path, "llama2-70b", "h100", 4).mean() < 0.025


@pytest.mark.deep
def test_splitwise_points_held_out(shared):
    """Mean error between measured points: 3.05 % over all settings, 1.8 % on H100s."""
    path = shared("measurements/splitwise_perf_model.csv")
    errors = {"a100": [], "h100": []}
    for model, gpu in itertools.product(("llama2-70b", "bloom-176b"), errors):
        for ranks in (2, 4, 8) if "llama" in model else (8,):
            errors[gpu].append(splitwise_errors(path, model, gpu, ranks))
    assert np.concatenate(errors["h100"]).mean() < 0.02
    assert np.concatenate(errors["a100"] + errors["h100"]).mean() < 0.031


def test_points_whose_repeats_differ_count_less():
    pytest.importorskip("sklearn", reason="needs the extra fit (scikit-learn)")
    sizes = np.repeat([1.0, 2.0, 4.0, 8.0, 16.0], 4)
    seconds = 1e-3 * sizes
    wrong = sizes == 4
    found = []
    for spread in (0.0, 0.8):
        times = seconds.copy()
        times[wrong] *= 1.3 + spread * np.array([-0.5, 0.0, 0.0, 0.5])  # the median stays
        data = ensemble.stage_data("prefill", np.stack([sizes, 0 * sizes], axis=1), times)
        assert data.seconds.tolist() == pytest.approx([1e-3, 2e-3, 5.2e-3, 8e-3, 16e-3])
        assert (data.noise > 0).tolist() == [False, False, spread > 0, False, False]
        found.append(ensemble.fit_ensemble(data)(np.array([[4.0, 0.0]]))[0])
    assert 4e-3 < found[1] < found[0]


def test_batches_that_ran_in_parts_are_left_out(shared):
    path = shared("measurements/splitwise_perf_model.csv")
    steps, remarks = read_splitwise(path, "llama2-70b/h100-80gb", 2, medians=True)
    assert len(steps.seconds) == 2 * 12
    repeated, _ = read_splitwise(path, "llama2-70b/h100-80gb", 2)
    assert len(repeated.seconds) >= 5 * 2 * 12
    assert remarks == ["left out 64 prompts of 512 tokens, which did not run at once"]
    with pytest.raises(ScenarioError, match="only of 2, 4, 8"):
        read_splitwise(path, "llama2-70b/h100-80gb", 3)
    with pytest.raises(ScenarioError, match="did you mean 'llama2-70b/h100-80gb'"):
        read_splitwise(path, "llama2-70b/h100-80g", 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "no column 'num_new_tokens'"),
        (",".join(STEP_COLUMNS) + "\n1,0,0,0,0.1\n5,0,0,0,0\n", "row 2 is no measured step"),
        (",".join(STEP_COLUMNS) + "\n1,0,0,0,0.1\n", "has no steps of decodes alone"),
    ],
)
def test_tables_that_are_none(tmp_path, text, message):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ScenarioError, match=message):
        fit_file(tmp_path / "t.csv", model="llama-3.1-8b", gpu="h100", tensor_parallel_size=1)


def test_what_the_file_does_not_say_must_be_given(tmp_path):
    (tmp_path / "t.csv").write_text(",".join(STEP_COLUMNS) + "\n1,0,0,0,0.1\n")
    with pytest.raises(ScenarioError, match="does not give model, gpu, tensor_parallel_size: give"):
        fit_file(tmp_path / "t.csv")


def test_ranks_that_are_no_number(tmp_path):
    text = "# tensor_parallel_size: two\n" + ",".join(STEP_COLUMNS) + "\n1,0,0,0,0.1\n"
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ScenarioError, match="tensor_parallel_size must be a number, got 'two'"):
        fit_file(tmp_path / "t.csv", model="llama-3.1-8b", gpu="h100")
