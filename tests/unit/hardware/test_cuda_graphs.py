"""CUDA graphs: which steps replay one, padded to what, and what the others wait for."""

from dataclasses import replace

import pytest

from mist_sim import ChunkedScheduler, llm_client
from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.hardware.predictors.analytic.cuda_graphs import EAGER_LAYER, captured
from mist_sim.models import load_model
from mist_sim.scenario import Scenario
from mist_sim.scenario.build import build
from mist_sim.testing import check_predictor
from tests.refusals import refused

MODEL, H100 = load_model("llama-3.1-8b"), load_gpu("h100-sxm")


def roofline(gpu=H100, **options):
    return RooflinePredictor(MODEL, Cluster(gpu), **options)


def decodes(number):
    return StepBatch((), number, 100 * number)


def test_the_sizes_of_vllm():
    sizes = captured(512, None).sizes
    assert sizes[:6] == (1, 2, 4, 8, 16, 24)
    assert sizes[-4:] == (464, 480, 496, 512)
    assert len(sizes) == 3 + 31 + 17
    assert captured(40, None).sizes == (1, 2, 4, 8, 16, 24, 32, 40)
    assert captured(0, None).sizes == ()
    assert captured(512, [64, 8, 8]).sizes == (8, 64)


def test_a_step_is_padded_to_the_next_size():
    """What is not attention takes as long for 9 decodes as for 16."""
    predictor = roofline()
    nine, sixteen = (predictor._decode.time(16, number) for number in (9, 16))
    attention = predictor.step_time(decodes(9)) - nine
    assert attention > 0
    assert nine < sixteen  # logits of fewer sequences
    exact = roofline(cudagraph_capture_sizes=[9, 16])
    assert exact.step_time(decodes(9)) < predictor.step_time(decodes(9))
    assert exact.step_time(decodes(16)) == predictor.step_time(decodes(16))


def test_larger_steps_are_not_padded():
    small = roofline(max_cudagraph_capture_size=256)
    assert small.step_time(decodes(257)) < roofline().step_time(decodes(257))
    assert small.step_time(decodes(250)) == roofline().step_time(decodes(250))


def test_an_engine_of_few_sequences_captures_twice_as_many_tokens():
    def limit(client):
        return client.predictor.ranks[0].predictor.max_cudagraph_capture_size

    few, many = ChunkedScheduler(max_num_seqs=40), ChunkedScheduler(max_num_seqs=256)
    assert limit(llm_client("llm", scheduler=few)) == 80
    assert limit(llm_client("llm", scheduler=many)) is None  # 512
    given = roofline(max_cudagraph_capture_size=300)
    assert limit(llm_client("llm", scheduler=few, predictor=given)) == 300
    said = {"scheduler": {"type": "chunked", "max_num_seqs": 40}}
    for predictor, expected in (({}, 80), ({"max_cudagraph_capture_size": 300}, 300)):
        client = {
            "name": "a",
            "gpu": "h100-sxm",
            "predictor": {"type": "roofline", **predictor},
            **said,
        }
        scenario = Scenario.load("demo", overrides={"clients": [client]})
        assert limit(build(scenario).clients[0]) == expected
    assert roofline().step_time(decodes(90)) > roofline(max_cudagraph_capture_size=80).step_time(
        decodes(90)
    )


def test_an_eager_engine_waits_for_the_host():
    eager = roofline(enforce_eager=True)
    assert eager.step_time(decodes(1)) == 32 * EAGER_LAYER > roofline().step_time(decodes(1))
    prompt = StepBatch(((8192, 0),))
    assert eager.step_time(prompt) == roofline().step_time(prompt)  # the GPU takes longer
    run = eager.run(decodes(4), StepGrowth(4), 10)
    assert run.tolist() == [32 * EAGER_LAYER] * 10


def test_dispatch_of_an_entry_shows_where_no_graph_is_replayed():
    gpu = replace(H100, dispatch={"rmsnorm": 1e-3, "attention": 1e-3, "mlp": 1e-3})
    assert roofline(gpu).step_time(decodes(512)) == roofline().step_time(decodes(512))
    assert roofline(gpu).step_time(decodes(513)) == pytest.approx(32 * 4e-3)
    assert roofline(gpu, enforce_eager=True).step_time(decodes(1)) == pytest.approx(32 * 4e-3)


@pytest.mark.parametrize(
    "options", [{"enforce_eager": True}, {"max_cudagraph_capture_size": 16}, {}]
)
def test_the_contract_holds(options):
    check_predictor(lambda: roofline(**options))


test_wrong_options_are_refused = refused(
    lambda options: roofline(**options),
    ({"max_cudagraph_capture_size": -1}, "max_cudagraph_capture_size must be >= 0, got -1"),
    ({"cudagraph_capture_sizes": []}, r"cudagraph_capture_sizes must be sizes >= 1, got \[\]"),
    ({"cudagraph_capture_sizes": [0, 8]}, "cudagraph_capture_sizes must be sizes >= 1"),
    ({"enforce_eager": True, "max_cudagraph_capture_size": 8}, "max_cudagraph_capture_size must"),
    ({"enforce_eager": True, "cudagraph_capture_sizes": [8]}, "cudagraph_capture_sizes must be"),
    (
        {"max_cudagraph_capture_size": 8, "cudagraph_capture_sizes": [8]},
        "max_cudagraph_capture_size must be left out where cudagraph_capture_sizes lists",
    ),
    error=ValueError,
)
