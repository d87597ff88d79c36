"""Lines that people paste: what becomes of 66 of them, and of every flag in them."""

import io
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim import Scenario, simulate
from mist_sim.cli import main
from mist_sim.cli.app import BAD_INPUT
from mist_sim.errors import ScenarioError
from mist_sim.scenario.build import build
from mist_sim.scenario.format import yaml_text
from mist_sim.scenario.from_vllm.account import faults_of
from mist_sim.scenario.from_vllm.commands import from_vllm, read_commands
from mist_sim.scenario.from_vllm.flags import flags_of
from mist_sim.scenario.from_vllm.generators import GENERATORS
from mist_sim.scenario.from_vllm.tables import ARITIES, RENAMED, SHORT
from mist_sim.scenario.from_vllm.wrappers.shells import Variables, simple_commands
from tests.effort import examples
from tests.refusals import refused
from tests.warned import texts

DATA = Path(__file__).parents[1] / "data" / "vllm_lines.yaml"
LINES = yaml_text.parse(DATA.read_text(encoding="utf-8"), DATA.name)
NUM_ACCEPTED = 59
"""Lines that gave a scenario in November 2026; 6 did before wrappers were read."""

JSON_FLAGS = {
    "--speculative-config",
    "--compilation-config",
    "--hf-overrides",
    "--kv-transfer-config",
}
OF_OTHERS = {
    "--ray-cluster-size",
    "--ray-address",
    "--prefill-model-labels",
    "--decode-model-labels",
}
"""Flags of a script that starts Ray, and of a router."""

LMCACHE = """--kv-transfer-config '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}'"""
BASH = shutil.which("bash")
TP = "--tensor-parallel-size"


def run(capsys, line):
    settings = [word for setting in line.get("set", ()) for word in ("--set", setting)]
    gpu = ["--gpu", line["gpu"]] if line.get("gpu") else []
    with pytest.raises(SystemExit) as leaving:
        main(("from-vllm", line["text"], *gpu, *settings))
    return leaving.value.code or 0, *capsys.readouterr()


@pytest.mark.parametrize("line", LINES, ids=[f"{n}" for n in range(len(LINES))])
def test_a_line_gives_scenario_or_says_why_not(capsys, tmp_path, line):
    code, out, err = run(capsys, line)
    if "refused" in line:
        assert (code, out) == (BAD_INPUT, "")
        assert line["refused"] in err
        return
    assert code == 0, err
    path = tmp_path / "made.yaml"
    path.write_text(out)
    if {"clients", "workload"} <= yaml_text.parse(out, "made").keys():
        Scenario.load(path)


def test_so_many_lines_are_accepted():
    assert len(LINES) >= 60
    assert sum("refused" not in line for line in LINES) == NUM_ACCEPTED >= 50
    assert all(line["source"].startswith("https://") for line in LINES)


def in_the_text(text):
    """Return the flags of a text, as a reader who knows no parser finds them."""
    text = re.sub(r"(?m)(^|\s)#.*$", " ", text)
    text = re.sub(r"""'\{[^']*\}'|"\{(?:\\.|[^"\\])*\}" """, " JSON ", text)
    return re.findall(
        r"""(?:(?<=[\s\["'])|^)(--[A-Za-z][\w.-]*|-[A-Za-z]\w*)(?=[\s=:"'\],]|$)""", text
    )


def own_name(flag):
    """Return the name by which the account has a flag."""
    head = flag.split(".")[0]
    name = SHORT.get(head, head.replace("_", "-"))
    known = [*ARITIES, *(row.flag for row in GENERATORS["vllm bench serve"].rows)]
    begun = sorted({each for each in known if each.startswith(name)})
    if name in known or len(begun) != 1:
        return f"--{name[5:]}" if name.startswith("--no-") and f"--{name[5:]}" in known else name
    return begun[0]


@pytest.mark.parametrize("line", LINES, ids=[f"{n}" for n in range(len(LINES))])
def test_each_flag_has_one_line_in_the_account(line):
    """Applied, without effect or refused, with a reason; none is missing, none is there twice."""
    found = read_commands([line["text"]], overrides=dict.fromkeys(_keys(line)))
    items = [item for statement in found.account for item in statement.items]
    assert all(item.why and item.verdict in ("applied", "no effect", "refused") for item in items)
    said = Counter(own_name(item.flag.split()[0]) for item in items if item.flag)
    wanted = Counter(own_name(flag) for flag in in_the_text(line["text"]))
    around = " ".join(item.flag for item in items)
    for flag, number in wanted.items():
        if flag in OF_OTHERS or flag in ("-c", "-m", "-u", "-e", "--env"):
            continue  # of Python and shells; of containers, whose variables are items themselves
        if said[flag] == number or (flag in JSON_FLAGS and said[flag]):
            continue
        assert f" {flag}" in around or is_dotted(flag, line), f"{flag}: {said[flag]} of {number}"


def is_dotted(flag, line):
    """Whether a flag's entries are given one by one; they are one value."""
    return f"{flag}." in line["text"].replace("_", "-")


def _keys(line):
    return [setting.partition("=")[0] for setting in line.get("set", ())]


def test_a_flag_that_nobody_knows_is_in_account():
    """The check above can fail."""
    text = "vllm serve qwen3-4b --no-such-flag 3 --port 1 --port 2"
    (statement,) = read_commands([text]).account
    assert [item.verdict for item in statement.items] == [
        "applied",
        "refused",
        "no effect",
        "no effect",
    ]


# --- shells -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        'vllm serve "a b" --x \'c "d"\' e\\ f',
        "A=1; B=$A$A; vllm serve m --n ${B} --m ${C:-7} '$A'",
        'E="--a 1 --b"; vllm serve m $E "$E"',
        "L=(--a 1); L+=(--b '2 3'); vllm serve m \"${L[@]}\" ${L[@]}",
        "vllm serve m \\\n  --a 1 \\\n  --b 2 # the end\n",
        "vllm serve m --a $'x\"y' > log 2>&1 &",
        "vllm serve m --a b#c --d '#e'",
        'vllm serve m --a "x\\"y\\$A" ',
        "true && vllm serve m --a 1 || false",
        "(vllm serve m --a 1)",
    ],
)
@pytest.mark.skipif(BASH is None, reason="there is no bash to ask")
def test_words_are_those_of_a_shell(monkeypatch, tmp_path, text):
    """Bash itself says which words a command gets."""
    monkeypatch.chdir(tmp_path)
    script = 'vllm() { printf "%s\\0" vllm "$@"; }\n' + text + "\nwait"
    out = subprocess.run([BASH, "-c", script], capture_output=True, check=False).stdout
    if Path("log").exists():
        out = Path("log").read_bytes()
    words = [words for words in simple_commands(text, Variables()) if words[0] == "vllm"]
    assert [word for each in words for word in each] == out.decode().split("\0")[:-1]


@pytest.mark.parametrize(
    "text",
    [
        "nohup vllm serve qwen3-4b -tp 2 > log 2>&1 &",
        "uv run --with vllm vllm serve qwen3-4b -tp 2",
        "uvx vllm serve qwen3-4b -tp 2",
        """sh -c "vllm serve qwen3-4b -tp 2" """,
        """bash -lc 'cd /srv && exec vllm serve qwen3-4b -tp 2' """,
        "python3 -m vllm.entrypoints.openai.api_server --model qwen3-4b -tp 2",
        "sudo -E env A=1 numactl -N 0 vllm serve qwen3-4b -tp 2",
        "srun --gpus 2 vllm serve qwen3-4b -tp 2",
        "ray start --head\nvllm serve qwen3-4b -tp 2",
        "torchrun --nproc-per-node 1 -m vllm.entrypoints.openai.api_server --model qwen3-4b -tp 2",
        "podman run --device nvidia.com/gpu=all docker.io/vllm/vllm-openai --model qwen3-4b -tp 2",
        "docker run --gpus 2 --entrypoint vllm vllm/vllm-openai serve qwen3-4b -tp 2",
        "docker run some/image bash -c 'vllm serve qwen3-4b -tp 2'",
        "docker exec -it server vllm serve qwen3-4b -tp 2",
        "kubectl exec -it pod -- vllm serve qwen3-4b -tp 2",
        "$ vllm serve qwen3-4b -tp 2",
        "# vllm serve qwen3-4b -tp 2",
        "vllm serve qwen3-4b `\n  -tp 2",
        "vllm serve qwen3-4b ^\n  -tp 2",
        "vllm serve qwen3-4b \u2013tensor-parallel-size 2",
        "vllm serve qwen3-4b \u2013tp 2",
        "[Service]\nEnvironment=A=1\nExecStart=/usr/bin/bash -c 'vllm serve qwen3-4b -tp 2'\n",
        "vllm serve qwen3-4b \\  # small\n  -tp 2",
        "ARGS=(qwen3-4b -tp 2)\nvllm serve ${ARGS[@]}",
        "services:\n  llm:\n    image: vllm/vllm-openai\n    command: qwen3-4b -tp ${TP:-2}\n",
        (
            "spec:\n  containers:\n  - name: a\n    image: vllm/vllm-openai\n"
            "    env: [{name: TP, value: '2'}]\n    args: [qwen3-4b, -tp, $(TP)]\n"
        ),
        (
            "spec:\n  predictor:\n    model:\n      modelFormat: {name: vLLM}\n"
            "      args: [--model=qwen3-4b, -tp=2]\n"
        ),
        (
            "image:\n  repository: vllm/vllm-openai\n  tag: latest\n"
            "  command: [vllm, serve, qwen3-4b, -tp, '2']\n"
        ),
        "model: qwen3-4b\ntensor-parallel-size: 2\n",
    ],
)
def test_wrappers_change_nothing(text):
    (client,) = from_vllm([text]).keys["clients"]
    assert client == {"name": "llm", "tensor_parallel_size": 2}


def test_replicas_are_counted_and_manifests_come_from_standard_input(capsys, monkeypatch, tmp_path):
    text = (
        "spec:\n  replicas: 3\n  template:\n    spec:\n      containers:\n      - name: a\n"
        "        image: vllm/vllm-openai:v0.14.1\n        args: [--model, qwen3-4b]\n"
    )
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    with pytest.raises(SystemExit) as leaving:
        main(("from-vllm", "-", "--gpu", "l4"))
    assert not leaving.value.code
    made = capsys.readouterr().out
    assert "count: 3" in made
    assert "engine: vllm-0.14" in made
    path = tmp_path / "deployment.yaml"
    path.write_text(text)
    assert from_vllm([str(path)]).keys["clients"] == [{"name": "llm", "count": 3}]


@pytest.mark.parametrize(
    ("items", "count"),
    [
        ("0 1 2 3", 4),
        ("{0..3}", 4),
        ("$(seq 0 3)", 4),
        ("$(seq 4)", 4),
        ("a", None),
        ("$GPUS", None),
    ],
)
def test_a_server_in_a_loop_is_several(items, count):
    found = from_vllm(
        [f"for i in {items}; do A=$i vllm serve qwen3-4b & done\nvllm serve qwen3-8b"]
    )
    assert [client.get("count") for client in found.keys["clients"]] == [count, None]
    looped, alone = found.account
    assert looped.items[0].flag == f"for i in {items}"
    assert looped.items[0].is_assumed is (items == "$GPUS")
    assert len(alone.items) == 1
    assert found.others == ()


def test_all_branches_of_a_script_are_read_and_that_is_said():
    text = "if a; then vllm serve qwen3-4b\nelse vllm serve qwen3-8b\nfi\nvllm serve qwen3-14b"
    found = from_vllm([text])
    assert len(found.keys["clients"]) == 3
    assert [[item.flag for item in each.items] for each in found.account] == [
        ["qwen3-4b"],
        ["else", "qwen3-8b"],
        ["qwen3-14b"],
    ]


def test_replicas_of_a_service_are_counted():
    service = "services:\n  a:\n    image: vllm/vllm-openai\n    command: qwen3-4b\n"
    (client,) = from_vllm([service + "    deploy: {replicas: 3}\n"]).keys["clients"]
    assert client["count"] == 3
    assert "count" not in from_vllm([service + "    deploy: {resources: {}}\n"]).keys["clients"][0]


def test_a_pinned_package_is_no_variable():
    found = from_vllm(["uv run --with vllm==0.19.0 vllm serve qwen3-4b"])
    assert found.left_out == ("uv run --with vllm==0.19.0",)


def test_variables_that_are_elsewhere_are_named():
    service = (
        "services:\n  a:\n    image: vllm/vllm-openai\n    command: qwen3-4b\n    env_file: x\n"
    )
    for text in ("docker run --env-file x vllm/vllm-openai qwen3-4b", service):
        assert "elsewhere are not read" in from_vllm([text]).assumed[0].why
    unit = "[Service]\nEnvironment='VLLM_USE_V1=0'\nExecStart=/usr/bin/vllm serve qwen3-4b\n"
    with pytest.raises(ScenarioError, match="VLLM_USE_V1"):
        from_vllm([unit])


STACK = (
    "servingEngineSpec:\n  modelSpec:\n  - modelURL: qwen3-4b\n    replicaCount: 2\n"
    "    vllmConfig: {maxModelLen: 4096}\n"
)


def test_values_of_the_production_stack_are_read_as_its_chart_does():
    """It switches the prefix cache off unless a value asks for it."""
    (client,) = from_vllm([STACK]).keys["clients"]
    assert client["kv_cache"] == {"enable_prefix_caching": False}
    lora = STACK + "    enableLoRA: true\n"
    assert "lora" in from_vllm([lora]).keys["clients"][0]
    for logic, router in (("session", "session_affinity"), ("prefixaware", "prefix_affinity")):
        (item,) = from_vllm([f"{STACK}routerSpec: {{routingLogic: {logic}}}\n"]).assumed
        assert item.flag == f"routingLogic {logic}"
        assert item.why.endswith(f"--set router={router}")


def test_the_gpu_of_the_production_stack_is_read(mist):
    for product, gpu in (("NVIDIA-L4", "l4"), ("NVIDIA-A100-SXM4-80GB", "a100-80gb-sxm")):
        text = f"{STACK}    requestGPUType: {product}\n"
        assert from_vllm([text]).keys["clients"][0]["gpu"] == gpu
        assert from_vllm([text], gpu="h100-sxm").keys["clients"][0]["gpu"] == "h100-sxm"
    code, _, err = mist("from-vllm", f"{STACK}    requestGPUType: NVIDIA-X1\n")
    assert code == BAD_INPUT
    assert "requestGPUType NVIDIA-X1: no such GPU is known" in err


POD = """
kind: Deployment
spec:
  template:
    spec:
      containers:
        - {name: vllm, image: "vllm/vllm-openai:v0.19.0", args: [--model, qwen3-8b]}
"""
AFFINITY = """      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms:
              - matchExpressions:
                  - {key: nvidia.com/gpu.product, operator: In, values: [NVIDIA-A100-SXM4-80GB]}
"""


def selecting(product, more=""):
    return f"{POD}      nodeSelector: {{nvidia.com/gpu.product: {product}{more}}}\n"


@pytest.mark.parametrize("text", [selecting("NVIDIA-A100-SXM4-80GB"), POD + AFFINITY])
def test_the_gpu_of_nodes_of_manifest_is_read(text, tmp_path):
    assert from_vllm([text]).keys["clients"][0]["gpu"] == "a100-80gb-sxm"
    own = tmp_path / "own.toml"
    own.write_text('based_on = "a100"\n', "utf-8")
    for gpu in ("a100", str(own)):
        assert from_vllm([text], gpu=gpu).keys["clients"][0]["gpu"] == gpu
    with pytest.raises(ScenarioError, match="that is a100-80gb-sxm, and --gpu says h100; leave"):
        from_vllm([text], gpu="h100")


def test_labels_of_nodes_that_tell_no_known_gpu_are_accounted_for(mist):
    text = selecting("NVIDIA-X1", ", zone: a")
    found = from_vllm([text], gpu="h100")
    assert found.keys["clients"][0]["gpu"] == "h100"
    labels = ("nodeSelector.nvidia.com/gpu.product NVIDIA-X1", "nodeSelector.zone")
    assert {*labels} <= {*found.left_out}
    code, _, err = mist("from-vllm", text)
    assert code == BAD_INPUT
    assert f"{labels[0]}: no such GPU is known" in err


@pytest.mark.parametrize("gpus", ["1", "'\"device=0\"'", "device=0", "'\"device=0\"' --rm"])
def test_a_container_with_fewer_gpus_than_its_ranks_is_refused(gpus):
    line = f"docker run --gpus {gpus} vllm/vllm-openai:v0.14.0 --model qwen3-8b -tp 2"
    with pytest.raises(ScenarioError, match="it may use 1 GPUs, and asks for 2"):
        from_vllm([line], gpu="h100-sxm")


def reserving(more):
    return POD.replace("qwen3-8b]}", f"qwen3-8b, -tp, '2'], {more}}}")


COMPOSE = """
services:
  vllm:
    image: vllm/vllm-openai:v0.19.0
    command: --model qwen3-8b -tp 2
    {}
"""
DEVICES = "deploy: {{resources: {{reservations: {{devices: [{{{}}}]}}}}}}"
SHELL = (
    "docker run --gpus 8 vllm/vllm-openai sh -c 'vllm serve qwen3-4b -tp 2 & vllm serve qwen3-8b'"
)


@pytest.mark.parametrize(
    ("text", "flag", "used"),
    [
        (
            reserving("resources: {limits: {nvidia.com/gpu: 8}}"),
            "resources.limits.nvidia.com/gpu",
            2,
        ),
        (
            reserving("resources: {requests: {amd.com/gpu: '8'}}"),
            "resources.requests.amd.com/gpu",
            2,
        ),
        (STACK + "    requestGPU: 8\n", "requestGPU", 1),
        (COMPOSE.format(DEVICES.format("count: 8")), "devices count", 2),
        (COMPOSE.format(DEVICES.format("device_ids: ['0,1,2,3', '4,5,6,7']")), "devices device", 2),
        (COMPOSE.format("gpus: [{count: 8}]"), "gpus count", 2),
        ("docker run --gpus 8 vllm/vllm-openai --model qwen3-8b -tp 2", "--gpus 8", 2),
        (SHELL, "--gpus 8", 3),
    ],
)
def test_reserved_gpus_that_no_server_uses_are_told_with_what_they_cost(text, flag, used):
    (item,) = [each for each in from_vllm([text]).assumed if each.flag.startswith(flag)]
    assert item.why == (
        f"each copy reserves 8 GPUs and uses {used}; dollars and energy count those used, "
        f"the rent of all 8 is {8 / used:.3g} times as much"
    )


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        (
            reserving("resources: {limits: {nvidia.com/gpu: 2}}"),
            "resources.limits.nvidia.com/gpu 2",
        ),
        (COMPOSE.format(DEVICES.format("count: all")), "devices count all"),
        (COMPOSE.format("gpus: all"), "gpus all"),
        ("docker run --gpus all vllm/vllm-openai --model qwen3-8b", "--gpus all"),
        ("docker run --gpus 1 vllm/vllm-openai bash -c 'vllm bench serve'", "--gpus 1"),
    ],
)
def test_gpus_that_are_used_or_not_counted_have_a_line_without_an_assumption(text, flag):
    found = read_commands([text])
    assert flag not in [each.flag for each in found.assumed]
    assert flag in found.left_out


def test_results_repeat_what_reserved_gpus_would_cost(mist, tmp_path):
    text = reserving("resources: {limits: {nvidia.com/gpu: 8}}")
    scenario = tmp_path / "load.yaml"
    ends = "prompt: {type: fixed, tokens: 9}, output: {type: fixed, tokens: 9}"
    lengths = f"{{type: synthetic, num_requests: 3, {ends}}}"
    scenario.write_text(f"workload:\n  lengths: {lengths}\n  arrivals: all_at_once\n", "utf-8")
    options = ("--from-vllm", text, "--set", "clients.0.gpu=h100", "--set", "cost={}")
    code, out, err = mist("run", scenario, *options)
    assert code == 0, err
    assert "the rent of all 8 is 4 times as much" in " ".join(out.split())


def test_the_store_of_the_production_stack_is_shared():
    text = STACK.replace("4096", "4096, enablePrefixCaching: true")
    text += "    lmcacheConfig: {enabled: true, cpuOffloadingBufferSize: 20}\n"
    assert from_vllm([text]).keys["clients"][0]["kv_cache"]["tiers"][0]["capacity"] == "20 GB"
    with pytest.raises(ScenarioError, match="a store that servers share needs a size"):
        from_vllm([text + "cacheserverSpec: {serde: naive}\n"])
    off = text + "cacheserverSpec: {enabled: false}\n"
    assert from_vllm([off]).keys == from_vllm([text]).keys


@pytest.mark.parametrize(
    ("flag", "key"),
    [
        ("--no-enable-chunked-prefill", "clients.0.scheduler.type"),
        (
            """--kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'""",
            "clients.0.role",
        ),
    ],
)
def test_what_set_says_is_not_refused(flag, key):
    line = f"vllm serve qwen3-4b {flag}"
    with pytest.raises(ScenarioError, match=f"--set {key}"):
        from_vllm([line])
    (statement,) = from_vllm([line], overrides={key: "x"}).account
    assert statement.items[-1].why == f"{key.removeprefix('clients.0.')}, which --set says"


def test_offloading_has_the_bytes_of_the_line():
    size = 107_374_182_401
    extra = f'{{"cpu_bytes_to_use": {size}}}'
    line = (
        'vllm serve qwen3-8b --kv-transfer-config \'{"kv_connector": "OffloadingConnector", '
        f'"kv_role": "kv_both", "kv_connector_extra_config": {extra}}}\''
    )
    (tier,) = from_vllm([line]).keys["clients"][0]["kv_cache"]["tiers"]
    assert tier["capacity"] == f"{size} B"


def test_a_file_of_arguments_goes_before_command_line(tmp_path):
    path = tmp_path / "args.yaml"
    path.write_text("max-num-seqs: 64\ntensor-parallel-size: 4\nport: 80\n")
    (client,) = from_vllm([f"vllm serve qwen3-4b --config {path} -tp 2"]).keys["clients"]
    assert client == {"name": "llm", "tensor_parallel_size": 2, "scheduler": {"max_num_seqs": 64}}
    with pytest.raises(ScenarioError, match="--config: there is no such file here"):
        from_vllm(["vllm serve qwen3-4b --config other.yaml"])


# --- flags ------------------------------------------------------------------------------------


def client_of(arguments, **said):
    (client,) = from_vllm([f"vllm serve qwen3-8b {arguments}"], **said).keys["clients"]
    return {key: value for key, value in client.items() if key != "name"}


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ("-O3", {}),
        ("-O 0", {"predictor": {"enforce_eager": True}}),
        ("-O.cudagraph_capture_sizes '[1, 2]'", {"predictor": {"cudagraph_capture_sizes": [1, 2]}}),
        (
            """-cc '{"max_cudagraph_capture_size": 8}'""",
            {"predictor": {"max_cudagraph_capture_size": 8}},
        ),
        ("--compilation-config 3", {}),
        (
            "--attention-config.backend FLASH_ATTN --mm-encoder-tp-mode data --max-loras 4",
            {"attention_backend": "FLASH_ATTN"},
        ),
        ("--disable-custom-all-reduce", {"all_reduce": "ring"}),
        ("--disable-sliding-window", {}),
        ("--nnodes 2 --node-rank 0 -pp 2", {"pipeline_parallel_size": 2}),
        ("--enable-expert-parallel", {}),
        ("--tensor-parallel 2", {"tensor_parallel_size": 2}),
        ("--enforce-eager true", {"predictor": {"enforce_eager": True}}),
        ("--hf-overrides.max_position_embeddings 9000", {"max_model_len": 9000}),
        ("-q modelopt_fp4", {"quantization": "nvfp4"}),
        (
            "-tp 2 -sc.method eagle3 --speculative-config.num_speculative_tokens 3",
            {
                "tensor_parallel_size": 2,
                "speculative_config": {"method": "eagle3", "num_speculative_tokens": 3},
            },
        ),
        (
            """-sc '{"method": "deepseek_mtp", "num_speculative_tokens": 1}'""",
            {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}},
        ),
        (
            """-sc '{"model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 4}'""",
            {
                "speculative_config": {
                    "model": "Qwen/Qwen3-0.6B",
                    "num_speculative_tokens": 4,
                    "method": "draft_model",
                }
            },
        ),
        (
            """-sc '{"model": "AngelSlim/Qwen3-8B_eagle3", "num_speculative_tokens": 4}'""",
            {"speculative_config": {"num_speculative_tokens": 4, "method": "eagle3"}},
        ),
        (
            f"-tp 2 {LMCACHE}",
            {
                "tensor_parallel_size": 2,
                "kv_cache": {
                    "tiers": [{"name": "lmcache", "capacity": "10 GB", "loads_in_step": None}]
                },
            },
        ),
    ],
)
def test_flags_that_people_use(arguments, found):
    assert client_of(arguments) == found


@pytest.mark.parametrize(
    ("name", "model", "quantization"),
    [
        ("Qwen/Qwen3-32B-FP8", None, None),  # the catalog has it
        ("RedHatAI/Qwen3-8B-FP8-dynamic", "qwen3-8b", "fp8"),
        ("Qwen/Qwen2.5-72B-Instruct-AWQ", "qwen2.5-72b-instruct", "int4"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "qwen2.5-7b-instruct", "int4"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8", "llama-3.1-8b", "int8"),
        ("RedHatAI/Llama-3.3-70B-Instruct-NVFP4", "llama-3.1-70b", "nvfp4"),
        ("/models/Qwen3-4B/", "qwen3-4b", None),
        (
            "/hub/models--Qwen--Qwen3-4B/snapshots/1cfa9a7208912126459214e8b04321603b3df60c",
            "qwen3-4b",
            None,
        ),
    ],
)
def test_checkpoints_are_known_by_their_names(name, model, quantization):
    found = from_vllm([f"vllm serve {name}"])
    assert found.keys["model"] == (model or name)
    assert found.keys["clients"][0].get("quantization") == quantization
    (item,) = found.account[0].items
    assert ("by its name" in item.why) is (model is not None)


@pytest.mark.parametrize(
    "name", ["Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "x/Qwen3-8B-GGUF", "someone/Model-FP8"]
)
def test_other_names_are_not_guessed(name):
    with pytest.raises(ScenarioError, match="--set model=PATH of its config.json"):
        from_vllm([f"vllm serve {name}"])


def test_nvidias_checkpoints_have_an_fp8_cache():
    text = "vllm serve nvidia/Llama-3.3-70B-Instruct-FP4"
    assert from_vllm([text]).keys["clients"][0]["kv_cache"] == {"kv_cache_dtype": "fp8"}
    own = from_vllm([f"{text} --kv-cache-dtype auto"]).keys["clients"][0]
    assert own["kv_cache"] == {"kv_cache_dtype": "auto"}


def test_all_faults_are_said_at_once():
    with pytest.raises(ScenarioError) as caught:
        from_vllm(
            [
                "vllm serve m --enable-dbo --dtype float32 --foo 1 -tp x",
                "vllm bench serve --no-stream",
            ]
        )
    said = str(caught.value)
    assert said.startswith("6 arguments cannot be honoured:\n")
    for part in ("serve m:", "--enable-dbo", "--dtype float32", "--foo", "'x'", "--no-stream"):
        assert part in said


def test_lmcache_is_a_tier_of_the_size_that_its_variables_say():
    variables = "LMCACHE_LOCAL_CPU=True LMCACHE_MAX_LOCAL_CPU_SIZE=20"
    sized = f"{variables} vllm serve qwen3-8b -tp 4 {LMCACHE}"
    (client,) = from_vllm([sized]).keys["clients"]
    tier = {"name": "lmcache", "capacity": "80 GB", "loads_in_step": None}
    assert client["kv_cache"] == {"tiers": [tier]}
    remote = f"LMCACHE_REMOTE_URL=redis://cache vllm serve qwen3-8b {LMCACHE}"
    with pytest.raises(ScenarioError, match="a size and a bandwidth; instead: --set"):
        from_vllm([remote])
    assert "kv_cache" not in client_of("", overrides=())
    assert from_vllm([remote], overrides=["clients.0.kv_cache.tiers"]).keys["clients"]
    with pytest.raises(ScenarioError, match="instead: --enable-prefix-caching"):
        from_vllm([f"vllm serve qwen3-8b --no-enable-prefix-caching {LMCACHE}"])


def test_a_part_of_lmcaches_tier_may_be_set_beside_its_line():
    changes = {"clients.0.kv_cache.tiers.0.latency": "1 ms"}
    load = "vllm bench serve --num-prompts 2 --random-input-len 64 --random-output-len 4"
    serve = f"vllm serve qwen3-8b {LMCACHE}"
    found = from_vllm([serve, load], gpu="h100-sxm", overrides=changes)
    (client,) = build(Scenario.from_dict(found.keys, changes)).clients
    (tier,) = client.memory.tiers
    assert tier.latency == 1e-3


@pytest.mark.parametrize(
    ("connector", "in_step"),
    [
        ("LMCacheConnectorV1", None),  # wherever that is simulated
        ("LMCacheMPConnector", False),  # between steps, as the OffloadingConnector
    ],
)
@pytest.mark.parametrize("size", ["", "LMCACHE_MAX_LOCAL_CPU_SIZE=20 "])
def test_connector_says_whether_step_waits_for_its_loads(connector, in_step, size):
    line = f"{size}vllm serve qwen3-8b {LMCACHE.replace('LMCacheConnectorV1', connector)}"
    found = from_vllm([line])
    (client,) = found.keys["clients"]
    (tier,) = client["kv_cache"]["tiers"]
    assert tier.get("loads_in_step", False) is in_step
    told = [item for item in found.assumed if "tiers.0.loads_in_step: null" in item.why]
    assert bool(told) is (in_step is None)


DRAFTS = '-sc \'{"method": "ngram", "num_speculative_tokens": 2}\''


@pytest.mark.parametrize(
    ("flags", "changes", "in_step"),
    [
        ("", {}, True),
        ("--prefill-schedule-interval 1", {}, True),
        ("--max-num-partial-prefills 1", {}, True),
        ("--prefill-schedule-interval 2", {}, False),
        (DRAFTS, {"clients.0.speculative_config.acceptance_rate": 0.7}, False),
        ("", {"network.topology": "hgx-h100"}, False),
        ("", {"clients.0.scheduler.type": "continuous"}, False),
        ("", {"clients.0.scheduler.prefill_schedule_interval": 2}, False),
        (
            "",
            {
                "clients.0.scheduler.max_num_partial_prefills": 2,
                "clients.0.scheduler.long_prefill_token_threshold": 512,
            },
            False,
        ),
    ],
)
def test_a_step_waits_for_lmcache_unless_that_is_not_simulated(flags, changes, in_step):
    """Where a step cannot wait, requests do, and the results name it as an assumption."""
    serve = f"vllm serve qwen3-8b {flags} {LMCACHE}"
    load = "vllm bench serve --num-prompts 2 --random-input-len 64 --random-output-len 4"
    found = from_vllm([serve, load], gpu="h100-sxm", overrides=changes)
    scenario = Scenario.from_dict(found.keys, changes)
    (client,) = build(scenario).clients
    assert [tier.in_step for tier in client.memory.tiers] == [in_step]
    summary = simulate(scenario).summary
    assert ("kv_cache.tiers.loads_in_step" in summary["assumed"]["llm"]) is not in_step
    assert ("Requests wait for their loads" in " ".join(texts(summary))) is not in_step


def test_a_cap_of_answers_is_the_workloads(capsys):
    serve = """vllm serve qwen3-8b --override-generation-config '{"max_new_tokens": 64}'"""
    found = from_vllm([serve])
    assert found.keys["workload"] == {"max_tokens": 64}
    assert found.overrides["workload.max_tokens"] == 64
    with pytest.raises(SystemExit) as leaving:
        main(("from-vllm", serve, "--gpu", "l40s"))
    assert not leaving.value.code
    assert "max_tokens: 64" in capsys.readouterr().out
    both = from_vllm([serve, "vllm bench serve --num-prompts 5"]).keys["workload"]
    assert both["max_tokens"] == 64
    assert "lengths" in both


@pytest.mark.parametrize(
    ("arguments", "workload"),
    [
        (
            "--request-rate 5 --max-concurrency 8",
            {
                "arrivals": {"type": "poisson", "rate": "5 /s", "stretched": True},
                "max_concurrency": 8,
            },
        ),
        (
            "--dataset-name prefix_repetition --prefix-repetition-prefix-len 512 --num-warmups 3",
            {
                "lengths": {
                    "type": "prefix_repetition",
                    "num_requests": 1000,
                    "num_prefixes": 10,
                    "prefix_len": 512,
                    "suffix": {"type": "fixed", "tokens": 256},
                    "output": {"type": "fixed", "tokens": 128},
                }
            },
        ),
        (
            "--random-prefix-len 100 --input-len 20 --output-len 9 --num-prompt 4",
            {
                "lengths": {
                    "type": "prefix_repetition",
                    "num_requests": 4,
                    "num_prefixes": 1,
                    "prefix_len": 100,
                    "suffix": {"type": "fixed", "tokens": 20},
                    "output": {"type": "fixed", "tokens": 9},
                }
            },
        ),
        (
            """--input-len 20 --num-prompts 4 --extra-body '{"max_tokens": 7, "temperature": 0}'""",
            {
                "lengths": {
                    "type": "synthetic",
                    "num_requests": 4,
                    "prompt": {"type": "fixed", "tokens": 20},
                    "output": {"type": "fixed", "tokens": 7},
                }
            },
        ),
    ],
)
def test_benchmarks_that_people_run(arguments, workload):
    found = from_vllm([f"vllm bench serve {arguments}"]).keys["workload"]
    assert {key: found[key] for key in workload} == workload


def test_benchmarks_lengths_are_those_that_its_dataset_reads(tmp_path):
    """`--input-len` sets those of random alone; `--output-len` those of every dataset."""
    repeated = "--dataset-name prefix_repetition --input-len 9 --output-len 8"
    found = from_vllm([f"vllm bench serve {repeated}"])
    assert found.keys["workload"]["lengths"]["suffix"]["tokens"] == 256
    assert found.keys["workload"]["lengths"]["output"]["tokens"] == 8
    assert found.left_out == ("--input-len",)
    path = tmp_path / "a.json"
    with pytest.raises(ScenarioError, match="--output-len 8: answers of the file have their own"):
        from_vllm(
            [f"vllm bench serve --dataset-name sharegpt --dataset-path {path} --output-len 8"]
        )


def test_general_lengths_take_the_place_of_datasets_own():
    line = (
        "vllm bench serve --input-len 5 --random-input-len 9 --output-len 6 --random-output-len 8"
    )
    found = from_vllm([line])
    assert found.keys["workload"]["lengths"]["prompt"]["tokens"] == 5
    assert found.left_out == ("--random-input-len 9", "--random-output-len 8")


def test_prompts_and_answers_may_spread_apart():
    line = "vllm bench serve --input-len 100 --output-len 10 --random-range-ratio"
    lengths = from_vllm([f"""{line} '{{"input": 0.5, "output": 0.1}}'"""]).keys["workload"][
        "lengths"
    ]
    assert lengths["prompt"] == {"type": "uniform", "low": 50, "high": 150}
    assert lengths["output"] == {"type": "uniform", "low": 9, "high": 11}
    assert from_vllm([f"{line} 0.5"]).keys["workload"]["lengths"]["output"]["low"] == 5
    for wrong in ("1", "nan", "x", '{"input": 0.2}', '{"input": "a", "output": 0}'):
        with pytest.raises(ScenarioError, match="--random-range-ratio"):
            from_vllm([f"{line} '{wrong}'"])


def test_burstiness_without_a_rate_has_no_effect():
    found = from_vllm(["vllm bench serve --burstiness 0.5"])
    assert found.left_out == ("--burstiness",)
    assert found.keys["workload"]["arrivals"] == {"type": "all_at_once"}


def test_a_cap_of_a_request_is_whole_number():
    with pytest.raises(ScenarioError, match="--extra-body max_tokens=many: must be a whole number"):
        from_vllm(["""vllm bench serve --extra-body '{"max_tokens": "many"}'"""])


test_what_is_not_simulated_is_refused = refused(
    lambda text: from_vllm([text]),
    (
        "docker run --gpus 1 vllm/vllm-openai --model qwen3-4b -tp 2",
        "may use 1 GPUs, and asks for 2",
    ),
    ("docker run vllm/vllm-openai:v0.6.1 --model qwen3-4b", "versions before 0.8"),
    ("vllm serve qwen3-4b --headless --data-parallel-start-rank 4", "give that of the first node"),
    ("vllm serve qwen3-4b --all2all-backend nixl_ep", "say --max-num-batched-tokens beside it"),
    ("VLLM_SOMETHING_NEW=1 vllm serve qwen3-4b", "not a variable that is known here"),
    ("vllm serve qwen3-4b --hf-overrides.num_hidden_layers 3", "a model is a config.json"),
    ("vllm serve qwen3-4b extra", "is no flag"),
    ("""vllm serve qwen3-4b -cc '{"cudagraph_mode": "NONE"}'""", "without graphs are not timed"),
    ("vllm serve qwen3-4b --hf-overrides.rope_scaling.factor 4", "say how long: --max-model-len"),
    ("vllm bench throughput --model qwen3-4b", "--input-len and --output-len are required"),
    ("a: &a\n  b: [*a]\n", "lists and mappings in YAML"),
    ("kind: Deployment\nspec: {}\n", "must be a command line of vllm serve"),
)


def test_images_of_other_versions_take_the_nearest(capsys):
    text = "docker run vllm/vllm-openai:v0.9.2 --model qwen3-4b"
    found = from_vllm([text])
    assert found.keys["engine"] == "vllm-0.10"
    assert [item.flag for item in found.assumed] == ["image vllm-openai:v0.9.2"]
    assert "engine" not in from_vllm([text], engine="vllm-0.19").keys
    with pytest.raises(SystemExit):
        main(("from-vllm", text, "--gpu", "l4", "--engine", "vllm-0.19"))
    assert "engine: vllm-0.19" in capsys.readouterr().out


def test_the_account_is_shown(capsys):
    line = "HF_TOKEN=hf_secret vllm serve qwen3-4b --api-key sk-secret --dtype float32"
    line += " --stream-interval 8"
    with pytest.raises(SystemExit) as leaving:
        main(("from-vllm", line, "--gpu", "l4", "--explain"))
    assert leaving.value.code == BAD_INPUT
    out, err = capsys.readouterr()
    assert out == ""
    for part in ("HF_TOKEN", "--api-key", "no effect", "applied", "refused", "assumed:"):
        assert part in err
    assert "secret" not in err


@given(st.sampled_from(LINES), st.lists(st.tuples(st.integers(0), st.text(max_size=4)), max_size=6))
@examples(60)
def test_damaged_lines_are_read_or_refused(line, damage):
    """No other error than ours comes of a text, however it is broken."""
    text = line["text"]
    for place, piece in damage:
        cut = place % (len(text) + 1)
        text = text[:cut] + piece + text[cut + len(piece) :]
    try:
        found = read_commands([text])
    except ScenarioError as refused:
        told = str(refused).splitlines()
    else:
        told = faults_of(found.account) or [each.command for each in found.account]
    assert told
    assert all(line.isprintable() for line in told)


def test_flags_keep_their_values():
    flags = flags_of(["-tp=2", "--a_b", "x", "-1"], {TP: "one", "--a-b": "many"}, {"-tp": TP})
    assert [(flag.name, flag.values) for flag in flags] == [(TP, ("2",)), ("--a-b", ("x", "-1"))]


ASKED = '{"temperature": 0.6, "top_p": 0.95}'
SERVER = f"vllm serve qwen3-8b --override-generation-config '{ASKED}'"
BENCHMARK = "vllm bench serve --random-input-len 20 --num-prompts 4"


@pytest.mark.parametrize(
    ("asked", "sampling"),
    [
        ("", {"temperature": 0.6, "top_p": 0.95}),
        ("--top-k 20", {"temperature": 0.6, "top_p": 0.95, "top_k": 20}),
        ("--temperature 0.8 --top-p 0.9", {"temperature": 0.8, "top_p": 0.9}),
        ("--extra-body '{\"top_p\": 0.5}'", {"temperature": 0.6, "top_p": 0.5}),
        ("--top-k -1", {"temperature": 0.6, "top_p": 0.95, "top_k": 0}),
        ("--repetition-penalty 1.05", {**json.loads(ASKED), "repetition_penalty": 1.05}),
        ("--temperature 0", {"temperature": 0}),
        ("--temperature 0 --presence-penalty 1.5", {"temperature": 0, "presence_penalty": 1.5}),
    ],
)
def test_requests_of_benchmark_are_sampled_as_it_asks(asked, sampling):
    """What it does not say is as the server has it."""
    keys = from_vllm([SERVER, f"{BENCHMARK} {asked}"], gpu="h100-sxm").keys
    assert keys["clients"][0].get("sampling") == sampling


def test_benchmarks_before_0_15_are_greedy_where_they_do_not_say():
    def sampling(engine, asked=""):
        lines = ["vllm serve qwen3-8b", f"{BENCHMARK} {asked}"]
        return from_vllm(lines, gpu="h100-sxm", engine=engine).keys["clients"][0].get("sampling")

    assert sampling("vllm-0.14") == {"temperature": 0}
    assert sampling("vllm-0.14", "--temperature 0.8") == {"temperature": 0.8}
    assert sampling("vllm-0.19") is None


def test_the_account_says_what_a_benchmark_sends_unasked():
    def told(engine):
        found = from_vllm(["vllm serve qwen3-8b", BENCHMARK], gpu="h100-sxm", engine=engine)
        assert [each.command for each in found.account] == ["vllm serve", "vllm bench serve"]
        return [item.why for item in found.account[1].items if "temperature" in item.flag]

    assert told("vllm-0.14") == ["sampling.temperature: 0"]
    assert told("vllm-0.19") == []


@pytest.mark.parametrize(
    ("body", "temperature"), [("", 0), ("--extra-request-body '{\"temperature\": 0.5}'", 0.5)]
)
def test_benchmark_of_sglang_is_greedy_unless_it_says(body, temperature):
    line = f"python3 -m sglang.bench_serving --backend vllm --dataset-name random {body}"
    found = from_vllm(["vllm serve qwen3-8b", line], gpu="h100-sxm", engine="vllm-0.19")
    assert found.keys["clients"][0]["sampling"] == {"temperature": temperature}
    told = [item.why for item in found.account[1].items if "temperature" in item.flag]
    assert len(told) == 1


@pytest.mark.parametrize(
    "line",
    [
        "aiperf profile -m m --url localhost:8000 --streaming --osl 9 --num-requests 4",
        (
            "guidellm benchmark --rate-type throughput --max-requests 5 --target http://a "
            "--data prompt_tokens=5,output_tokens=5"
        ),
    ],
)
@pytest.mark.parametrize("image", ["0.10.0", "0.14.0"])
def test_other_load_generators_leave_the_temperature_to_server(line, image):
    server = f"docker run --gpus all vllm/vllm-openai:v{image} --model qwen3-8b"
    assert "sampling" not in from_vllm([server, line], gpu="h100-sxm").keys["clients"][0]


IN_THE_FILE = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}


@pytest.fixture
def folder(tmp_path):
    """A checkpoint whose requests are sampled, and penalised, unless they say otherwise."""
    config = {"vocab_size": 1_000, "hidden_size": 64, "intermediate_size": 128}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    more = {"model_type": "llama", "max_position_embeddings": 4_096}
    (tmp_path / "config.json").write_text(json.dumps(config | heads | more), "utf-8")
    text = json.dumps({"do_sample": True, "eos_token_id": 7} | IN_THE_FILE)
    (tmp_path / "generation_config.json").write_text(text, "utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("flags", "sampling"),
    [
        ("", IN_THE_FILE),
        ("--generation-config auto", IN_THE_FILE),
        ("--generation-config vllm", {"generation_config": "vllm"}),
        ("--override-generation-config '{\"top_p\": 0.5}'", IN_THE_FILE | {"top_p": 0.5}),
    ],
)
def test_requests_are_sampled_as_the_checkpoint_asks(folder, flags, sampling):
    found = from_vllm([f"vllm serve {folder} {flags}"], gpu="h100-sxm").keys["clients"][0]
    assert found.get("sampling") == sampling


def test_another_folder_has_the_defaults(folder):
    line = f"vllm serve qwen3-8b --generation-config {folder}"
    assert from_vllm([line], gpu="l4").keys["clients"][0]["sampling"]["top_k"] == 20
    greedy = [line, f"{BENCHMARK} --temperature 0"]
    asked = from_vllm(greedy, gpu="l4").keys["clients"][0]["sampling"]
    assert asked == {"temperature": 0, "repetition_penalty": 1.05}


def test_values_that_transformers_has_anyway_say_nothing(folder):
    """vLLM takes only what differs from them, so that top_k: 50 leaves all words."""
    text = json.dumps({"temperature": 1.0, "top_p": 0.9, "top_k": 50, "repetition_penalty": 1.0})
    (folder / "generation_config.json").write_text(text, "utf-8")
    found = from_vllm([f"vllm serve {folder}"], gpu="h100-sxm").keys["clients"][0]
    assert found["sampling"] == {"top_p": 0.9}


@pytest.mark.parametrize("text", ["{", "[1]", '{"max_new_tokens": -1}', "[" * 100_000])
def test_a_damaged_generation_config_is_refused(folder, text):
    (folder / "generation_config.json").write_text(text, "utf-8")
    with pytest.raises(ScenarioError, match=r"generation_config\.json"):
        from_vllm([f"vllm serve {folder}"], gpu="h100-sxm")


@pytest.mark.parametrize(
    ("flag", "key", "value"),
    [
        ("--cuda-graph-sizes 512", "max_cudagraph_capture_size", 512),
        ("--cuda_graph_sizes 1 2 4", "cudagraph_capture_sizes", [1, 2, 4]),
    ],
)
def test_older_names_of_flags_are_read(flag, key, value):
    """One size was the largest of a list that vLLM made, several were the list (vLLM to 0.11)."""
    found = from_vllm([f"vllm serve qwen3-8b {flag}"], gpu="h100-sxm")
    assert found.keys["clients"][0]["predictor"] == {key: value}
    (item,) = [item for item in found.account[0].items if "cuda-graph-sizes" in item.flag]
    assert item.why.endswith("after vLLM 0.11")


@pytest.mark.parametrize("name", RENAMED)
def test_every_older_name_leads_to_a_flag(name):
    now = RENAMED[name].now
    assert now in ARITIES
    assert now not in RENAMED
    words = {"switch": "", "one": "{}", "many": "1"}[RENAMED[name].takes]
    account = read_commands([f"vllm serve qwen3-8b {name} {words}"]).account
    assert [item.flag.partition(" ")[0] for item in account[0].items].count(name) == 1
