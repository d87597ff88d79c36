"""Step times of GenZ (`plugins/genz`)."""

from functools import partial
from importlib.util import find_spec

import pytest

import mist_sim as mist
from mist_sim import testing
from mist_sim.core.batch import StepBatch
from mist_sim.errors import ScenarioError
from mist_sim_genz import GenzPredictor

GENZ = pytest.mark.skipif(find_spec("GenZ") is None, reason="needs genz-llm")
DECODES = StepBatch((), 32, 32 * 1024)


def parts(model="llama-3.1-8b", gpu="h100-sxm", ranks=1, **split):
    spec = mist.load_model(model) if isinstance(model, str) else model
    return {"model": spec, "cluster": mist.Cluster(mist.load_gpu(gpu), ranks, **split)}


@GENZ
@pytest.mark.parametrize(
    "options", [parts("llama-3.1-8b", "h100-sxm", 1), parts("llama-2-70b", "l40s", 8)]
)
def test_it_keeps_the_contract(options):
    testing.check_predictor(partial(GenzPredictor, **options))


@GENZ
def test_pipelines_are_refused():
    with pytest.raises(ScenarioError, match=r"pipeline_parallel_size must be 1 with \w+, which"):
        GenzPredictor(**parts(pipeline_parallel_size=2))


@pytest.mark.skipif(find_spec("GenZ") is not None, reason="genz-llm is installed")
def test_a_missing_package_is_named():
    with pytest.raises(ScenarioError, match="genz needs .* pip install genz-llm"):
        GenzPredictor(**parts())


@GENZ
@pytest.mark.parametrize(
    "batch", [StepBatch(((2048, 0),)), StepBatch(((1024, 4096),)), DECODES, StepBatch((), 1, 64)]
)
def test_genz_is_a_roofline_too(batch):
    model = parts("llama-3.1-70b", ranks=4)
    expected = mist.RooflinePredictor(**model).step_time(batch)
    assert GenzPredictor(**model).step_time(batch) == pytest.approx(expected, rel=0.15)


@GENZ
@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3", "gpt-oss-120b", "gemma-3-27b"])
def test_genz_refuses_what_it_mistakes(name):
    with pytest.raises(ScenarioError, match="genz times dense models in 16 bits, not"):
        GenzPredictor(**parts(name, ranks=8))
