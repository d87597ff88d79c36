"""`mist from-vllm` says all faults of its command lines at once."""

import pytest

from tests.commands import exit_code

SERVE = "vllm serve llama-3.1-8b"
BENCH = "vllm bench serve"


def said_of(capsys, *args):
    assert exit_code("from-vllm", *args) == 2
    return [line.strip() for line in capsys.readouterr().err.splitlines()]


def paths(lines):
    return {line.partition(": ")[0].rpartition(".")[2] for line in lines[1:]}


def test_values_that_later_checks_find_are_said_as_well(capsys):
    flags = "--max-model-len -3 --gpu-memory-utilization 1.5 --max-num-seqs 0 -tp 3"
    said = said_of(capsys, f"{SERVE} {flags}", "--gpu", "l40s")
    assert paths(said) == {
        "max_model_len",
        "gpu_memory_utilization",
        "max_num_seqs",
        "tensor_parallel_size",
    }


@pytest.mark.parametrize("gpu", [(), ("--gpu", "l40s")])
def test_values_beside_a_refused_flag(capsys, gpu):
    said = said_of(capsys, f"{SERVE} --enable-dbo --max-num-seqs 0", *gpu)
    assert said[1].startswith("2 arguments cannot be honoured")
    assert "--enable-dbo" in said[2]
    assert "max_num_seqs: must be >= 1, got 0" in said[3]


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve foo --enable-dbo",
        f"""{SERVE} --enable-dbo -sc '{{"method": "suffix", "num_speculative_tokens": 3}}'""",
    ],
)
def test_what_refused_flag_leaves_out_is_no_fault(capsys, text):
    said = said_of(capsys, text, "--gpu", "l40s")
    assert len(said) == 4
    assert all(line.startswith("vllm serve") for line in said[2:])


def test_what_faulty_value_brings_about_is_no_fault(capsys):
    text = "vllm serve llama-3.1-70b -tp 3 --max-num-seqs 0"  # on one L4 it does not fit
    said = said_of(capsys, text, "--gpu", "l4")
    assert paths(said) == {"max_num_seqs", "tensor_parallel_size"}


def test_all_values_of_a_benchmark(capsys):
    flags = "--request-rate 0 --max-concurrency 0 --num-prompts -5 --random-input-len 0"
    said = said_of(capsys, f"{BENCH} {flags} --burstiness -1 --random-range-ratio 2")
    flags = ("--request-rate 0", "--burstiness -1", "--random-range-ratio 2")
    assert all(flag in line for flag, line in zip(flags, said[2:5], strict=True))
    assert paths(said[4:]) == {"tokens", "concurrency", "num_requests"}


def test_all_limits_of_a_benchmark(capsys):
    said = said_of(capsys, f"{BENCH} --goodput ttft:abc foo:3")
    assert "ttft:abc" in said[2]
    assert "foo:3" in said[3]


@pytest.mark.parametrize("told", [True, False])
def test_a_run_says_them_too_unless_they_are_set_elsewhere(capsys, told):
    text = f"{SERVE} --enable-dbo --max-num-seqs 0"
    more = () if told else ("--set", "clients.0.scheduler.max_num_seqs=8")
    assert exit_code("run", "demo", "--from-vllm", text, *more) == 2
    said = capsys.readouterr().err
    assert "--enable-dbo" in said
    assert ("max_num_seqs: must be >= 1" in said) is told
