"""What if steps took longer: one factor on the step times of any predictor."""

import re
from dataclasses import replace

import numpy as np
import pytest
import yaml

import mist_sim as mist
from mist_sim.core.batch import StepBatch
from mist_sim.errors import ScenarioError
from mist_sim.hardware.predictors import EngineOverhead, RooflinePredictor
from mist_sim.hardware.predictors.around import checked
from mist_sim.hardware.predictors.overhead import own_time_in
from mist_sim.hardware.predictors.scaled import Scaled, StepTimeScale
from mist_sim.hardware.setting import SCALED
from mist_sim.search.planning.bounds import least_of_client
from mist_sim.testing import check_predictor
from tests.reference.predictors import AWKWARD, HOSTED, LINES, SHARING
from tests.reference.scenarios import of_profile

ROOFLINE = RooflinePredictor(
    mist.load_model("llama-3.1-8b"), mist.Cluster(mist.load_gpu("h100-sxm"))
)
FACTORS = StepTimeScale(prompts=1.25, decodes=0.8)
PROMPT = StepBatch(((300, 40),))
MIXED = StepBatch(((300, 40), (7, 0)), 9, 4_000)
DECODES = StepBatch((), 9, 4_000)
DRAFTS = StepBatch((), 9, 4_000, num_drafts=3)


def client(**options):
    return mist.llm_client("a", gpu="h100-sxm", **options)


@pytest.mark.parametrize("inside", [ROOFLINE, AWKWARD, LINES, SHARING, HOSTED])
def test_scaled_predictors_keep_all_rules(inside):
    check_predictor(lambda: Scaled(inside, FACTORS))


@pytest.mark.parametrize("inside", [ROOFLINE, AWKWARD, LINES, HOSTED])
@pytest.mark.parametrize(
    ("batch", "factor"), [(PROMPT, 1.25), (MIXED, 1.25), (DECODES, 0.8), (DRAFTS, 0.8)]
)
def test_steps_take_so_many_times_as_long(inside, batch, factor):
    scaled = Scaled(inside, FACTORS)
    batch = replace(batch, longest_context=500 if inside is AWKWARD and batch.num_decodes else None)
    expected = pytest.approx(factor * inside.step_time(batch), rel=1e-12)
    assert scaled.step_time(batch) == expected
    assert sum(each.seconds for each in scaled.explain(batch)) == expected
    if inside is HOSTED:
        spot = inside.step_time_on_the_spot(batch)
        assert scaled.traits.step_time_on_the_spot(batch) == factor * spot


@pytest.mark.parametrize("replicas", [1, 2])
def test_twice_as_slow_takes_twice_as_long(replicas):
    """To the bit: the engine's own time is in the factor, and nothing else takes time."""
    times = [0.0, 0.25, 0.25, 0.5, 0.53125, 2.0, 2.125]
    ends = []
    for factor in (1, 2):
        made = client(
            step_time_scale=factor,
            data_parallel_size=replicas,
            overhead=EngineOverhead(request=0.0),  # and no time of a front end
        )
        jobs = mist.Workload.from_lists(
            [300 + 40 * k for k in range(len(times))],
            [20 + k % 7 for k in range(len(times))],
            [factor * time for time in times],
        )
        result = mist.Simulation(clients=[made], workload=jobs).run()
        ends.append(np.concatenate([each[:] for each in result.recorder.step_ends]))
    assert len(ends[0]) > 50
    assert (2 * ends[0] == ends[1]).all()


def test_a_factor_of_one_changes_nothing():
    kinds = [type(client(step_time_scale=factor).predictor.ranks[0]) for factor in (None, 1, 1.5)]
    assert kinds[0] is kinds[1]
    assert kinds[1] is not kinds[2]


def test_scaled_times_have_no_error_bar():
    settings = client(step_time_scale=StepTimeScale(decodes=1.1)).traits.times.settings
    assert set(settings.values()) == {SCALED}
    assert SCALED not in client(step_time_scale=1.0).traits.times.settings.values()


def test_relaxed_hosts_find_the_time_inside():
    own = EngineOverhead(step=2e-3).around(ROOFLINE, overlapped=True)
    assert own_time_in(checked(Scaled(own, FACTORS))) == own_time_in(own)
    assert own_time_in(own).step == 2e-3


def test_bounds_of_a_plan_follow_the_factor():
    """A bound that left it out would call designs impossible that steps of half the time allow."""
    for factor in (0.5, 2.0):
        plain, scaled = client(), client(step_time_scale=factor)
        least = least_of_client(plain, plain.traits.machine)
        found = least_of_client(scaled, scaled.traits.machine)
        assert found == replace(
            least,
            token=least.token * factor,
            matrices=least.matrices * factor,
            key=least.key * factor,
        )
    mixed = client(step_time_scale=StepTimeScale(prompts=0.5, decodes=2.0))
    assert least_of_client(mixed, mixed.traits.machine).key == least.key * 0.5


@pytest.mark.parametrize("wrong", [0, -1.0, float("nan"), float("inf"), "1.1", True])
def test_factors_are_numbers_above_zero(wrong):
    with pytest.raises(ScenarioError, match="step_time_scale must be a number > 0 or a Step"):
        client(step_time_scale=wrong)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("1.2", StepTimeScale(prompts=1.2, decodes=1.2)),
        ("{decodes: 0.9}", StepTimeScale(decodes=0.9)),
        ("null", None),
        ("0", "must be finite and > 0, got 0"),
        ("slower", "must be a number, or prompts and decodes, got 'slower'"),
        ("{prompt: 2}", "unknown key; did you mean 'prompts'?"),
    ],
)
def test_files_say_one_factor_or_two(said, found):
    text = {
        "workload": of_profile(5, "1 /s"),
        "model": "llama-3.1-8b",
        "clients": [{"name": "a", "gpu": "h100-sxm", "step_time_scale": yaml.safe_load(said)}],
    }
    if isinstance(found, str):
        with pytest.raises(ScenarioError, match=re.escape(found)):
            mist.Scenario.from_dict(text)
        return
    assert mist.Scenario.from_dict(text).clients[0].engine.step_time_scale == found
