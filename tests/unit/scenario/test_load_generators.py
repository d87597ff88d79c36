"""Lines of load generators as workloads: what each flag means, and what cannot be."""

from pathlib import Path
from typing import Any

import pytest

from mist_sim import ScenarioError
from mist_sim.scenario.from_vllm.commands import from_vllm, read_commands
from mist_sim.scenario.from_vllm.generators import GENERATORS
from mist_sim.traces import BurstGptReader
from tests.refusals import refused

SGLANG = "python3 -m sglang.bench_serving --backend sglang"
GUIDELLM = "guidellm benchmark --target http://localhost:8000"
AIPERF = "aiperf profile -m m --url localhost:8000 --streaming"
GUIDED = "--data prompt_tokens=5,output_tokens=5 --max-requests 5"
DEEP = '{"a":' + "[" * 100_000


def fixed(tokens: int) -> dict[str, Any]:
    return {"type": "fixed", "tokens": tokens}


def drawn(number: int, prompt: Any, output: Any) -> dict[str, Any]:
    laws = [each if isinstance(each, dict) else fixed(each) for each in (prompt, output)]
    return {"type": "synthetic", "num_requests": number, "prompt": laws[0], "output": laws[1]}


def shared(number: int, prefixes: int, prefix: int, suffix: int, output: int) -> dict[str, Any]:
    return {
        "type": "prefix_repetition",
        "num_requests": number,
        "num_prefixes": prefixes,
        "prefix_len": prefix,
        "suffix": fixed(suffix),
        "output": fixed(output),
    }


def users(number: int) -> dict[str, Any]:
    return {"type": "closed_loop", "concurrency": number}


@pytest.mark.parametrize(
    ("line", "lengths", "arrivals"),
    [
        (
            (
                f"{SGLANG} --dataset-name random --num-prompts 30 --random-input 1024 "
                "--random-output 512 --random-range-ratio 0.5 --request-rate 4"
            ),
            drawn(
                30,
                {"type": "uniform", "low": 512, "high": 1024},
                {"type": "uniform", "low": 256, "high": 512},
            ),
            {"type": "poisson", "rate": "4 /s"},
        ),
        (  # without a ratio it draws from one token on
            f"{SGLANG} --dataset-name random --num-prompts 9 --random-input-len 100",
            drawn(
                9,
                {"type": "uniform", "low": 1, "high": 100},
                {"type": "uniform", "low": 1, "high": 1024},
            ),
            {"type": "all_at_once"},
        ),
        (
            (
                f"{SGLANG} --dataset-name generated-shared-prefix --gsp-num-groups 4 "
                "--gsp-prompts-per-group 8 --gsp-output-len 99 --num-prompts 5 --max-concurrency 16"
            ),
            shared(32, 4, 2048, 128, 99),
            users(16),
        ),
        (
            (
                f"{SGLANG} --dataset-name generated-shared-prefix --gsp-num-groups 1 "
                "--gsp-system-prompt-len 0 --gsp-question-len 6144 --gsp-output-len 1"
            ),
            drawn(16, 6144, 1),
            {"type": "all_at_once"},
        ),
        (
            (
                f"{GUIDELLM} --rate-type concurrent --rate 10 --max-requests 100 "
                "--data prompt_tokens=512,output_tokens=128"
            ),
            drawn(100, 512, 128),
            users(10),
        ),
        (
            (
                f"{GUIDELLM} --profile constant --rate 2 --max-seconds 30 --data "
                '\'{"prompt_tokens": 512, "prompt_tokens_stdev": 128, "output_tokens": 200}\''
            ),
            drawn(60, {"type": "normal", "mean": 512.0, "std": 128.0}, 200),
            {"type": "constant", "rate": "2 /s"},
        ),
        (
            (
                f"{GUIDELLM} --profile synchronous --max-requests 3 --data "
                "prompt_tokens=20,prompt_tokens_min=10,prompt_tokens_max=30,output_tokens=5"
            ),
            drawn(3, {"type": "uniform", "low": 10, "high": 30}, 5),
            users(1),
        ),
        (
            f"{AIPERF} --isl 1024 --osl 819 --request-count 15 --concurrency 5",
            drawn(15, 1024, 819),
            users(5),
        ),
        (
            (
                f"{AIPERF} --synthetic-input-tokens-mean 8 --synthetic-input-tokens-stddev 2 "
                "--output-tokens-mean 9 --request-rate 4 --arrival-pattern constant "
                "--benchmark-duration 10"
            ),
            drawn(40, {"type": "normal", "mean": 8, "std": 2.0}, 9),
            {"type": "constant", "rate": "4 /s"},
        ),
        (
            (
                f"{SGLANG} --dataset-name random --num-prompts 9 --request-rate 12.3456789123 "
                "--random-range-ratio 1"
            ),
            drawn(9, 1024, 1024),
            {"type": "poisson", "rate": "12.3456789123 /s"},
        ),
        (
            (
                f"{AIPERF} --osl 9 --num-requests 4 --concurrency 3 --concurrency-ramp-duration "
                "1.23456789"
            ),
            drawn(4, 550, 9),
            users(3) | {"ramp_up": "1.23456789 s"},
        ),
        (
            f"{AIPERF} --isl 10 --osl 9 --num-requests 4 --shared-system-prompt-length 50",
            shared(4, 1, 50, 10, 9),
            users(1),
        ),
        (
            (
                "genai-perf profile -m M --num-prompts 100 --synthetic-input-tokens-mean 200 "
                "--output-tokens-mean 100 --concurrency 10 --measurement-interval 4000 -- -v "
                "--max-threads=256"
            ),
            drawn(20, 200, 100),
            users(10),
        ),
    ],
)
def test_lines_become_workloads(line, lengths, arrivals):
    workload = from_vllm([line]).keys["workload"]
    assert workload["lengths"] == lengths
    assert workload["arrivals"] == arrivals


def test_classes_of_lengths_are_a_mix():
    line = f"{AIPERF} --sequence-distribution '128,64:25;512|10,128:75' --request-count 8"
    lengths = from_vllm([line]).keys["workload"]["lengths"]
    assert lengths["classes"]["128-64"] == {
        "prompt": fixed(128),
        "output": fixed(64),
        "share": 0.25,
    }
    assert lengths["classes"]["512-128"]["prompt"] == {"type": "normal", "mean": 512, "std": 10}


def test_classes_of_equal_means_are_two():
    line = f"{AIPERF} --sequence-distribution '128|10,64:50;128|30,64:50' --request-count 8"
    classes = from_vllm([line]).keys["workload"]["lengths"]["classes"]
    assert [each["prompt"]["std"] for each in classes.values()] == [10, 30]


@pytest.mark.parametrize("flag", ["--num-prefix-prompts 5", "--prefix-prompt-length 50"])
def test_half_of_a_prefix_is_not_applied(flag):
    said = from_vllm([f"{AIPERF} --osl 9 --num-requests 4 {flag}"])
    assert said.keys["workload"]["lengths"] == drawn(4, 550, 9)
    assert flag.split()[0] in said.left_out


def test_output_may_go_to_a_file_on_a_line_of_its_own():
    text = f'{SGLANG} --dataset-name random --num-prompts 3 \\\n    > "a.log" 2>&1\n'
    assert from_vllm([text]).keys["workload"]["lengths"]["num_requests"] == 3


def test_inputs_that_are_given_again_add_up():
    inputs = "--extra-inputs max_tokens:9 --extra-inputs temperature:0 --extra-inputs min_tokens:9"
    found = from_vllm(["vllm serve qwen3-8b", f"{AIPERF} --osl 5 --num-requests 4 {inputs}"])
    assert found.keys["workload"]["lengths"]["output"] == fixed(9)
    assert found.keys["clients"][0]["sampling"] == {"temperature": 0}


@pytest.mark.parametrize(
    ("line", "may_stop"),
    [
        ("vllm bench serve --output-len 9", True),
        ("vllm bench serve --output-len 9 --no-ignore-eos", True),
        ("vllm bench serve --output-len 9 --ignore-eos", False),
        ("""vllm bench serve --output-len 9 --extra-body '{"ignore_eos": true}'""", False),
        ("vllm bench throughput --input-len 9 --output-len 9", False),
        (f"{AIPERF} --osl 9 --num-requests 4", True),
        (f"{AIPERF} --osl 9 --num-requests 4 --extra-inputs ignore_eos:true", False),
        (f"{SGLANG} --dataset-name random", False),
        (f"{SGLANG} --dataset-name random --disable-ignore-eos", True),
        (f"{GUIDELLM} {GUIDED} --rate-type throughput", False),
    ],
)
def test_answers_that_may_stop_are_assumed(line, may_stop):
    found = from_vllm([line]).assumptions
    assert any("may end them earlier" in each for each in found) == may_stop


def test_limits_go_by_the_generators_names():
    """AIPerf's inter-token latency is a mean of each request, which is vLLM's TPOT."""
    pairs = '"time_to_first_token:500 inter_token_latency:30 request_latency:9000"'
    keys = from_vllm([f"{AIPERF} --isl 8 --osl 9 --request-count 8 --goodput {pairs}"]).keys
    assert keys["slo"] == {"ttft": "500 ms", "tpot": "30 ms", "e2el": "9000 ms"}


@pytest.mark.parametrize(
    ("line", "trace", "arrivals"),
    [
        (
            (
                "vllm bench serve --dataset-name timed_trace --timed-trace-chunk-hash-size 512 "
                "--timed-trace-sec-multiplier 0.001 --self-timed"
            ),
            {"type": "mooncake", "hash_block_size": 512},
            {"type": "trace"},
        ),
        (
            "vllm bench serve --dataset-name timed_trace --timed-trace-sec-multiplier 0.5",
            {"type": "timed_trace", "hash_block_size": 16},
            {"type": "trace", "speedup": 2.0},
        ),
        (
            "vllm bench serve --dataset-name timed_trace --no-self-timed --request-rate 3",
            {"type": "timed_trace", "hash_block_size": 16},
            {"type": "poisson", "rate": "3 /s", "stretched": True},
        ),
        (
            f"{SGLANG} --dataset-name mooncake --mooncake-slowdown-factor 4",
            {"type": "mooncake"},
            {"type": "trace", "speedup": 0.25},
        ),
        (
            "vllm bench serve --dataset-name burstgpt --request-rate 3",
            {"type": "burstgpt", "only_model": "GPT-4", "skip": "cancelled"},
            {"type": "poisson", "rate": "3 /s", "stretched": True},
        ),
    ],
)
def test_files_of_generators_are_traces(line, trace, arrivals):
    workload = from_vllm([f"{line} --num-prompts 7 --dataset-path f.csv"]).keys["workload"]
    assert workload["trace"] == {"path": "f.csv", "num_requests": 7, **trace}
    assert workload["arrivals"] == arrivals


def test_aiperf_replays_mooncakes_rows():
    line = f"{AIPERF} --input-file t.jsonl --custom-dataset-type mooncake_trace --fixed-schedule"
    workload = from_vllm([f"{line} --synthesis-speedup-ratio 2"]).keys["workload"]
    assert workload == {
        "trace": {"type": "mooncake", "path": "t.jsonl"},
        "arrivals": {"type": "trace", "speedup": 2.0},
    }


def test_burstgpt_takes_one_model_alone(tmp_path):
    path: Path = tmp_path / "b.csv"
    path.write_text(
        "Timestamp,Model,Request tokens,Response tokens\n5,ChatGPT,9,9\n7,GPT-4,4,2\n9,GPT-4,5,0\n"
    )
    reader = BurstGptReader(path=str(path), only_model="GPT-4", skip="cancelled")
    assert [row[:3] for row in reader.rows()] == [(4, 2, 0.0)]
    assert reader.left_out.num_left_out == 1
    with pytest.raises(ScenarioError, match="no row has Model 'gpt4'; .* ChatGPT, GPT-4"):
        list(BurstGptReader(path=str(path), only_model="gpt4", skip="bad").rows())


@pytest.mark.parametrize(
    ("line", "number", "cached"),
    [
        ("vllm bench throughput --model qwen3-4b --input-len 64 --output-len 4 -tp 2", 1000, None),
        ("vllm bench latency --model qwen3-4b --batch-size 4 -tp 2", 4, False),
        ("python benchmark_latency.py --model qwen3-4b --batch-size 4 -tp 2", 4, False),
    ],
)
def test_offline_benchmarks_are_server_and_load(line, number, cached):
    keys = from_vllm([line], gpu="h100-sxm").keys
    (client,) = keys["clients"]
    assert (keys["model"], client["tensor_parallel_size"]) == ("qwen3-4b", 2)
    assert client.get("kv_cache", {}).get("enable_prefix_caching") is cached
    assert keys["workload"]["lengths"]["num_requests"] == number
    assert keys["workload"]["arrivals"] == {"type": "all_at_once"}
    assert set(keys["front_end"].values()) == {"0 s"}  # there is no server


test_what_cannot_be_is_told_in_a_sentence = refused(
    lambda line: from_vllm([line]),
    (f"{AIPERF} --isl 8 --osl 4 --concurency 2", "not known; did you mean '--concurrency'?"),
    (f"{AIPERF} --isl 8 --concurrency 2", "--osl is required"),
    (f"{AIPERF} --isl 8 --osl 4 --benchmark-duration 60", "write --request-count N in place"),
    (f"{AIPERF} --isl 8 --osl 4 --session-turns-mean 5", "are sent from traces"),
    (f"{AIPERF} --input-file f --custom-dataset-type multi_turn", "mooncake_trace alone"),
    (f"{AIPERF} --public-dataset sharegpt --osl 3", "{type: sharegpt, path: FILE}"),
    (f"{GUIDELLM} --data prompt_tokens=5,output_tokens=5 --max-requests 5", "mist goodput"),
    (f"{GUIDELLM} --rate-type poisson --rate 1,2 --data prompt_tokens=5", "mist sweep"),
    (
        f"{GUIDELLM} --rate-type synchronous --max-requests 1 --data wikitext",
        "texts of a data set are not read",
    ),
    (
        f"{GUIDELLM} --rate-type synchronous --max-requests 1 --data prompt_token=5",
        "--data prompt_token: not known; did you mean 'prompt_tokens'?",
    ),
    *(
        (f"{GUIDELLM} --profile concurrent --rate {rate} {GUIDED}", told)
        for rate, told in [
            ("inf", "--rate inf: must be a finite number"),
            ("nan", "--rate nan: must be a finite number"),
            ("-1", "--rate -1: must be a number above 0"),
            ("2.7", "--rate 2.7: must be a whole number of users"),
        ]
    ),
    (f"{GUIDELLM} --profile constant --rate 2 --max-seconds inf", "must be a finite number"),
    (f"{GUIDELLM} --profile constant --rate 1e9 --max-seconds 9e9", "sends more than 10000000"),
    *(
        (
            (
                f"{GUIDELLM} --profile synchronous --max-requests 1 --data "
                f'\'{{"prompt_tokens": {tokens}, "output_tokens": 5}}\''
            ),
            "--data prompt_tokens: must be a whole number of tokens",
        )
        for tokens in ("1e400", "NaN", "5.5", "1" + "0" * 400)
    ),
    (
        "vllm bench serve --dataset-name timed_trace --timed-trace-sec-multiplier 0",
        "must be a number above 0",
    ),
    (f"{SGLANG} --dataset-name mooncake --mooncake-slowdown-factor 0", "a number above 0"),
    (f"{SGLANG} --dataset-name random --request-rate nan", "must be a finite number"),
    (f"{AIPERF} --osl 4 --sequence-distribution '128,64:50;64,9:60'", "sum to 100, got 110"),
    (f"{AIPERF} --osl 4 --extra-inputs '{DEEP}'", "not valid JSON"),
    (f"{AIPERF} --osl 4 --goodput time_to_first_token:nan", "in milliseconds"),
    (f"{SGLANG} --dataset-name mmmu", "random, random-ids, sharegpt, generated-shared"),
    (f"{SGLANG} --dataset-name random --disable-stream", "answers are streamed"),
    (f"{SGLANG} --dataset-name random --random-range-ratio 2", "must be in [0, 1]"),
    ("vllm bench serve --num-prompts $(( $CONC * 10 ))", "CONC has no value here; write CONC="),
    ("vllm bench throughput --model qwen3-4b", "--input-len and --output-len are required"),
    ("vllm bench latency --model qwen3-4b --n 4", "one answer a request is simulated"),
    ("vllm bench throughput --model qwen3-4b --input-len 5 --foo 4", "--foo: not known"),
)


def test_a_refused_rate_is_told_once():
    with pytest.raises(ScenarioError) as refused:
        from_vllm(["guidellm benchmark --rate-type constant --rate 2,6 --max-seconds 9"])
    assert "one load a run" in str(refused.value)
    assert "--rate is required" not in str(refused.value)


def test_two_loads_are_told():
    with pytest.raises(ScenarioError, match="aiperf profile and vllm bench serve are given"):
        from_vllm([f"{AIPERF} --isl 8 --osl 4 --request-count 5", "vllm bench serve"])


@pytest.mark.parametrize("name", GENERATORS)
def test_every_flag_has_an_answer(name):
    """One line in the account: applied, without effect, or refused with a reason."""
    values = {"switch": (), "one": ("1",), "many": ("1",)}
    for row in GENERATORS[name].rows:
        for spelt in (row.flag, *row.aliases):
            text = " ".join([f"python -m {name}" if "." in name else name, spelt])
            items = [
                item
                for statement in read_commands([" ".join([text, *values[row.takes]])]).account
                for item in statement.items
                if row.flag in item.flag
            ]
            assert len(items) >= 1, spelt
            assert all(item.why for item in items), spelt


@pytest.mark.parametrize("name", GENERATORS)
def test_no_flag_stands_in_two_rows(name):
    spelt = [each for row in GENERATORS[name].rows for each in (row.flag, *row.aliases)]
    assert len(spelt) == len(set(spelt))


def test_values_of_branches_are_told():
    branches = 'if x; then\n  N="${N:-9}"\nelse\n  N="${N:-4}"\nfi\n'
    text = f"{branches}{AIPERF} --osl 4 --num-requests $N"
    (told,) = [each for each in from_vllm([text]).assumptions if "branches" in each]
    assert told == "Assumed for if: N as read in its branches; set them in front"
    assert not [each for each in from_vllm([f"N=9\n{text}"]).assumptions if "branches" in each]
