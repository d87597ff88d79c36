"""`from-vllm`: executors and drafts decide whether a version plans steps ahead."""

import pytest

from mist_sim.errors import ScenarioError
from mist_sim.scenario.from_vllm.commands import from_vllm

_MODEL = "vllm serve meta-llama/Llama-3.1-8B-Instruct "
_NGRAM_GPU = """--speculative-config '{"method": "ngram_gpu", "num_speculative_tokens": 3}'"""
_NGRAM = _NGRAM_GPU.replace("_gpu", "")
_UNPADDED = (
    """--speculative-config '{"method": "eagle3", "model": "x/eagle3","""
    """ "num_speculative_tokens": 3, "disable_padded_drafter_batch": true}'"""
)
_RAY = "--distributed-executor-backend ray"


def _client(arguments, engine, before=""):
    (client,) = from_vllm([before + _MODEL + arguments], engine=engine).keys["clients"]
    return client


@pytest.mark.parametrize(
    ("arguments", "engine", "ahead"),
    [
        (_RAY, "vllm-0.12", None),
        (_RAY, "vllm-0.14", False),
        (_RAY, "vllm-0.19", False),
        (_RAY, "vllm-0.24", None),
        (_RAY, None, None),
        ("--distributed-executor-backend mp", "vllm-0.19", None),
        (_NGRAM_GPU, "vllm-0.19", True),
        (_NGRAM_GPU, "vllm-0.24", True),
        (_NGRAM_GPU, "vllm-0.33", None),
        (_NGRAM, "vllm-0.19", None),
        (_UNPADDED, "vllm-0.12", None),
        (_UNPADDED, "vllm-0.19", False),
        (_UNPADDED, None, False),
    ],
)
def test_a_version_plans_ahead_or_not(arguments, engine, ahead):
    assert _client(arguments, engine).get("async_scheduling") is ahead


def test_a_variable_asks_for_the_executor_of_before():
    before = "VLLM_USE_RAY_V2_EXECUTOR_BACKEND=0 "
    assert _client(_RAY, "vllm-0.24", before)["async_scheduling"] is False


def test_an_image_says_the_version():
    line = f"docker run --gpus all vllm/vllm-openai:v0.19.0 --model meta-llama/Llama-3.1-8B {_RAY}"
    (client,) = from_vllm([line]).keys["clients"]
    assert client["async_scheduling"] is False


@pytest.mark.parametrize("arguments", [_RAY, _NGRAM, _UNPADDED])
def test_what_version_does_not_start_with_is_refused(arguments):
    with pytest.raises(ScenarioError, match="does not start with"):
        _client(f"--async-scheduling {arguments}", "vllm-0.19")


def test_engine_that_is_set_elsewhere_is_not_guessed():
    found = from_vllm([_MODEL + _RAY], overrides=["engine"])
    assert "async_scheduling" not in found.keys["clients"][0]
    assert "--engine" in str([item.why for each in found.account for item in each.items])


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ("--attention-config.backend FLASHINFER", {"attention_backend": "FLASHINFER"}),
        ("""-ac '{"backend": "FLASHINFER"}'""", {"attention_backend": "FLASHINFER"}),
        ("""--kernel-config '{"moe_backend": "marlin"}'""", {"moe_backend": "marlin"}),
    ],
)
def test_kernels_may_be_named_in_a_config(arguments, found):
    line = f"vllm serve openai/gpt-oss-20b {arguments}"
    (client,) = from_vllm([line], gpu="h100-sxm").keys["clients"]
    assert {key: client.get(key) for key in found} == found


@pytest.mark.parametrize(
    ("arguments", "said"), [(_NGRAM, "drafts"), ("--kv-offloading-size 20", "a tier"), ("", None)]
)
def test_pipeline_with_scheduler_for_each_batch_says_so(arguments, said):
    found = from_vllm([f"{_MODEL} -pp 2 {arguments}"])
    notes = [item.why for each in found.account for item in each.items if item.is_assumed]
    assert any(f"with {said} each batch in flight" in note for note in notes) is (said is not None)
