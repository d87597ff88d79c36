"""Lines as people paste them: variables of launchers, images with defaults, appended entries."""

import pytest

from mist_sim.errors import ScenarioError
from mist_sim.scenario.from_vllm.commands import from_vllm

NODES = "vllm serve llama-3.1-8b -tp 8 -pp 2 --nnodes 2 --node-rank"


@pytest.mark.parametrize("rank", ["$SLURM_PROCID", "${SLURM_NODEID}", "$(hostname | tail -c 2)"])
def test_a_rank_that_the_launcher_sets_is_of_all_nodes(rank):
    found = from_vllm([f'srun -N2 {NODES} "{rank}" --master-addr x'])
    assert found.keys["clients"] == [
        {"name": "llm", "tensor_parallel_size": 8, "pipeline_parallel_size": 2}
    ]
    (item,) = [each for each in found.assumed if each.flag.startswith("--node-rank")]
    assert "all nodes run this command" in item.why


def test_a_further_node_alone_is_named():
    with pytest.raises(ScenarioError, match="--node-rank 1 starts a further node"):
        from_vllm([f"{NODES} 1"])


def test_an_image_of_a_compose_file_may_have_a_default():
    text = "services:\n  v:\n    image: {}\n    command: --model qwen3-8b\n"
    for image in ('"vllm/vllm-openai:${TAG:-v0.19.0}"', "${IMAGE:-vllm/vllm-openai}:v0.19.0"):
        assert from_vllm([text.format(image)]).keys["engine"] == "vllm-0.19"


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
