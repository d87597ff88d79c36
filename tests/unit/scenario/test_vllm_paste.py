"""Lines as people paste them: variables of launchers, images with defaults, appended entries."""

import pytest

from mist_sim.errors import ScenarioError
from mist_sim.scenario.from_vllm.commands import from_vllm

NODES = "vllm serve llama-3.1-8b -tp 8 -pp 2 --nnodes 2 --node-rank"


@pytest.mark.parametrize("rank", ["$SLURM_PROCID", "${SLURM_NODEID}", "$(hostname | tail -c 2)"])
def test_rank_that_launcher_sets_is_of_all_nodes(rank):
    found = from_vllm([f'srun -N2 {NODES} "{rank}" --master-addr x'])
    assert found.keys["clients"] == [
        {"name": "llm", "tensor_parallel_size": 8, "pipeline_parallel_size": 2}
    ]
    (item,) = [each for each in found.assumed if each.flag.startswith("--node-rank")]
    assert "all nodes run this command" in item.why


def test_a_further_node_alone_is_named():
    with pytest.raises(ScenarioError, match="--node-rank 1 starts a further node"):
        from_vllm([f"{NODES} 1"])


def test_an_image_of_compose_file_may_have_default():
    text = "services:\n  v:\n    image: {}\n    command: --model qwen3-8b\n"
    for image in ('"vllm/vllm-openai:${TAG:-v0.19.0}"', "${IMAGE:-vllm/vllm-openai}:v0.19.0"):
        assert from_vllm([text.format(image)]).keys["engine"] == "vllm-0.19"


def test_services_that_start_no_server_are_named():
    text = "services:\n  v:\n    image: vllm/vllm-openai:v0.19.0\n    command: --model qwen3-8b\n"
    assert not from_vllm([text]).assumed
    proxied = from_vllm([f"{text}  front:\n    image: nginx\n    volumes: [./a:/b]\n"])
    (item,) = proxied.assumed
    assert item.flag == "service front"
    assert "router" in item.why


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        ("-cc.cudagraph_capture_sizes+ 1 -cc.cudagraph_capture_sizes+ 2,4", [1, 2, 4]),
        ("-cc.cudagraph_capture_sizes+=8", [8]),
        ("-cc.cudagraph_capture_sizes '[1]' -cc.cudagraph_capture_sizes+ 2", [1, 2]),
    ],
)
def test_entries_with_a_plus_add_up(arguments, sizes):
    (client,) = from_vllm([f"vllm serve qwen3-8b {arguments}"]).keys["clients"]
    assert client["predictor"]["cudagraph_capture_sizes"] == sizes


BRANCHES = """MODEL="${{MODEL:-qwen3-8b}}"
TP=""
ARGS=()
if {test}; then
  TP=2
  ARGS+=(--max-num-seqs 9)
elif [ "$MODEL" = qwen3-4b ]; then
  TP=3
else
  TP="${{TP:-4}}"
fi
echo "starting $MODEL"
CMD="vllm serve $MODEL"
CMD+=" -tp $TP"
eval "$CMD" "${{ARGS[@]}}"
"""


@pytest.mark.parametrize(
    ("test", "tensor", "others"),
    [
        ('[[ "$MODEL" == qwen3-8b ]]', 2, {"scheduler": {"max_num_seqs": 9}}),
        ('[ -n "$MODEL" ]', 2, {"scheduler": {"max_num_seqs": 9}}),
        ('[[ "$MODEL" != qwen3-8b ]]', 4, {}),
        ('[[ -z "${MODEL}" ]]', 4, {}),
        ("[ -d Qwen/Qwen3-8B ]", 4, {}),
        ('[[ ! -n "$MODEL" ]]', 4, {}),
    ],
)
def test_the_branch_that_a_script_takes_is_read(test, tensor, others):
    found = from_vllm([BRANCHES.format(test=test)])
    assert found.keys["clients"] == [{"name": "llm", "tensor_parallel_size": tensor, **others}]
    assert not found.assumptions


@pytest.mark.parametrize("test", ["[ -f .env ]", "x", "[[ a == a ]] && x", "[[ $GPUS == 4 ]]"])
def test_a_test_that_is_not_known_is_told(test):
    told, *_ = from_vllm([BRANCHES.format(test=test)]).assumptions
    assert told.startswith("Assumed for if: TP")


ARGUMENTS = """MODEL=qwen3-8b
TP=2
while {test}; do
  for each in a b; do echo $each; done
  case $1 in
    --model) MODEL="$2" ;;
    --tp) TP="$2" ;;
    --one) TP=1 ;;
  esac
done
for i in 1 2; do
  vllm serve $MODEL -tp $TP
done
"""


@pytest.mark.parametrize("test", ["[[ $# -gt 0 ]]", "getopts m: name"])
def test_arguments_of_a_script_leave_its_defaults(test):
    found = from_vllm([ARGUMENTS.format(test=test)])
    assert found.keys["model"] == "qwen3-8b"
    assert found.keys["clients"] == [{"name": "llm", "count": 2, "tensor_parallel_size": 2}]
    assert not found.assumptions


def test_a_positional_value_leaves_a_default():
    assert from_vllm(['MODEL=qwen3-8b\nMODEL="$1"\nvllm serve $MODEL']).keys["model"] == "qwen3-8b"


def test_code_blocks_of_markdown_are_read_alone():
    text = (
        "# Test: vllm serve\n\n**Model:** x\n```bash\nvllm serve qwen3-8b -tp 2\n```\nTime: 3 s\n"
    )
    found = from_vllm([text])
    assert found.keys["clients"] == [{"name": "llm", "tensor_parallel_size": 2}]
    assert not found.others


CHART = """main:
  image: {repository: a/vllm-openai, tag: v0.19.0}
  command: [bash, -c, 'exec vllm serve "${MODEL}" -tp "${TP}" --port ${PORT}']
kwargs: {MODEL: qwen3-8b, TP: "2", PORT: "8000"}
"""


def test_variables_of_chart_have_values_of_its_keys():
    found = from_vllm([CHART])
    assert found.keys["model"] == "qwen3-8b"
    assert found.keys["clients"] == [{"name": "llm", "tensor_parallel_size": 2}]
    assert found.assumptions == ["Assumed for MODEL, PORT, TP: as the keys of these names say"]
    with pytest.raises(ScenarioError, match="TP has no value here; write TP="):
        from_vllm([CHART + "other: {TP: 4}\n"])


def test_variable_that_argument_takes_is_not_asked_about():
    env = "env: [{name: VLLM_OPENAI_PORT, value: '8000'}]"
    text = f"containers:\n- image: vllm/vllm-openai\n  {env}\n  args: [qwen3-8b, --port=PORT]\n"
    assert from_vllm([text.replace("PORT]", "$(VLLM_OPENAI_PORT)]")]).keys["model"] == "qwen3-8b"
    with pytest.raises(ScenarioError, match="VLLM_OPENAI_PORT: not a variable that is known"):
        from_vllm([text])


def test_several_lines_of_a_benchmark_tell_what_differs():
    line = "guidellm benchmark --rate-type concurrent --data prompt_tokens=9,output_tokens=9"
    text = "".join(f"{line} --rate {rate} --max-requests 50\n" for rate in (1, 10, 25))
    with pytest.raises(
        ScenarioError, match="given 3 times; .* workload.arrivals.concurrency 1,10,25"
    ):
        from_vllm([text])
