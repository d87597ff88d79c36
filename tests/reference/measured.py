"""Files of step times that follow a law, in every form that the table predictor reads."""

import itertools
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SIZES, CONTEXTS = (16, 64, 512, 2048), (0, 256, 4096)
COUNTS, LENGTHS = (1, 8, 64, 256), (16, 512, 8192)


def chunk_s(new: float, context: float) -> float:
    """Attention of a chunk; linear in each of its arguments, as all laws here."""
    return 1e-9 * new * (context + 800)


def decodes_s(n: float, mean: float) -> float:
    return 2e-8 * n * mean


def tokens_s(tokens: float) -> float:
    return 8e-3 + 3e-5 * tokens


def step_s(new: float, context: float, n: float, mean: float) -> float:
    seconds = tokens_s(new + n) + (chunk_s(new, context) if new else 0.0)
    return seconds + decodes_s(n, mean)


def steps_rows() -> Iterator[str]:
    yield "num_new_tokens,num_context_tokens,num_decodes,context_sum,seconds"
    prompts = [(0, 0), *itertools.product(SIZES, CONTEXTS)]
    decodes = [(0, 0), *itertools.product(COUNTS, LENGTHS)]
    for (new, context), (n, mean) in itertools.product(prompts, decodes):
        if new or n:
            yield f"{new},{context},{n},{n * mean},{step_s(new, context, n, mean)!r}"


def write_steps(folder: Path, *, mixed: bool = True, gpu: str = "h100-sxm") -> Path:
    rows = steps_rows()
    if not mixed:
        rows = (row for row in rows if row.startswith("0,") or ",0,0," in row or "num" in row)
    path = folder / "steps.csv"
    path.write_text(f"# tensor_parallel_size: 1\n# gpu: {gpu}\n" + "\n".join(rows) + "\n")
    return path


def experts_s(tokens: float, activated: float) -> float:
    return 2e-6 * tokens + 1e-4 * activated


def write_experts(folder: Path, num_layers: int) -> Path:
    """Write the experts of a profile whose layers follow the law above."""
    rows = [
        f"{tokens},{activated},{experts_s(tokens, activated) * 1e6 / num_layers!r}"
        for tokens in (1, 8, 64, 512, 4096)
        for activated in (1, 4, 16, 64, 128)
        if activated <= 8 * tokens
    ]
    (folder / "moe.csv").write_text("\n".join(["tokens,activated_experts,time_us", *rows]) + "\n")
    return folder


def write_layer_profile(folder: Path, num_layers: int, *, skew: bool = True) -> Path:
    """Write a profile whose layers follow the laws above, with uneven decodes 10 % slower."""
    us = 1e6 / num_layers
    tokens = (1, 64, 256, 2048, 4096)
    (folder / "dense.csv").write_text(
        "layer,tokens,time_us\n"
        + "".join(f"qkv_proj,{t},{(tokens_s(t) - 4e-3) * us!r}\n" for t in tokens)
        + "".join(f"embedding,{t},2000\n" for t in tokens)
    )
    (folder / "per_sequence.csv").write_text(
        "layer,sequences,time_us\n" + "".join(f"lm_head,{n},2000\n" for n in (1, 256))
    )
    lines = ["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"]
    lines += [f"0,0,{n},{m},{decodes_s(n, m) * us!r}" for n in COUNTS for m in LENGTHS]
    for c, k in itertools.product(SIZES, CONTEXTS):
        lines.append(f"{c},{k},0,0,{chunk_s(c, k) * us!r}")
        lines += [
            f"{c},{k},{n},{m},{(chunk_s(c, k) + decodes_s(n, m)) * us!r}"
            for n in COUNTS
            for m in LENGTHS
        ]
    (folder / "attention.csv").write_text("\n".join(lines) + "\n")
    if skew:
        lines = ["n,pc,kp,kv_big,kv_mean,t_mean_us,t_max_us,t_skew_us"]
        for n, (c, k) in itertools.product(COUNTS[1:], ((0, 0), (64, 256))):
            own = chunk_s(c, k) if c else 0.0
            mean = own + decodes_s(n, 500)
            longest = own + decodes_s(n, 1_000)
            uneven = own + 1.1 * decodes_s(n, 500)
            times = ",".join(repr(seconds * us) for seconds in (mean, longest, uneven))
            lines.append(f"{n},{c},{k},1000,500,{times}")
        (folder / "skew.csv").write_text("\n".join(lines) + "\n")
    return folder


def write_splitwise(folder: Path) -> Path:
    rows = ["model,hardware,prompt_size,batch_size,prompt_time,token_time,tensor_parallel"]
    for tokens, batch in ((128, 1), (512, 1), (1024, 1), (512, 2), (512, 8)):
        rows.append(f"m,a,{tokens},{batch},{1e3 * tokens_s(tokens * batch)},{30 + batch},1")
        rows.append(f"m,b,{tokens},{batch},{2e3 * tokens_s(tokens * batch)},{60 + batch},1")
    path = folder / "splitwise.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def write_vidur(folder: Path, num_layers: int) -> Path:
    ns, ms = 1e9 / num_layers, 1e3 / num_layers
    layers = ["layer_name,input,kv_cache,tp_size,latency(ns)"]
    for t in (1, *SIZES, 4096):
        layers.append(f"q_proj,{t},0,1,{(tokens_s(t) - 4e-3) * ns}")
        layers.append(f"attn,{t},0,1,{chunk_s(t, 0) * ns}")
        layers.append(f"lm_head,{t},0,1,4000000")
    (folder / "layers.csv").write_text("\n".join(layers) + "\n")
    names = "batch_size,prefill_chunk_size,kv_cache_size,num_tensor_parallel_workers,is_prefill"
    rows = [f"{names},time_stats.attn_prefill.median,time_stats.attn_decode.median"]
    rows += [
        f"1,{c},{k},1,True,{chunk_s(c, k) * ms}," for c, k in itertools.product(SIZES, CONTEXTS[1:])
    ]
    rows += [
        f"{n},0,{m},1,False,,{decodes_s(n, m) * ms}" for n, m in itertools.product(COUNTS, LENGTHS)
    ]
    (folder / "attention.csv").write_text("\n".join(rows) + "\n")
    return folder


@cache
def measured_steps(gpu: str = "h100-sxm") -> str:
    """Return the path of a file of steps on a GPU that lasts as long as the tests."""
    return str(write_steps(Path(tempfile.mkdtemp(prefix="mist-steps-")), gpu=gpu))


@cache
def measured_experts(num_layers: int, ranks: int = 1) -> str:
    """Return the path of a layer profile with experts that lasts as long as the tests."""
    folder = Path(tempfile.mkdtemp(prefix="mist-experts-"), f"tp{ranks}")
    folder.mkdir()
    return str(write_experts(write_layer_profile(folder, num_layers), num_layers))


@cache
def measured_layers(num_layers: int) -> str:
    """Return the path of a layer profile that lasts as long as the tests."""
    return str(write_layer_profile(Path(tempfile.mkdtemp(prefix="mist-layers-")), num_layers))
