"""Command lines that start a server, and that do not, as vLLM itself judges them.

`data/server_lines.yaml` has the lines. Where one was run or failed in public, its note says where;
the others follow from vLLM's files, which the rules name. Runs of 0.11 are judged as 0.12.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from mist_sim import Scenario, llm_client
from mist_sim.cli.app import BAD_INPUT
from mist_sim.core.result_warnings import STATE_BLOCKS
from mist_sim.errors import ScenarioError
from mist_sim.models import load_model
from mist_sim.models.block_slices import input_slices, merged_slices
from mist_sim.models.quantization import QUANTIZATIONS
from mist_sim.scenario import build
from mist_sim.scenario.engines.server_start import RULES, length_problem, nodes_problem
from mist_sim.scenario.engines.versions import VERSIONS
from mist_sim.scenario.startable import startable
from mist_sim.search import PlanOptions
from mist_sim.search.planning.candidates import candidates, engines_of, scenario_of
from mist_sim.search.planning.deployment import deployment_of
from mist_sim.search.planning.question import Question
from tests.commands import exit_code
from tests.reference.scenarios import of_profile

H100 = "h100-sxm"
LINES = yaml.safe_load((Path(__file__).parents[1] / "data/server_lines.yaml").read_text("utf-8"))
WARNED = ("--max-model-len", "--max-num-seqs", "--nnodes")
"""What is said of lines that are timed all the same."""


def rows(key):
    return [tuple(row.values()) for row in LINES[key]]


def from_vllm(line, gpu, version, capsys):
    """Return the exit code of `mist from-vllm`, and what it says with the scenario."""
    code = exit_code("from-vllm", line, "--gpu", gpu, "--engine", f"vllm-{version}")
    said = capsys.readouterr()
    return code, " ".join(f"{said.err} {said.out}".split())


@pytest.mark.parametrize(("line", "gpu", "version", "seen"), rows("starts"))
def test_lines_that_start(line, gpu, version, seen, capsys):
    code, told = from_vllm(f"vllm serve {line}", gpu, version, capsys)
    assert code == 0, (seen, told)
    assert "not start" not in told, seen


@pytest.mark.parametrize(("line", "gpu", "version", "said"), rows("fails"))
def test_lines_that_do_not_start(line, gpu, version, said, capsys):
    code, told = from_vllm(f"vllm serve {line}", gpu, version, capsys)
    assert said in told
    assert "not start" in told or code == BAD_INPUT
    assert code == (0 if said.startswith(WARNED) else BAD_INPUT)


def test_a_variable_of_vllm_allows_long_contexts(capsys):
    line = "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 vllm serve meta-llama/Llama-3.1-8B-Instruct"
    assert from_vllm(f"{line} --max-model-len 200000", H100, "0.19", capsys)[0] == 0


def test_every_rule_names_a_file_of_vllm():
    for rule in RULES:
        assert re.search(r"\w+\.py", rule.source)
        assert any(map(rule.holds, VERSIONS.values()))


def test_an_unnamed_engine_tells_what_older_ones_refuse():
    options = {"model": "qwen3-235b-a22b-fp8", "gpu": "h100-sxm", "tensor_parallel_size": 8}
    told = [str(each) for each in llm_client("llm", **options).traits.times.warnings]
    assert any("vLLM 0.28 and older do not start" in text for text in told)
    assert not llm_client("llm", engine="vllm-0.33", **options).traits.times.warnings


def test_fewer_experts_than_ranks_are_refused():
    """Mixtral's constructor in vllm/model_executor/models/mixtral.py; 16 GPUs joined by links."""
    with pytest.raises(ScenarioError, match="tensor_parallel_size must be <= 8, the experts of"):
        llm_client("llm", model="mixtral-8x7b", gpu="gb200", tensor_parallel_size=16)


def test_0_12_alone_checks_matrices_multiplied_as_one():
    """Three heads of 64 values make no block; `allow_fp8_block_shape_mismatch` came in 0.14."""
    model = load_model("qwen2.5-0.5b").with_dtypes(weights="fp8_block")
    cut = {each.slice for each in merged_slices(model, 2) if not each.is_whole}
    assert 7 * 64 in cut
    options = {"model": model, "gpu": "h100-sxm", "tensor_parallel_size": 1}
    llm_client("llm", engine="vllm-0.14", **options)


def test_groups_of_integers_are_not_cut():
    """Qwen2.5-72B of 29,568 values a rank in groups of 128; its publisher pads them to 29,696."""
    stored = replace(QUANTIZATIONS["int4"], block=(1, 128))
    plain = load_model("qwen2.5-72b")
    padded = replace(plain, intermediate_size=29_696)
    for model, starts in ((plain, False), (padded, True)):
        quantized = model.with_dtypes(weights=stored)
        assert all(each.is_whole for each in input_slices(quantized, 8)) is starts


def test_a_named_kernel_pads_blocks_of_experts():
    """`pad_tp_shard_to_weight_blocks`: Marlin on A100s, which has no smaller blocks."""
    options = {"model": "minimax-m2.7", "gpu": "a100-80gb-sxm", "tensor_parallel_size": 8}
    with pytest.raises(ScenarioError, match="whole blocks of 128"):
        llm_client("llm", engine="vllm-0.33", **options)
    llm_client("llm", engine="vllm-0.33", moe_backend="marlin", max_model_len=4096, **options)


@pytest.mark.parametrize(
    ("ranks", "engines", "nodes", "room", "starts"),
    [
        (8, 1, None, 8, True),
        (8, 4, None, 8, True),  # each engine may be on a node of its own
        (16, 1, None, 8, False),
        (16, 1, None, None, True),
        (16, 1, 2, 8, True),
        (16, 1, 3, 8, False),
        (8, 2, 4, 8, True),
    ],
)
def test_ranks_and_nodes(ranks, engines, nodes, room, starts):
    assert (not nodes_problem(ranks, engines, nodes=nodes, room=room)) is starts


def test_the_models_own_length_is_allowed():
    assert not length_problem(131_072, 131_072)
    assert length_problem(131_073, 131_072)


ASKED = {
    "model": "llama-3.1-8b",
    "workload": of_profile(20, "2 /s", name="azure-conv-2023"),
    "clients": [{"name": "llm", "gpu": "l4", "engine": "vllm-0.19"}],
    "slo": {"ttft": "5 s", "tpot": "200 ms"},
}


def test_a_plan_names_the_longest_context_that_fits():
    """Whatever the design and its chunk; a length that is said stays."""
    options = PlanOptions(gpus=("l4",), max_gpus=2, tensor_parallel_sizes=(1,))
    question = Question(Scenario.from_dict(ASKED), options)
    shop = engines_of(question)
    question.measure(shop.engines[0].built)
    for candidate in candidates(shop.engines, question):
        if candidate.design in ("together", "apart"):
            scenario = scenario_of(candidate, question)
            for command in deployment_of(scenario).commands:
                assert re.search(r"--max-model-len \d+", command)
            for client in build(scenario).clients:
                assert "max_model_len" not in client.traits.times.assumed
                assert client.max_model_len < 131_072
    said = Scenario.from_dict(ASKED, {"clients.0.max_model_len": 8_192})
    assert startable(said) is said


def test_results_warn_of_sequences_without_room_for_states():
    options = {"model": "nemotron-3-nano-30b-a3b-bf16", "gpu": "h100-sxm", "engine": "vllm-0.24"}
    warnings = llm_client("llm", **options).traits.times.warnings
    (told,) = [each for each in warnings if each.kind == STATE_BLOCKS]
    assert told.detail == "880 of 1,024 have room."


def test_designs_with_states_get_sequences_that_fit():
    """`resolve_cudagraph_mode_and_sizes`: a block of states for each sequence."""
    client = {"name": "llm", "gpu": "h100-sxm", "engine": "vllm-0.24"}
    asked = ASKED | {"model": "nemotron-3-nano-30b-a3b-bf16", "clients": [client]}
    made = startable(Scenario.from_dict(asked))
    (engine,) = build(made).clients
    assert engine.scheduler.max_num_seqs <= engine.memory.num_in_all + 1 < 1_024
    assert startable(made) is made


def test_an_engine_over_nodes_says_how_many():
    client = {"name": "llm", "gpu": "h100-sxm"}
    client |= {"tensor_parallel_size": 8, "pipeline_parallel_size": 2}
    found = deployment_of(Scenario.from_dict(ASKED | {"clients": [client]}))
    assert "--nnodes 2" in found.commands[0]
    assert "--node-rank" in found.text
