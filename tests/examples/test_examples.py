"""The scripts in examples/ run as a user would run them, and print what they promise."""

import json
import re
import runpy
import subprocess
import sys
from io import StringIO

import pytest

import mist_sim as mist
from tests.conftest import ROOT

EXAMPLES = ROOT / "examples"
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,374,44
2023-11-16 18:17:04.0319600,396,109
2023-11-16 18:17:05.2000000,879,55
"""

# script -> (arguments, what it prints)
EXPECTED = {
    "agent_with_tools.py": (
        [],
        r"dropped +10\d% .*\nkept +9\d% .*\nin a tier +14% of the prompts .* session 1\d\d s\n$",
    ),
    "question_answering.py": (
        [],
        r"client +stage *\ncpu +augment +0\.\d+\n(.*\n)+mean TTFT \d+ ms",
    ),
    "chat_support.py": (
        [],
        r"computed again +0% found, .*\ndram +[345]\d% .*\ndram, disk +7\d% found, .* ms\n$",
    ),
    "code_generation.py": ([], r" +0% of .*\n 52% of .*\n 90% of the tokens found, TTFT +\d+ ms"),
    "reasoning_with_rewards.py": (
        [],
        r"one answer .* 0 passes, .*\nbest of 4 .* 400 passes, .*\ntree search .* 6,000 passes",
    ),
    "attention_ffn_compared.py": (
        ["40"],
        r"together: 6 x TP 8( +\d+){2}.*\n(.*\n){3}bundle: 16A.*( +\d+%){2}\n(.*\n){2}bundle: 24A",
    ),
    "first_chunk_admission.py": (
        [],
        r"off +vllm-0.14 +3,\d{3} .* 5.[78] times\noff +vllm-0.19 +0 .* 1.0 times\n(on .*\n){2}",
    ),
    "own_eviction.py": ([], r"lru +6\d\.\d% .*\nlfu +7\d\.\d% .*\ngdsf +69\.8% "),
    "hybrid_attention.py": (
        [],
        r"(.*\n){3}.* 131,072 +50\.\d+ +11 +2\d.*\n.* 4,096 .*\n.* 131,072 +16\.\d+ +14 +13",
    ),
    "changing_workload.py": (
        [],
        r"(.*\n)+mean +7\d.\d% +7\d.\d% +9\d.\d%\nfrom 300 s on: 2 x 2048, 2 x 128\n$",
    ),
    "compare_schedulers.py": ([], r"continuous +\d+\.\d.*\n(chunked, \d+ tokens.*\n){2}"),
    "dead_node.py": ([], r"nothing happens .* 0\.0\na node dies +\d.*\na node dies, one is spare "),
    "slo_through_failure.py": (
        [],
        r" 50 +█{30} +\d.*oooo\n +60 .*oo\n(.*\n)+ 220 +0.0% +oooo\n(.*\n)+.* o{8}\n\d+ requests",
    ),
    "dollars_and_joules.py": (
        [],
        r"1 x h100-sxm +0.70 +0.53 .* fitted\n2 x a100-80gb-sxm +.* fitted\n2 x l40s .* spec-only",
    ),
    "kv_storage.py": (
        [],
        r".*mean +p90\n  A dedicated +\d\d .*\n(.*\n){2}  C rack-shared +724 .*\n(.*\n)*  E ",
    ),
    "escalate.py": (
        [],
        r"always .* 400 visits .*\nsmall first, +0% on .* 0 visits .*\n(.*\n){3}.* 400 visits",
    ),
    "largest_rate.py": (
        [],
        r"random +3\d /s .*\nround_robin +[45]\d /s .*\nleast_outstanding +[45]\d /s +1\d\.\d /s",
    ),
    "news_search.py": (
        [],
        r"probes .*\n +16 +\d+\.\d +\d+\.\d\n +64 (.*\n)+ +1024 +\d{2,}\.\d +\d+",
    ),
    "own_decode_client.py": ([], r"2000 served, mean TPOT \d+\.\d ms\n2000 hand-overs, mean \d"),
    "own_powered_client.py": ([], r" client .*\nprompts +\d+\.\d+ .*\nanswers +\d+\.\d+ .*"),
    "own_router.py": ([], r"llm-3 +\d+ +\d+.*\np99 TTFT \d+ ms"),
    "own_stage.py": ([], r"translate +0\.\d+\nmean TTFT \d+ ms"),
    "resharding.py": ([], r"TP2PP4 .* 0.4\d+ simulated\nPP8 -> TP4PP2 .* 0.6\d+ simulated"),
    "step_times.py": ([], r'"version": "1"}\n{"seconds": \[\S+, \S+\]}'),
    "what_to_buy.py": (
        [],
        r"1 x h100-sxm, together \d+: 2.95 .*\n.*\nl40s: .*\n#.*\nvllm serve meta-llama/",
    ),
    "what_if_gpu.py": ([], r"(b200, .* TTFT .* TPOT .* tokens/s\n){4}"),
    "replay_azure.py": (["azure.csv"], r"(speed x \d: .* within the SLO\n){3}"),
}

MODEL = {"hidden_size": 64, "intermediate_size": 256, "num_layers": 4}
MODEL |= {"num_key_value_heads": 2, "head_dim": 16}
INPUT = {  # what a script reads
    "step_times.py": [
        {"protocol": 1, "model": MODEL, "cluster": {"tensor_parallel_size": 1}},
        {"batches": [{"chunks": [[512, 0]], "num_decodes": 0, "context_sum": 0}] * 2},
    ]
}


def run(path, *arguments, cwd):
    return subprocess.run(
        [sys.executable, str(path), *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def as_a_script(tmp_path, monkeypatch, capsys):
    """Run a script in this process, which imports nothing anew; return what it prints.

    Plugins that it registers are forgotten.
    """
    for family in (mist.CLIENTS, mist.STAGES):
        monkeypatch.setattr(family, "_classes", dict(family._classes))
    monkeypatch.chdir(tmp_path)

    def run(name, *arguments):
        lines = "".join(json.dumps(line) + "\n" for line in INPUT.get(name, []))
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        monkeypatch.setattr(sys, "stdin", StringIO(lines))
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr()

    return run


def test_every_example_is_listed_here():
    assert sorted(EXPECTED) == sorted(path.name for path in EXAMPLES.glob("*.py"))


LONG = (
    "attention_ffn_compared.py",
    "changing_workload.py",
    "dead_node.py",
    "largest_rate.py",
    "slo_through_failure.py",
    "what_to_buy.py",
)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.page] if name in LONG else []) for name in EXPECTED],
)
def test_example(name, tmp_path, as_a_script):
    arguments, output = EXPECTED[name]
    (tmp_path / "azure.csv").write_text(AZURE)
    out, err = as_a_script(name, *arguments)
    assert re.search(output, out), out
    assert not err


def test_replay_without_file_says_how_to_call_it(tmp_path):
    done = run(EXAMPLES / "replay_azure.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "python replay_azure.py AzureLLMInferenceTrace_conv.csv" in done.stderr


@pytest.mark.parametrize(
    ("gpu", "message"),
    [("ascend-910b3", "qwen3-32b does not fit on 1 x ascend-910b3"), ("b201", "did you mean")],
)
def test_what_if_that_cannot_be_simulated_says_why(tmp_path, gpu, message):
    done = run(EXAMPLES / "what_if_gpu.py", gpu, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["own_router.py", "own_stage.py"])
def test_a_plugin_fits_on_a_screen(name):
    assert len((EXAMPLES / name).read_text().splitlines()) < 30
