"""The tables of docs/background/roofline.md hold what predictor and measurements give now."""

import re

import pandas as pd
import pytest

import mist_sim as mist
from tests.conftest import ROOT

RTX = "measurements/vllm-0.19-rtxpro6000-llama3.1-8b/"


def table(heading):
    """Return the rows below a table's heading row, as lists of cells."""
    page = (ROOT / "docs/background/roofline.md").read_text("utf-8")
    start = page.index(f"| {heading} |")
    lines = page[start : page.index("\n\n", start)].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def number(text):
    """Read "1,024", "+5 %" or, with a typographic minus, "−14 %"."""
    return float(re.sub(r"[, %]", "", text).replace("−", "-"))


def error(simulated, measured):
    """Return the error in percent."""
    return 100 * (simulated / measured - 1)


def rounded(percent):
    return pytest.approx(percent, abs=0.51)


def predictor(model, gpu, ranks=1):
    return mist.RooflinePredictor(mist.load_model(model), mist.Cluster(mist.load_gpu(gpu), ranks))


# --- one step ---------------------------------------------------------------------------------


@pytest.fixture
def kernels(shared):
    """Return the milliseconds of the profiled kernels of a step of Llama-3.1-8B."""
    dense = pd.read_csv(shared(RTX + "profile/dense.csv"))
    dense = dense.pivot_table(index="tokens", columns="layer", values="time_us")
    ends = pd.read_csv(shared(RTX + "profile/per_sequence.csv"))
    ends = ends.groupby("sequences")["time_us"].sum()
    attention = pd.read_csv(shared(RTX + "profile/attention.csv"))
    attention = attention.set_index(["prefill_chunk", "kv_prefill", "n_decode", "kv_decode"])
    once_a_layer = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj", "act_fn", "rotary_emb"]

    def step(new, context, decodes, length):
        tokens = dense.iloc[dense.index.get_indexer([new + decodes], method="nearest")[0]]
        samples = ends.iloc[ends.index.get_indexer([decodes + bool(new)], method="nearest")[0]]
        layer = tokens[once_a_layer].sum() + 2 * tokens["layernorm"]
        layer += attention.loc[(new, context, decodes, length), "time_us"]
        return (32 * layer + tokens["embedding"] + tokens["final_layernorm"] + samples) / 1e3

    return step


def test_kernels(kernels):
    roofline = predictor("llama-3.1-8b", "rtx-pro-6000")
    heading = "new prompt tokens | context of the prompt | decodes | context of each"
    for row in table(f"{heading} | kernels | roofline | error"):
        new, context, decodes, length = (int(number(cell)) for cell in row[:4])
        chunks = ((new, context),) if new else ()
        simulated = 1e3 * roofline.step_time(mist.StepBatch(chunks, decodes, decodes * length))
        measured = kernels(new, context, decodes, length)
        found = [number(cell) for cell in row[4:]]
        assert found[:2] == pytest.approx([measured, simulated], abs=0.006)
        assert found[2] == rounded(error(simulated, measured))


def test_prompts_of_splitwise(shared):
    rows = pd.read_csv(shared("measurements/splitwise_perf_model.csv"))
    rows = rows[(rows["batch_size"] == 1) & (rows["token_size"] == 128)]
    by = ["model", "hardware", "tensor_parallel", "prompt_size"]
    measured = rows.groupby(by)["prompt_time"].median()
    names = {"Llama-2-70B": "llama2-70b", "BLOOM-176B": "bloom-176b"}
    gpus = {"A100": "a100-80gb-sxm", "H100": "h100-sxm"}
    lengths = (512, 1024, 2048, 4096, 8192)
    for setting, *errors in table("model, GPUs | 512 | 1,024 | 2,048 | 4,096 | 8,192"):
        model, ranks, gpu = re.fullmatch(r"([\w-]+), (\d) × (\w+)", setting).groups()
        roofline = predictor(names[model].replace("llama2", "llama-2"), gpus[gpu], int(ranks))
        for length, shown in zip(lengths, errors, strict=True):
            real = measured[names[model], f"{gpu.lower()}-80gb", int(ranks), length]
            simulated = 1e3 * roofline.step_time(mist.StepBatch(((length, 0),)))
            assert number(shown) == rounded(error(simulated, real)), (setting, length)
