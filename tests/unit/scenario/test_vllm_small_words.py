"""Small words around vLLM's flags: other spellings, slips, images and loaders of one's own."""

import pytest

from mist_sim.errors import ScenarioError
from mist_sim.scenario.from_vllm.commands import from_vllm, read_commands
from tests.refusals import refused

SERVE = "vllm serve llama-3.1-8b"
DRAFTS = {"method": "ngram", "num_speculative_tokens": 3}
KSERVE = """
spec:
  predictor:
    model:
      modelFormat: {name: vLLM}
      storageUri: hf://meta-llama/Llama-3.1-8B-Instruct
"""


def client(text):
    return from_vllm([text]).keys["clients"][0]


@pytest.mark.parametrize(
    "flags",
    [
        "--spec-method ngram --spec_tokens 3",
        """--spec-tokens 3 -sc '{"method": "ngram"}'""",
        "--speculative-config.method ngram --spec-tokens=3",
    ],
)
def test_short_forms_of_drafts_are_entries_of_config(flags):
    assert client(f"{SERVE} {flags}")["speculative_config"] == DRAFTS


def test_a_draft_is_said_once():
    text = f"""{SERVE} --spec-method ngram -sc '{{"method": "ngram"}}'"""
    with pytest.raises(ScenarioError, match="--spec-method: --speculative-config says method, too"):
        from_vllm([text])


test_faults_say_what_to_write = refused(
    lambda text: from_vllm([text]),
    (f"{SERVE} --spec-method ngram --spec-tokens 3 --spec-tokens 4", "given again behind it"),
    (f"{SERVE} -tp2", "-tp2: not known; write -tp 2"),
    (f"""{SERVE} --quantization-config '{{"moe": {{}}}}'""", "layer by layer"),
    ("vllm serve 'llama-3.1-8b -tp 2", "write ' where that ends which begins here: 'llama"),
    ("/nope.yaml", "there is no file '/nope.yaml'"),
    ("nope.sh", "there is no file 'nope.sh'"),
    (
        f"""{SERVE} --rope-scaling '{{"rope_type":"yarn","factor":4.0}}'""",
        "'factor': 4.0}} makes the context longer than the model's own; say how long",
    ),
)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "--model=llama-3.1-8b", "--model llama-3.1-8b"])
def test_an_unknown_flag_leaves_the_model(model):
    found = read_commands([f"vllm serve --frobnicate 3 {model}"])
    assert found.keys["model"] == "llama-3.1-8b"
    (fault,) = found.account[0].faults
    assert "--frobnicate" in fault
    (fault,) = read_commands([f"vllm serve {model} --frobnicate 3 4"]).account[0].faults
    assert "--frobnicate" in fault


def test_variables_of_waiting_change_no_time():
    found = from_vllm([f"VLLM_SLEEP_WHEN_IDLE=1 VLLM_RINGBUFFER_WARNING_INTERVAL=3 {SERVE}"])
    assert found.left_out == ("VLLM_RINGBUFFER_WARNING_INTERVAL",)
    assert [item.flag for item in found.assumed] == ["VLLM_SLEEP_WHEN_IDLE"]


def test_an_image_of_ones_own_with_servers_arguments():
    found = from_vllm(["docker run my/img:1 --model llama-3.1-8b -tp 2"])
    assert found.keys["clients"][0]["tensor_parallel_size"] == 2
    assert any("entry point" in item.why for item in found.assumed)
    with pytest.raises(ScenarioError):
        from_vllm(["docker run my/img:1 --model-id llama-3.1-8b"])


def test_a_pod_of_one_line():
    text = "kubectl run v --image=vllm/vllm-openai:v0.19.0 --env VLLM_USE_V1=0 {} -- {} --model x"
    found = read_commands([text.format("", "")])
    assert found.keys["engine"] == "vllm-0.19"
    assert any(item.flag == "VLLM_USE_V1" for item in found.account[0].items)
    own = text.format("--command", "python3 -m vllm.entrypoints.openai.api_server")
    assert read_commands([own]).keys["model"] == "x"


@pytest.mark.parametrize("more", ["", "      args: [--max-num-seqs, '4', --model, /mnt/models]\n"])
def test_a_model_that_kserve_loads(more):
    found = from_vllm([KSERVE + more])
    assert found.keys["model"] == "meta-llama/Llama-3.1-8B-Instruct"
    assert ("scheduler" in found.keys["clients"][0]) is bool(more)


@pytest.mark.parametrize(
    ("flag", "lacking", "having"),
    [
        ("--moe-backend marlin", "vllm-0.12", "vllm-0.19"),
        ("--spec-method ngram --spec-tokens 3", "vllm-0.19", "vllm-0.24"),
    ],
)
def test_flags_that_a_version_lacks_are_refused(flag, lacking, having):
    text = f"vllm serve gpt-oss-20b {flag}"
    with pytest.raises(ScenarioError, match=f"{lacking} does not have it; leave it out, or name"):
        from_vllm([text], gpu="h100-sxm", engine=lacking)
    assert from_vllm([text], gpu="h100-sxm", engine=having)
    assert from_vllm([text], gpu="h100-sxm")
