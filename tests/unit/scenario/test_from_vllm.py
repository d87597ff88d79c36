"""From `vllm serve ...` and `vllm bench serve ...` to a scenario."""

import pytest

from mist_sim import Scenario, simulate
from mist_sim.cli.app import BAD_INPUT
from mist_sim.errors import ScenarioError
from mist_sim.scenario.from_vllm.commands import from_vllm
from mist_sim.scenario.from_vllm.server import HANDLERS
from mist_sim.scenario.from_vllm.tables import HONOURED, rows_of
from mist_sim.scenario.options import engine_options
from tests.commands import exit_code
from tests.refusals import refused

SERVE = "vllm serve meta-llama/Llama-3.1-8B-Instruct"
BENCH = "vllm bench serve --request-rate 20 --num-prompts 30 --input-len 100 --output-len 10"


DRAFTS = """'{"method": "ngram", "num_speculative_tokens": 3}'"""


def client(arguments):
    return from_vllm([f"{SERVE} {arguments}"]).keys["clients"][0]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ("", {}),
        ("-tp 2 -pp=2", {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}),
        ("--tensor_parallel_size 4", {"tensor_parallel_size": 4}),
        ("-dp 2 -ep", {"data_parallel_size": 2, "enable_expert_parallel": True}),
        (
            "-dp 2 -ep --all2all-backend flashinfer_all2allv",
            {
                "data_parallel_size": 2,
                "enable_expert_parallel": True,
                "all2all_backend": "flashinfer_nvlink_two_sided",
            },
        ),
        ("-dp 2 --all2all-backend deepep_v2", {"data_parallel_size": 2}),
        (
            "-dp 2 -ep --all2all-backend pplx",
            {"data_parallel_size": 2, "enable_expert_parallel": True},
        ),
        ("--max-model-len 16k", {"max_model_len": 16_000}),
        ("--max-model-len 16K", {"max_model_len": 16_384}),
        ("--max-model-len auto", {"max_model_len": "auto"}),
        ("--max-model-len -1", {"max_model_len": "auto"}),
        ("--max-num-seqs 64", {"scheduler": {"max_num_seqs": 64}}),
        ("--scheduling-policy priority", {"scheduler": {"order": "priority"}}),
        ("--prefill-schedule-interval 4", {"scheduler": {"prefill_schedule_interval": 4}}),
        ("--no-async-scheduling", {"async_scheduling": False}),
        ("--no-enable-prefix-caching", {"kv_cache": {"enable_prefix_caching": False}}),
        ("--quantization awq_marlin", {"quantization": "int4"}),
        (
            "--kv-offloading-size 64",
            {"kv_cache": {"tiers": [{"name": "cpu", "capacity": "64 GiB"}]}},
        ),
        ("--cudagraph-capture-sizes 1 8", {"predictor": {"cudagraph_capture_sizes": [1, 8]}}),
        ("--enforce-eager --port 80", {"predictor": {"enforce_eager": True}}),
        ("--dtype bfloat16 --enable-chunked-prefill", {}),
        ("--long-prefill-token-threshold 0", {"scheduler": {"long_prefill_token_threshold": None}}),
    ],
)
def test_arguments_of_the_server(arguments, found):
    assert client(arguments) == {"name": "llm", **found}


@pytest.mark.parametrize(
    ("model", "arguments", "engine", "leaves_out"),
    [
        ("google/gemma-3-4b-it", "--language-model-only", None, True),
        ("google/gemma-3-4b-it", """--limit-mm-per-prompt '{"image": 0}'""", None, True),
        ("google/gemma-3-4b-it", "--limit-mm-per-prompt image=0", "vllm-0.19", True),
        ("google/gemma-3-4b-it", "--limit-mm-per-prompt.image 0", "vllm-0.14", False),
        ("google/gemma-3-4b-it", """--limit-mm-per-prompt '{"image": 2}'""", None, False),
        (
            "mistralai/Mistral-Small-3.1-24B-Instruct-2503",
            "--limit-mm-per-prompt image=0",
            "vllm-0.12",
            True,
        ),
        ("Qwen/Qwen3.5-27B", """--limit-mm-per-prompt '{"image": 0}'""", None, False),
        (
            "Qwen/Qwen3.5-27B",
            """--limit-mm-per-prompt '{"image": {"count": 0}, "video": 0}'""",
            None,
            True,
        ),
        ("MiniMaxAI/MiniMax-M3", "--language-model-only", None, True),
        ("meta-llama/Llama-3.1-8B-Instruct", "--language-model-only", None, False),
    ],
)
def test_flags_leave_out_towers_as_the_version_does(model, arguments, engine, leaves_out):
    found = from_vllm([f"vllm serve {model} {arguments}"], engine=engine).keys["clients"][0]
    assert found.get("language_model_only", False) == leaves_out


def test_drafts_are_read_as_json():
    said = client(f"--speculative-config {DRAFTS}")
    assert said["speculative_config"] == {"method": "ngram", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ("", {"type": "all_at_once"}),
        ("--request-rate inf", {"type": "all_at_once"}),
        ("--request-rate 4", {"type": "poisson", "rate": "4 /s", "stretched": True}),
        (
            "--request-rate 4 --burstiness 0.5",
            {"type": "gamma", "rate": "4 /s", "burstiness": 0.5, "stretched": True},
        ),
        ("--max-concurrency 16", {"type": "closed_loop", "concurrency": 16}),
        (
            "--max-concurrency 16 --request-rate 4",
            {"type": "poisson", "rate": "4 /s", "stretched": True},
        ),
    ],
)
def test_arrivals_of_the_benchmark(arguments, found):
    said = from_vllm([f"vllm bench serve {arguments}"]).keys
    assert said["workload"]["arrivals"] == found


def test_lengths_of_the_benchmark():
    """`RandomDataset` draws whole numbers between both ends."""
    said = from_vllm(["vllm bench serve --random-input-len 100 --random-range-ratio 0.25"]).keys
    assert said["workload"]["lengths"] == {
        "type": "synthetic",
        "num_requests": 1000,
        "prompt": {"type": "uniform", "low": 75, "high": 125},
        "output": {"type": "uniform", "low": 96, "high": 160},
    }


def test_a_file_holds_a_command_line(tmp_path):
    path = tmp_path / "serve.sh"
    path.write_text(f"# our server\n{SERVE} \\\n  -tp 2 \\\n  --port 8000  # the proxy's\n")
    found = from_vllm([str(path)])
    assert found.keys["clients"] == [{"name": "llm", "tensor_parallel_size": 2}]
    assert found.left_out == ("--port",)
    module = "python -m vllm.entrypoints.openai.api_server --model qwen3-4b"
    assert from_vllm([module]).keys["model"] == "qwen3-4b"


test_what_cannot_be_honoured_is_refused_by_name = refused(
    lambda command: from_vllm([command]),
    (f"{SERVE} --scheduling-policy shortest_prompt_first", "invalid choice"),
    (f"{SERVE} --all2all-backend deepep_low_latency", "vllm serve --all2all-backend deepep"),
    (f"{SERVE} --enable-dbo", "vllm serve --enable-dbo: batches are not overlapped"),
    (f"{SERVE} --no-enable-chunked-prefill", "instead: --set clients.0.scheduler.type=mixed"),
    (f"{SERVE} --dtype float32", "weights of 16 bits"),
    (f"{SERVE} --quantization gptq", "model's config.json"),
    (f"{SERVE} --max-num-sequs 3", "not known; did you mean '--max-num-seqs'?"),
    (f"{SERVE} -tp two", "invalid int value: 'two'"),
    (f"{SERVE} --compilation-config.level 0", "instead: --enforce-eager"),
    (f"{SERVE} --speculative-config ngram", "not valid JSON"),
    (f"""{SERVE} -sc '{{"method": "medusa"}}'""", "ngram, draft_model, mtp, eagle or eagle3"),
    (f"""{SERVE} -sc '{{"num_speculative_tokens": 1}}'""", "the method is missing"),
    (f"{SERVE} --max-num-batched-tokens 1.5K", "decimals are not allowed"),
    ("vllm serve", "the model is missing"),
    (f"CUDA_VISIBLE_DEVICES=0 {SERVE} -tp 2", "may use 1 GPUs, and asks for 2"),
    (f"VLLM_USE_V1=0 {SERVE}", "vllm serve VLLM_USE_V1: vLLM's v1 engine alone"),
    ("vllm serve m", "--set model=PATH of its config.json"),
    ("vllm serve $MODEL", "MODEL has no value here; write MODEL=... in front"),
    ("vllm serve $1 -tp 4", "is an argument of the script, not known here; write its value"),
    ("sglang serve m", "must be a command line of vllm serve or vllm bench serve"),
    ('vllm serve "m', "No closing quotation"),
    (
        "vllm bench serve --dataset-name sonnet",
        "random, sharegpt, prefix_repetition, burstgpt, timed_trace alone",
    ),
    (
        "vllm bench serve --dataset-name sharegpt",
        "vllm bench serve: --dataset-path is required with sharegpt, and no file is fetched",
    ),
    ("vllm bench serve --seed $(date +%s)", "not known here; write its value there"),
    ("vllm bench serve --backend openai-embeddings", "give a line for completions or chats"),
    ("vllm bench serve --ramp-up-strategy linear", "ramp_up"),
    ("vllm bench serve --goodput itl:5", "--goodput must be of ttft:MS, tpot:MS, e2el:MS"),
    ("vllm bench serve --random-range-ratio 2", "must be in [0, 1)"),
)


def test_a_benchmark_once():
    with pytest.raises(ScenarioError, match="vllm bench serve is given twice"):
        from_vllm(["vllm bench serve", "vllm bench serve"])


def test_equal_servers_are_one_client():
    (client,) = from_vllm([SERVE, f"{SERVE} --port 8001"]).keys["clients"]
    (alone,) = from_vllm([SERVE]).keys["clients"]
    assert client == alone | {"count": 2}


def test_a_script_starts_several_servers(tmp_path):
    script = tmp_path / "deploy.sh"
    transfer = '--kv-transfer-config \'{"kv_connector": "NixlConnector", "kv_role": "%s"}\''
    lines = [
        "# prompts and answers apart",
        f"vllm serve qwen3-4b {transfer % 'kv_producer'} --port 1 &",
        f"vllm serve qwen3-4b {transfer % 'kv_consumer'} --port 2 &",
        f"vllm serve qwen3-4b {transfer % 'kv_consumer'} --port 3 &",
        "python toy_proxy_server.py --port 8000",
    ]
    script.write_text("\n".join(lines))
    keys = from_vllm([str(script)], gpu="l4").keys
    assert keys["model"] == "qwen3-4b"
    assert keys["clients"] == [
        {"name": "llm-prefill", "gpu": "l4", "role": "prefill"},
        {"name": "llm-decode", "count": 2, "gpu": "l4", "role": "decode"},
    ]


def test_servers_that_differ_are_clients_of_their_own():
    small, large = "vllm serve qwen3-4b", "vllm serve qwen3-8b"
    keys = from_vllm([small, large, small]).keys
    assert "model" not in keys
    assert keys["clients"] == [
        {"name": "llm-1", "count": 2, "model": "qwen3-4b"},
        {"name": "llm-2", "model": "qwen3-8b"},
    ]


def test_who_computes_prompts_has_to_be_said():
    with pytest.raises(ScenarioError, match="kv_role must be kv_producer or kv_consumer"):
        from_vllm(["""vllm serve qwen3-4b --kv-transfer-config '{"kv_role": "kv_both"}'"""])


@pytest.mark.parametrize("flag", HONOURED)
def test_what_is_honoured_is_an_option(flag):
    keys = {option.key for option in engine_options()} | {"speculative_config", "kv_cache.tiers"}
    assert HONOURED[flag].key in keys


@pytest.mark.parametrize("flag", [flag for flag, one in HONOURED.items() if "." in one.key])
def test_the_list_of_options_names_the_flag(flag):
    """`mist list options` says which flag of vLLM an option is."""
    options = [each for each in engine_options() if each.key.startswith(HONOURED[flag].key)]
    assert any(flag in option.vllm for option in options)


def test_every_flag_has_one_row_and_handled_ones_a_handler():
    rows = rows_of("serve")
    assert len({row.flag for row in rows}) == len(rows)
    elsewhere = {"--config", "--spec-method", "--spec-model", "--spec-tokens"}  # read before
    handled = [row for row in rows if row.fate == "handled" and not row.cases]
    named = {row.by for row in rows if row.by}
    for flag in ("attention-config", "kernel-config", "speculative-config", "compilation-config"):
        named |= {row.by for row in rows_of(flag) if row.by}
    assert {row.flag for row in handled if not row.by} == elsewhere
    assert named == set(HANDLERS)


def test_the_command_writes_a_scenario_that_runs(capsys, tmp_path):
    args = ("from-vllm", f"{SERVE} -tp 2", BENCH, "--gpu", "h100-sxm", "--engine", "vllm-0.19")
    assert exit_code(*args) == 0
    path = tmp_path / "made.yaml"
    path.write_text(capsys.readouterr().out)
    scenario = Scenario.load(path)
    assert scenario.clients[0].tensor_parallel_size == 2
    assert scenario.clients[0].async_scheduling is True
    assert simulate(scenario).summary["total_output_tokens"] == 300


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((f"{SERVE}",), "--gpu is required"),
        ((BENCH, "--gpu", "l4"), "--gpu has no effect without vllm serve"),
        ((SERVE, BENCH, "--gpu", "l40s", "--engine", "vllm-0.1"), "write vllm-0.10"),
        ((f"{SERVE} --max-num-seqs 0", BENCH, "--gpu", "l40s"), "max_num_seqs: must be >= 1"),
        (
            (f"{SERVE} --kv-offloading-size 8 --no-enable-prefix-caching", BENCH, "--gpu", "l40s"),
            "tiers must be empty without a prefix cache",
        ),
        ((SERVE, "--gpu", "rtx9999"), "gpu: no accelerator"),
        ((SERVE, "--gpu", "l40s", "--engine", "vllm-0.35"), "write vllm-0.33"),
        ((BENCH, "--engine", "vllm-0.35"), "write vllm-0.33"),
        ((f"{SERVE} --kv-cache-dtype nvfp4", "--gpu", "l40s"), "got 'nvfp4'"),
        (
            (f"{SERVE} --watermark 0.1", "--gpu", "l40s", "--engine", "vllm-0.19"),
            "vLLM 0.19 has no such option (it came in 0.24)",
        ),
        (
            (f"{SERVE} --max-model-len auto", "--gpu", "l40s", "--engine", "vllm-0.12"),
            "auto came in 0.14",
        ),
        ((f"{SERVE} --max-model-len 1M", "--gpu", "l40s"), "max_model_len: must be <= "),
        (("vllm bench serve --request-rate 0",), "--request-rate 0: must be a number above 0"),
        ((SERVE, "--gpu", "l40s", "--set", "clients.0.count"), "must be KEY=VALUE"),
        ((BENCH, "--set", "clients.0.count=2"), "clients.0.gpu: is required"),
    ],
)
def test_the_command_refuses_what_cannot_run(capsys, args, said):
    assert exit_code("from-vllm", *args) == BAD_INPUT
    out, err = capsys.readouterr()
    assert said in err
    assert out == ""


@pytest.mark.parametrize(
    ("load", "said"),
    [
        (
            "vllm bench serve --dataset-name sharegpt --dataset-path none.json",
            "error: workload.trace.path: no file none.json in the working directory",
        ),
        (
            """guidellm benchmark --profile constant --rate 5 --max-requests 9 --data '
            {"prompt_tokens": 9, "output_tokens": 9, "prefix_tokens": "abc"}'""",
            "error: workload.lengths.prefix_len: must be a whole number, got 'abc'",
        ),
    ],
)
def test_a_bad_value_is_told_once(capsys, load, said):
    assert exit_code("from-vllm", SERVE, load, "--gpu", "l40s") == BAD_INPUT
    assert capsys.readouterr().err.strip().startswith(said)


def test_the_command_fills_in_what_a_command_line_does_not_say(capsys, tmp_path):
    rate = "clients.0.speculative_config.acceptance_rate=0.7"
    assert (
        exit_code("from-vllm", f"{SERVE} -sc {DRAFTS}", BENCH, "--gpu", "l40s", "--set", rate) == 0
    )
    path = tmp_path / "made.yaml"
    path.write_text(capsys.readouterr().out)
    assert Scenario.load(path).clients[0].speculative_config.acceptance_rate == 0.7


@pytest.mark.parametrize(
    ("model", "config"),
    [
        ("Qwen/Qwen3-8B", '{"method": "ngram", "num_speculative_tokens": 3}'),
        ("Qwen/Qwen3-8B", '{"model": "[ngram]", "num_speculative_tokens": 3}'),
        ("Qwen/Qwen3-8B", '{"method": "ngram_gpu", "num_speculative_tokens": 3}'),
        ("Qwen/Qwen3-8B", '{"method": "eagle", "model": "x/y", "num_speculative_tokens": 3}'),
        ("Qwen/Qwen3-8B", '{"method": "eagle3", "model": "x/y", "num_speculative_tokens": 3}'),
        ("Qwen/Qwen3-8B", '{"model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 3}'),
        ("deepseek-ai/DeepSeek-V3 -tp 8", '{"method": "mtp", "num_speculative_tokens": 1}'),
        (
            "deepseek-ai/DeepSeek-V3 -tp 8",
            '{"method": "deepseek_mtp", "num_speculative_tokens": 1}',
        ),
    ],
)
def test_drafts_without_an_acceptance_rate_run(capsys, tmp_path, model, config):
    """As pasted: the rate is assumed, and said to be in the account and in the result, once."""
    pasted = f"vllm serve {model} --speculative-config '{config}'"
    few = "vllm bench serve --request-rate 9 --num-prompts 5 --input-len 30 --output-len 9"
    few += " --ignore-eos"
    assert exit_code("from-vllm", pasted, few, "--gpu", "h200", "--explain") == 0
    out, err = capsys.readouterr()
    assert "unless you set it" in " ".join(err.split())
    assert "assumptions" not in out
    path = tmp_path / "made.yaml"
    path.write_text(out)
    summary = simulate(Scenario.load(path)).summary
    assert summary["completed"] == 5
    assert summary["spec_decode_num_drafts"] > 0
    assert any("speculative_config.acceptance_rate: " in name for name in summary["assumed"]["llm"])
    (told,) = [each for each in summary["warnings"] if "How many drafts" in str(each)]
    assert "as published" in str(told)


def test_half_a_scenario_is_printed_with_a_note(capsys):
    assert exit_code("from-vllm", SERVE, "--gpu", "l40s") == 0
    out, err = capsys.readouterr()
    assert "workload" not in out
    assert "a scenario needs workload, too" in err
    assert exit_code("from-vllm", BENCH) == 0
    out, err = capsys.readouterr()
    assert "clients" not in out
    assert "a scenario needs clients, too" in err


def test_run_of_two_command_lines_needs_no_scenario(capsys):
    said = ("--set", "clients.0.gpu=h100-sxm", "--set", "engine=vllm-0.19", "-q")
    assert exit_code("run", "--from-vllm", f"{SERVE} -tp 2", "--from-vllm", BENCH, *said) == 0
    assert "meta-llama/Llama-3.1-8B-Instruct on 2 x h100-sxm" in capsys.readouterr().out
    assert exit_code("run", "--from-vllm", SERVE, *said) == BAD_INPUT
    assert "workload is required: add --from-vllm" in capsys.readouterr().err
    assert exit_code("run") == BAD_INPUT
    assert "SCENARIO" in capsys.readouterr().err


def test_a_file_may_hold_the_arguments_alone(tmp_path):
    path = tmp_path / "args.txt"
    path.write_text("--model qwen3-4b\n--tensor-parallel-size 2  # both GPUs\n")
    found = from_vllm([str(path)])
    assert found.keys["model"] == "qwen3-4b"
    assert found.keys["clients"] == [{"name": "llm", "tensor_parallel_size": 2}]


def test_a_run_with_the_server_of_command_line(capsys):
    few = ("--set", "workload.lengths.num_requests=20", "--set", "clients.0.gpu=h100-sxm")
    assert exit_code("run", "demo", "--from-vllm", f"{SERVE} -tp 2 --port 1", *few, "-q") == 0
    out, err = capsys.readouterr()
    assert "meta-llama/Llama-3.1-8B-Instruct on 2 x h100-sxm" in out
    assert "without effect on times: --port" in err
    assert exit_code("run", "demo", "--from-vllm", SERVE) == BAD_INPUT
    assert "clients.0.gpu: is required" in capsys.readouterr().err


def test_hints_leave_out_gpus_whose_budgets_do_not_fit(capsys):
    """Seats above the 2,048 tokens a step that smaller GPUs have by default."""
    line = "vllm serve deepseek-ai/DeepSeek-V3 --max-num-seqs 5000"
    assert exit_code("from-vllm", line, "--gpu", "h100-sxm") == BAD_INPUT
    assert "deepseek-v3 does not fit on 1 x h100-sxm" in capsys.readouterr().err
